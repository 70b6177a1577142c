/* struct transport over ZeroMQ.
 *
 * The coordinator binds a control socket (all nodes connect to it) and a row socket (the tail connects to it), and connects its rows to
 * stage 0. A node connects its control socket to the coordinator, binds a row socket (the stage before it connects to it) and connects its
 * rows to the next stage, or at the tail to the coordinator. So the one who binds is the CURVE server, and every connection is encrypted
 * and known by key at both ends. Plaintext exists for measuring what that costs.
 *
 * Peers in packets: the control socket of the coordinator gives numbers >= PEER_FIRST_NODE, one for each process that spoke; a number is
 * never given out twice. On a node, control comes from PEER_COORDINATOR. Rows always arrive from PEER_PREVIOUS and leave to PEER_NEXT, on
 * the coordinator too (its previous is the tail, its next is stage 0).
 *
 * One thread uses a transport, the one that opened it; ZeroMQ's own thread does the network and never calls us. No call waits. */
#ifndef HEARTH_PROTO_ZMQ_TRANSPORT_H
#define HEARTH_PROTO_ZMQ_TRANSPORT_H

#include <stdint.h>

#include "proto/curve_keys.h"
#include "proto/transport.h"

enum transport_role { ROLE_COORDINATOR, ROLE_NODE };

/* Strings are borrowed until zmq_transport_open returns. */
struct zmq_transport_options {
    enum transport_role role;
    const char *control_endpoint; /* "tcp://host:port"; the coordinator binds it, a node connects to it */
    const char *row_endpoint;     /* bound; port *: any free one (zmq_transport_row_endpoint tells which) */
    const struct key_pair *keys;  /* own; NULL in plaintext */
    const char *coordinator_key;  /* node: the only key that is believed on the control socket; NULL in plaintext */
    int plaintext;                /* no keys at all: whoever reaches the ports can read and send everything */
};

struct channel_counters {
    uint64_t messages_in, bytes_in, messages_out, bytes_out;
};

struct transport_counters {
    struct channel_counters channels[N_CHANNELS];
    uint64_t keys_refused;      /* connections whose CURVE key is not trusted here */
    uint64_t handshakes_failed; /* connections that ended before they were known: no keys, garbage, a port scan */
    uint64_t malformed;         /* messages of a wrong number of frames or a frame beyond its limit */
    uint64_t untrusted;         /* messages whose sender was trusted when it connected, and is not now */
    uint64_t queue_full;        /* messages not taken by send: queue full, or peer unknown */
    uint64_t reconnects;        /* connecting sockets made anew because nothing moved */
};

struct zmq_transport;

/* Binds and starts to connect; peers need not be there yet. Nobody is trusted until zmq_transport_trust (coordinator) or
 * zmq_transport_set_previous (node). */
enum status zmq_transport_open(struct zmq_transport **out, const struct zmq_transport_options *options, struct error *err);
/* Drops what is queued. */
void zmq_transport_close(struct zmq_transport **transport);

/* The seam. */
struct transport *zmq_transport_base(struct zmq_transport *transport);

/* Coordinator: whose keys may connect, from now on (replaces the list, which is copied). Messages of a key that is no longer in it do not
 * come out. */
void zmq_transport_trust(struct zmq_transport *transport, const struct trusted_keys *trusted);

/* Node: the only key whose rows are accepted; "" or NULL: nobody's (in plaintext: everybody's). */
void zmq_transport_set_previous(struct zmq_transport *transport, const char *key);

/* Where rows go from now on, and the key that must be there; endpoint NULL: nowhere. What was queued for the old one is dropped. */
enum status zmq_transport_set_next(struct zmq_transport *transport, const char *endpoint, const char *key, struct error *err);

/* One descriptor for poll(), readable when receive may have something or a queued message may move on; the same for the life of the
 * transport. Call receive until it returns 0 before polling again, and at least once a second: timers live there. */
int zmq_transport_fd(const struct zmq_transport *transport);

/* The bound endpoints, with real port numbers. */
const char *zmq_transport_control_endpoint(const struct zmq_transport *transport); /* coordinator only */
const char *zmq_transport_row_endpoint(const struct zmq_transport *transport);

/* Messages that wait in our own queue for a peer; for tests and metrics. */
int zmq_transport_n_queued(const struct zmq_transport *transport, int peer, enum channel channel);

/* One line in the log with what went in and out, for the end of a process. */
void zmq_transport_log_counters(const struct zmq_transport *transport);

const struct transport_counters *zmq_transport_counters(const struct zmq_transport *transport);

#endif
