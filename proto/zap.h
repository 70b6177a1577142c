/* Who may connect: the ZAP handler of one ZeroMQ context (rfc.zeromq.org/spec/27), polled by the thread that owns the sockets. A thread of
 * its own would need a lock around the list of keys and would gain nothing: ZeroMQ's network thread does not wait for the answer, the
 * connection does, and gives up after its handshake deadline. */
#ifndef HEARTH_PROTO_ZAP_H
#define HEARTH_PROTO_ZAP_H

#include <stdint.h>

#include "common/error.h"
#include "proto/curve_keys.h"

enum { ZAP_KEYS_MAX = 256 };

/* Keys that are let in now. An unknown one is not refused at once: a stage may connect a moment before the Assign that names it arrives
 * here, and ZeroMQ would make it wait for seconds before it tries again. */
struct zap {
    void *socket;
    int plaintext;                /* lets everyone in that speaks ZMTP 3 without keys */
    char (*keys)[PEER_KEY_BYTES]; /* [n_keys] */
    int n_keys;
    struct zap_request *waiting; /* [n_waiting], asked by keys that are not trusted yet */
    int n_waiting;
    uint64_t refused, next_log_ns, n_unlogged;
};

/* Must come before the first bind in the context. */
enum status zap_open(struct zap *zap, void *context, int plaintext, struct error *err);
void zap_close(struct zap *zap);

/* Replaces the list. */
void zap_set_keys(struct zap *zap, const struct trusted_keys *trusted);
void zap_set_key(struct zap *zap, const char *key); /* only this one; "" or NULL: nobody */

int zap_is_trusted(const struct zap *zap, const char *key);

/* Answers what has come, at most a stated number a call; 1: there may be more. Keys that have waited for half a second are refused. */
int zap_answer(struct zap *zap, uint64_t now_ns);

#endif
