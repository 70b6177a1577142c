/* What a state machine wants to send: filled by the logic, emptied by the loop that owns the transport. */
#ifndef HEARTH_PROTO_OUTBOX_H
#define HEARTH_PROTO_OUTBOX_H

#include "proto/transport.h"
#include "proto/wire.h"

struct outgoing {
    int peer;
    enum channel channel;
    size_t header_bytes, rows_bytes;
    uint8_t *bytes; /* header, padding to 8, rows */
};

/* At most `max` messages (outbox_init); a state machine that needs more has a bug, because every handler's messages are bounded. */
struct outbox {
    struct outgoing *messages;
    int n, max;
};

void outbox_init(struct outbox *outbox, int max);
void outbox_release(struct outbox *outbox);

/* Encodes and copies. rows may be NULL. CHECKs that there is room. */
void outbox_put(struct outbox *outbox, int peer, enum channel channel, const Hearth__Envelope *envelope, const void *rows, size_t rows_bytes);

/* Forgets the messages. */
void outbox_clear(struct outbox *outbox);

/* Sends all of them in order and clears. Messages that the transport could not take are counted in *n_dropped (may be NULL): both state machines survive
 * lost messages by their deadlines. */
void outbox_flush(struct outbox *outbox, struct transport *transport, int *n_dropped);

#endif
