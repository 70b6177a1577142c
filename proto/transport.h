/* How messages get from process to process: ZeroMQ in real life (proto/zmq_transport.c); the simulator carries outboxes itself (tests/sim/world.c). */
#ifndef HEARTH_PROTO_TRANSPORT_H
#define HEARTH_PROTO_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

enum channel { CHANNEL_CONTROL, CHANNEL_ROWS, N_CHANNELS };

/* Peers as a node sees them. As the coordinator sees them, nodes are numbers >= PEER_FIRST_NODE that the transport gives out, one for each connection
 * identity that spoke; a node that restarts gets a new one. */
enum peer { PEER_COORDINATOR = 0, PEER_NEXT = 1, PEER_PREVIOUS = 2, PEER_FIRST_NODE = 16 };

enum { PEER_KEY_BYTES = 41 };

/* A message that has arrived; the transport owns the memory until the next receive. */
struct packet {
    int peer;
    enum channel channel;
    char key[PEER_KEY_BYTES]; /* the sender's CURVE public key as authenticated, Z85; empty in plaintext */
    const uint8_t *header;
    size_t header_bytes;
    const void *rows; /* second frame, 4-byte aligned; NULL when there is none */
    size_t rows_bytes;
};

struct transport {
    /* Copies and queues. STATUS_BUSY: the peer's bounded out-queue is full or the peer is unknown; nothing was queued. Never waits. */
    enum status (*send)(struct transport *transport, int peer, enum channel channel, const uint8_t *header, size_t header_bytes, const void *rows,
                        size_t rows_bytes, struct error *err);
    /* The next message, if one is here: 1, else 0. Never waits. Frames beyond proto/limits.h, of the wrong number, or of an unknown key never come
     * out; they are counted. */
    int (*receive)(struct transport *transport, struct packet *packet);
};

#endif
