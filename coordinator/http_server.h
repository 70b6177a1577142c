/* People's door: HTTP/1.1 in front of the cluster, the OpenAI API (docs/OPERATIONS.md, "The API").
 *
 * Everything happens in the coordinator's one thread, inside the calls below; nothing waits. The loop polls http_server_fd() beside its
 * ZeroMQ sockets:
 *
 *     http_server_open(&server, &config, cluster, now, &err);
 *     for (;;) {
 *         poll({http_server_fd(server), POLLIN} and the transport, min(http_server_timeout_ms(server, now), time to the cluster's next
 * tick)); cluster_on_message(...) for every message; http_server_run(server, now, &outbox);        new requests are submitted, those whose
 * asker has gone are cancelled cluster_tick(cluster, now, &outbox); http_server_on_events(server, now, &outbox);  tokens become deltas
 *         outbox_flush(...);
 *         if (http_server_is_drained(server)) break;
 *     }
 *     http_server_close(&server);
 *
 * Tokenising and rendering happen inside http_server_run; a prompt whose bytes cannot fit the context is refused before that, so it takes
 * at most about a second for a million tokens. */
#ifndef HEARTH_COORDINATOR_HTTP_SERVER_H
#define HEARTH_COORDINATOR_HTTP_SERVER_H

#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "coordinator/cluster.h"
#include "model/generation_config.h"
#include "model/tokenizer.h"

/* Zero: the default in brackets. */
struct http_limits {
    size_t head_bytes_max;         /* [32 KiB] */
    size_t body_bytes_max;         /* [32 MiB] of one request */
    size_t bodies_bytes_max;       /* [128 MiB] of all requests together; beyond it new ones get 503 */
    size_t stream_bytes_max;       /* [1 MiB] of answer that a client has not read; beyond it the request is cancelled */
    size_t socket_bytes;           /* [256 KiB] the kernel's send buffer of a connection */
    int connections_max;           /* [1024]; further ones wait in the kernel */
    uint64_t head_deadline_ns;     /* [10 s] from the first byte (or the connection) to the end of the head */
    uint64_t body_deadline_ns;     /* [60 s] from there to the end of the body */
    uint64_t idle_deadline_ns;     /* [75 s] between two requests of a connection */
    uint64_t response_deadline_ns; /* [600 s] for reading the rest of an answer that is complete */
    uint64_t keep_alive_ns;        /* [10 s] silence in a stream before a comment line */
};

/* All of it is borrowed and must outlive the server. */
struct http_server_config {
    const char *listen;               /* common/sockets.h; NULL: 127.0.0.1, any port (http_server_port) */
    const char *api_key;              /* NULL: none needed */
    const char *const *allowed_hosts; /* [n_allowed_hosts] names besides localhost, without port */
    int n_allowed_hosts;
    const char *const *cors_origins; /* [n_cors_origins], "https://chat.example"; "*" allows every origin */
    int n_cors_origins;
    struct http_limits limits;
    const char *model_name;
    int64_t created; /* for /v1/models: seconds since 1970 */
    const struct tokenizer *tokenizer;
    const struct generation_config *generation;
    const struct model_config *model;
    int context_length;  /* positions that a sequence may have */
    int token_bytes_max; /* bytes of the longest token; 0: http_server_open finds out */
    int default_max_new; /* where a request leaves it open; 0: 2048 */
    int allow_logits;    /* serve POST /v1/logits */
    uint64_t seed;       /* for tests: answers without `seed` become repeatable; 0: random */
};

struct http_server;

/* Binds and listens. Fails naming address and port. */
enum status http_server_open(struct http_server **server, const struct http_server_config *config, struct cluster *cluster,
                             struct error *err);

/* Closes every connection at once; running requests are not cancelled (the cluster goes away too). */
void http_server_close(struct http_server **server);

int http_server_port(const struct http_server *server);

/* One descriptor that is readable whenever http_server_run has something to do. */
int http_server_fd(const struct http_server *server);

/* Milliseconds until http_server_run must be called even so; 0 to 1000. */
int http_server_timeout_ms(struct http_server *server);

/* Reads, answers, submits, cancels, enforces deadlines. */
void http_server_run(struct http_server *server, uint64_t now_ns, struct outbox *out);

/* Drains cluster_next_event. */
void http_server_on_events(struct http_server *server, uint64_t now_ns, struct outbox *out);

/* Stops listening and takes no new work; what still runs at deadline_ns ends with an error. */
void http_server_drain(struct http_server *server, uint64_t deadline_ns);

/* 1: draining, and every answer has been handed to the kernel, or the deadline is a second ago. */
int http_server_is_drained(const struct http_server *server);

/* Requests that the cluster works on. */
int http_server_n_active(const struct http_server *server);

#endif
