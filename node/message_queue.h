/* A bounded queue between two threads, one that puts and one that takes, with an eventfd to poll. */
#ifndef HEARTH_NODE_MESSAGE_QUEUE_H
#define HEARTH_NODE_MESSAGE_QUEUE_H

#include <pthread.h>
#include <stddef.h>

enum { QUEUE_ITEMS_MAX = 1024, QUEUE_BYTES_MAX = 32 << 20 };

/* What is handed over; whoever takes it frees it. */
struct queue_item {
    int kind; /* of the user's own */
    void *data;
    size_t bytes; /* what it counts for */
};

struct message_queue {
    pthread_mutex_t mutex;
    struct queue_item items[QUEUE_ITEMS_MAX];
    int first, n;
    size_t bytes;
    int event_fd; /* readable while the queue is not empty */
};

/* 0 when there is no eventfd to be had. */
int message_queue_init(struct message_queue *queue);
/* CHECKs that the queue is empty. */
void message_queue_release(struct message_queue *queue);

/* 1, or 0 when it is full: nothing was put. One item always fits into an empty queue. */
int message_queue_put(struct message_queue *queue, struct queue_item item);
/* 1 and the oldest item, or 0. Never waits. */
int message_queue_take(struct message_queue *queue, struct queue_item *item);
/* 1 while at least half of it is free. */
int message_queue_has_room(struct message_queue *queue);

#endif
