/* Messages that ZeroMQ could not take yet, for one peer on one channel: bounded in number and bytes, first in first out. */
#ifndef HEARTH_PROTO_SEND_QUEUE_H
#define HEARTH_PROTO_SEND_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

enum { SEND_QUEUE_MESSAGES = 64 };

/* Control: every message is small. Rows: two chunks of 512 rows of 6,144 floats in pieces; more than that is not in flight. */
enum { CONTROL_QUEUE_BYTES = 1 << 20, ROW_QUEUE_BYTES = 32 << 20 };
_Static_assert(ROW_QUEUE_BYTES >= 4 * (ROW_MESSAGE_BYTES_MAX + HEADER_BYTES_MAX), "a row queue holds some messages of the largest size");

struct queued_message {
    size_t header_bytes, rows_bytes;
    uint8_t bytes[]; /* header, rows */
};

/* Zero-initialise, then set bytes_max. */
struct send_queue {
    struct queued_message *ring[SEND_QUEUE_MESSAGES];
    unsigned first, n;
    size_t bytes, bytes_max;
};

/* Copies. 0: full, nothing was queued. */
int send_queue_put(struct send_queue *queue, const uint8_t *header, size_t header_bytes, const void *rows, size_t rows_bytes);

/* The oldest message, NULL: empty. */
const struct queued_message *send_queue_first(const struct send_queue *queue);
void send_queue_pop(struct send_queue *queue);
void send_queue_clear(struct send_queue *queue);

#endif
