#include "proto/send_queue.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"

int send_queue_put(struct send_queue *queue, const uint8_t *header, size_t header_bytes, const void *rows, size_t rows_bytes)
{
    size_t bytes = header_bytes + rows_bytes;
    if (queue->n == SEND_QUEUE_MESSAGES || bytes > queue->bytes_max - queue->bytes)
        return 0;
    struct queued_message *message = xrealloc(NULL, sizeof *message + bytes);
    message->header_bytes = header_bytes;
    message->rows_bytes = rows_bytes;
    memcpy(message->bytes, header, header_bytes);
    if (rows_bytes)
        memcpy(message->bytes + header_bytes, rows, rows_bytes);
    queue->ring[(queue->first + queue->n++) % SEND_QUEUE_MESSAGES] = message;
    queue->bytes += bytes;
    return 1;
}

const struct queued_message *send_queue_first(const struct send_queue *queue)
{
    return queue->n ? queue->ring[queue->first] : NULL;
}

void send_queue_pop(struct send_queue *queue)
{
    CHECK(queue->n);
    struct queued_message *message = queue->ring[queue->first];
    queue->bytes -= message->header_bytes + message->rows_bytes;
    queue->first = (queue->first + 1) % SEND_QUEUE_MESSAGES;
    queue->n--;
    free(message);
}

void send_queue_clear(struct send_queue *queue)
{
    while (queue->n)
        send_queue_pop(queue);
}
