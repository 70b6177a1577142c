/* ZeroMQ sockets with every option set on purpose, and messages of one or two frames on them. */
#ifndef HEARTH_PROTO_SOCKETS_H
#define HEARTH_PROTO_SOCKETS_H

#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "common/error.h"
#include "proto/curve_keys.h"

enum { ROUTING_ID_BYTES = 16 };

enum socket_kind {
    SOCKET_CONTROL_BOUND,     /* the coordinator's ROUTER */
    SOCKET_CONTROL_CONNECTED, /* a node's DEALER */
    SOCKET_ROWS_BOUND,        /* ROUTER, receives only */
    SOCKET_ROWS_CONNECTED,    /* DEALER, sends only */
};

struct socket_security {
    const struct key_pair *keys; /* NULL: plaintext */
    const char *server_key;      /* of connected sockets: the key that must be at the other end */
    const uint8_t *routing_id;   /* [ROUTING_ID_BYTES] of a connected control socket; else NULL */
};

/* Creates, sets every option, binds or connects. */
enum status socket_open(void **out, void *context, enum socket_kind kind, const char *endpoint, const struct socket_security *security,
                        struct error *err);

int socket_has_more(void *socket);
/* ZMQ_POLLIN, ZMQ_POLLOUT. Takes in what the network thread has told the socket since, which also quiets its descriptor. */
int socket_events(void *socket);
int socket_fd(void *socket);

/* A received message. Zero-initialise; frames stay valid until the next socket_receive into it or frames_release. */
struct frames {
    zmq_msg_t routing_id, header, rows;
    int has_routing_id, has_header, has_rows;
};

enum received { RECEIVED_NOTHING, RECEIVED_MESSAGE, RECEIVED_MALFORMED };

/* The next message, never waiting. with_routing_id: ROUTER sockets. Messages of more than two frames, or with a frame above its limit, are
 * taken whole and dropped: RECEIVED_MALFORMED. */
enum received socket_receive(void *socket, int with_routing_id, struct frames *frames);
void frames_release(struct frames *frames);

enum sent { SENT, SENT_NOT_NOW, SENT_NO_PEER };

/* All frames or none. routing_id NULL: DEALER. rows NULL: one frame. */
enum sent socket_send(void *socket, const uint8_t *routing_id, size_t routing_id_bytes, const uint8_t *header, size_t header_bytes,
                      const void *rows, size_t rows_bytes);

#endif
