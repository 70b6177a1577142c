#include "proto/outbox.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"

void outbox_init(struct outbox *outbox, int max)
{
    *outbox = (struct outbox){.messages = xcalloc((size_t)max, sizeof *outbox->messages), .max = max};
}

void outbox_release(struct outbox *outbox)
{
    outbox_clear(outbox);
    free(outbox->messages);
    *outbox = (struct outbox){0};
}

static size_t padded(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

void outbox_put(struct outbox *outbox, int peer, enum channel channel, const Hearth__Envelope *envelope, const void *rows, size_t rows_bytes)
{
    CHECK(outbox->n < outbox->max && rows_bytes <= ROW_MESSAGE_BYTES_MAX);
    uint8_t header[HEADER_BYTES_MAX];
    struct outgoing *message = &outbox->messages[outbox->n++];
    *message = (struct outgoing){.peer = peer, .channel = channel, .header_bytes = wire_encode(envelope, header), .rows_bytes = rows_bytes};
    message->bytes = xcalloc(padded(message->header_bytes) + rows_bytes, 1);
    memcpy(message->bytes, header, message->header_bytes);
    if (rows_bytes)
        memcpy(message->bytes + padded(message->header_bytes), rows, rows_bytes);
}

void outbox_clear(struct outbox *outbox)
{
    for (int i = 0; i < outbox->n; i++)
        free(outbox->messages[i].bytes);
    outbox->n = 0;
}

void outbox_flush(struct outbox *outbox, struct transport *transport, int *n_dropped)
{
    for (int i = 0; i < outbox->n; i++) {
        const struct outgoing *m = &outbox->messages[i];
        struct error err;
        if (transport->send(transport, m->peer, m->channel, m->bytes, m->header_bytes, m->rows_bytes ? m->bytes + padded(m->header_bytes) : NULL,
                            m->rows_bytes, &err) &&
            n_dropped)
            ++*n_dropped;
    }
    outbox_clear(outbox);
}
