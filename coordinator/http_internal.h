/* What the three files of the HTTP server share: http_server.c (connections, deadlines, the loop's calls), http_request.c (heads, bodies,
 * routes), http_reply.c (answers, whole and in pieces, and the work behind them). Nobody else includes this. */
#ifndef HEARTH_COORDINATOR_HTTP_INTERNAL_H
#define HEARTH_COORDINATOR_HTTP_INTERNAL_H

#include <stddef.h>
#include <stdint.h>
#include <microhttpd.h>

#include "common/memory.h"
#include "coordinator/api.h"
#include "coordinator/http_checks.h"
#include "coordinator/http_server.h"

/* Where a request is. Every state but QUEUED may end in the connection's death. */
enum request_state {
    READING, /* head is complete, body is not */
    WAITING, /* the cluster works on it, nothing has been sent */
    REPLIED, /* there is a response, the library does not have it yet */
    QUEUED,  /* the library sends the response */
    DEAD,    /* the asker has gone, or must go: the connection closes */
};

struct connection;

struct request {
    struct api_request api;
    struct http_server *server;
    struct connection *connection;
    enum request_state state;
    int is_head_request;
    char *method, *path, *origin;
    struct text body;
    size_t received_bytes;
    struct api_error refusal; /* decided at the head, sent when the body has been read; http_status 0: none */
    int must_close;
    /* the response */
    struct MHD_Response *response;
    int http_status;
    int is_suspended;
    int is_streaming, has_ended;
    struct text stream; /* bytes from stream_read on are not with the library yet */
    size_t stream_read;
    uint64_t last_piece_ns;
    uint64_t response_deadline_ns;
};

struct connection {
    struct connection *previous, *next;
    struct http_server *server;
    struct MHD_Connection *mhd;
    int fd;
    struct request *request;   /* under way, or NULL */
    uint64_t hang_up_ns;       /* when the asker's FIN or RST was seen; 0: not yet */
    uint64_t head_deadline_ns; /* 0: none */
    uint64_t body_deadline_ns;
    uint64_t idle_deadline_ns;
    uint64_t close_deadline_ns; /* a refusal was written past the library: gone at the latest then */
    uint64_t idle_bytes;        /* received when the last request ended */
};

struct http_server {
    struct http_server_config config;
    struct http_limits limits;
    struct http_names names;
    struct cluster *cluster;
    struct MHD_Daemon *daemon;
    int listen_fd, port;
    int epoll_fd; /* the library's epoll descriptor, and every connection for its hang-up */
    struct connection *connections;
    int n_active;
    size_t bodies_bytes;
    uint64_t now_ns;
    struct outbox *out;
    uint64_t drain_deadline_ns; /* 0: not draining */
};

/* ---- http_reply.c ---- */

int http_origin_is_allowed(const struct http_server *server, const char *origin);

/* Hands the connection back to the library, which then asks for what there is. */
void http_request_wake(struct request *request);

/* The answer is there; takes the response over. */
void http_request_set_response(struct request *request, int http_status, struct MHD_Response *response);

/* allow: the Allow header, or NULL. */
void http_request_refuse(struct request *request, const struct api_error *error, const char *allow);

/* ---- http_request.c ---- */

/* The library's callbacks. */
enum MHD_Result http_on_request(void *context, struct MHD_Connection *mhd, const char *url, const char *method, const char *version,
                                const char *upload, size_t *upload_bytes, void **request_slot);
void http_on_completed(void *context, struct MHD_Connection *mhd, void **request_slot, enum MHD_RequestTerminationCode code);

/* Cancels what it still does. */
void http_request_free(struct request *request);

/* Bytes of this connection that the kernel has received so far. */
uint64_t http_received_bytes(int fd);

/* Writes a refusal past the library, which takes none while a body arrives, and closes this direction. */
void http_refuse_rudely(struct connection *c, const struct api_error *error);

/* ---- http_server.c ---- */

/* The connection ends, whatever it was doing; its work is cancelled now, the library frees it when it next looks. */
void http_connection_kill(struct connection *c);

#endif
