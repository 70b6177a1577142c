#include "node/message_queue.h"

#include <errno.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/check.h"

int message_queue_init(struct message_queue *q)
{
    *q = (struct message_queue){.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    pthread_mutex_init(&q->mutex, NULL);
    return q->event_fd >= 0;
}

void message_queue_release(struct message_queue *q)
{
    CHECK(q->n == 0);
    close(q->event_fd);
    pthread_mutex_destroy(&q->mutex);
}

int message_queue_put(struct message_queue *q, struct queue_item item)
{
    uint64_t one = 1;
    pthread_mutex_lock(&q->mutex);
    int fits = q->n == 0 || (q->n < QUEUE_ITEMS_MAX && q->bytes + item.bytes <= QUEUE_BYTES_MAX);
    if (fits) {
        q->items[(q->first + q->n++) % QUEUE_ITEMS_MAX] = item;
        q->bytes += item.bytes;
        CHECK(write(q->event_fd, &one, sizeof one) == sizeof one);
    }
    pthread_mutex_unlock(&q->mutex);
    return fits;
}

int message_queue_take(struct message_queue *q, struct queue_item *item)
{
    uint64_t count;
    pthread_mutex_lock(&q->mutex);
    int is_there = q->n > 0;
    if (is_there) {
        *item = q->items[q->first];
        q->first = (q->first + 1) % QUEUE_ITEMS_MAX;
        q->n--;
        q->bytes -= item->bytes;
    }
    if (q->n == 0)
        CHECK(read(q->event_fd, &count, sizeof count) == sizeof count || errno == EAGAIN); /* EAGAIN: it was empty already */
    pthread_mutex_unlock(&q->mutex);
    return is_there;
}

int message_queue_has_room(struct message_queue *q)
{
    pthread_mutex_lock(&q->mutex);
    int has_room = q->n < QUEUE_ITEMS_MAX / 2 && q->bytes < QUEUE_BYTES_MAX / 2;
    pthread_mutex_unlock(&q->mutex);
    return has_room;
}
