#include "coordinator/http_server.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <linux/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include <microhttpd.h>

#include "common/check.h"
#include "common/log.h"
#include "common/memory.h"
#include "coordinator/api.h"

/* A head larger than http_limits.head_bytes_max but within this gets our own 431, beyond it the library's. The same pool holds the read
 * buffer. */
enum { CONNECTION_POOL_FACTOR = 3 };

/* How long the loop may sleep while connections exist: the precision of the deadlines below. */
enum { SWEEP_MS = 100, SLEEP_MS_MAX = 1000 };

/* A client that sends more than it may is listened to for this many times the limit, so that it reads the refusal instead of a reset. */
enum { DISCARD_FACTOR = 4 };

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

/* ---- replies ---- */

static struct request *request_of(struct api_request *api)
{
    return (struct request *)api; /* its first member */
}

static int origin_is_allowed(const struct http_server *server, const char *origin)
{
    for (int i = 0; i < server->config.n_cors_origins; i++)
        if (!strcmp(server->config.cors_origins[i], "*") || !strcmp(server->config.cors_origins[i], origin))
            return 1;
    return 0;
}

static void add_common_headers(struct request *request, struct MHD_Response *response)
{
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (request->origin && origin_is_allowed(request->server, request->origin)) {
        MHD_add_response_header(response, "Access-Control-Allow-Origin", request->origin);
        MHD_add_response_header(response, "Vary", "Origin");
    }
    if (request->must_close || request->server->drain_deadline_ns)
        MHD_add_response_header(response, "Connection", "close");
}

/* Hands the connection back to the library, which then asks us for what there is. */
static void wake(struct request *request)
{
    if (!request->is_suspended)
        return;
    request->is_suspended = 0;
    MHD_resume_connection(request->connection->mhd);
}

static void set_response(struct request *request, int http_status, struct MHD_Response *response)
{
    CHECK(!request->response);
    add_common_headers(request, response);
    request->response = response;
    request->http_status = http_status;
    request->state = REPLIED;
    wake(request);
}

static struct MHD_Response *response_of_json(json_t *body)
{
    char *text = json_dumps(body, JSON_COMPACT);
    CHECK(text);
    struct MHD_Response *response = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    CHECK(response);
    MHD_add_response_header(response, "Content-Type", "application/json");
    json_decref(body);
    return response;
}

void api_reply_json(struct api_request *api, int http_status, json_t *body)
{
    struct request *request = request_of(api);
    if (request->state == DEAD) {
        json_decref(body);
        return;
    }
    request->has_ended = 1;
    set_response(request, http_status, response_of_json(body));
}

static void reply_error_allowing(struct request *request, const struct api_error *error, const char *allow)
{
    if (request->state == DEAD)
        return;
    struct MHD_Response *response = response_of_json(api_error_json(error));
    char number[16];
    snprintf(number, sizeof number, "%d", error->retry_after_s);
    if (error->retry_after_s)
        MHD_add_response_header(response, "Retry-After", number);
    if (error->http_status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (allow)
        MHD_add_response_header(response, "Allow", allow);
    request->has_ended = 1;
    set_response(request, error->http_status, response);
}

void api_reply_error(struct api_request *api, const struct api_error *error)
{
    reply_error_allowing(request_of(api), error, NULL);
}

/* The library asks for bytes of a stream. With none there it leaves the connection alone until wake(). */
static ssize_t read_stream(void *context, uint64_t position, char *out, size_t max)
{
    (void)position;
    struct request *request = context;
    size_t n = request->stream.length - request->stream_read;
    if (request->state == DEAD)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n > max)
        n = max;
    if (n) {
        memcpy(out, request->stream.bytes + request->stream_read, n);
        request->stream_read += n;
        if (request->stream_read == request->stream.length) {
            text_clear(&request->stream);
            request->stream_read = 0;
        }
        return (ssize_t)n;
    }
    if (request->has_ended)
        return MHD_CONTENT_READER_END_OF_STREAM;
    request->is_suspended = 1;
    MHD_suspend_connection(request->connection->mhd);
    return 0;
}

void api_stream_begin(struct api_request *api, const char *content_type)
{
    enum { BLOCK_BYTES = 16384 };
    struct request *request = request_of(api);
    if (request->state == DEAD)
        return;
    struct MHD_Response *response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, request, NULL);
    CHECK(response);
    MHD_add_response_header(response, "Content-Type", content_type);
    MHD_add_response_header(response, "X-Accel-Buffering", "no"); /* proxies would hold tokens back */
    request->is_streaming = 1;
    request->last_piece_ns = request->server->now_ns;
    set_response(request, 200, response);
}

static void kill_connection(struct connection *c);

void api_stream(struct api_request *api, const char *bytes, size_t length)
{
    struct request *request = request_of(api);
    if (request->state == DEAD || !length)
        return;
    size_t unread = request->stream.length - request->stream_read;
    if (api->work != WORK_LOGITS && unread + length > request->server->limits.stream_bytes_max) { /* logits bound themselves */
        log_line(LOG_WARNING, "api: a client that does not read its answer was dropped with %zu bytes waiting", unread);
        kill_connection(request->connection);
        return;
    }
    if (request->stream_read > unread) { /* what was read makes room for what was not */
        memmove(request->stream.bytes, request->stream.bytes + request->stream_read, unread);
        request->stream.length = unread;
        request->stream_read = 0;
    }
    text_append(&request->stream, bytes, length);
    request->last_piece_ns = request->server->now_ns;
    wake(request);
}

void api_stream_end(struct api_request *api)
{
    struct request *request = request_of(api);
    request->has_ended = 1;
    request->response_deadline_ns = request->server->now_ns + request->server->limits.response_deadline_ns;
    wake(request);
}

/* ---- work in the cluster ---- */

int api_submit(struct api_request *api, const struct cluster_request *work, enum api_work kind)
{
    struct request *request = request_of(api);
    struct api_error refusal;
    struct error err = {0};
    int retry_after_s = 0;
    enum submit_refusal why = cluster_submit(api->cluster, work, api->now_ns, &api->cluster_id, &retry_after_s, &err);
    retry_after_s = retry_after_s < 1 ? 1 : retry_after_s > 600 ? 600 : retry_after_s;
    switch (why) {
    case SUBMIT_OK:
        api->work = kind;
        request->state = WAITING;
        request->server->n_active++;
        return 1;
    case SUBMIT_QUEUE_FULL:
        api_refuse(&refusal, 429, "queue_full", NULL, "%s", err.text);
        break;
    case SUBMIT_INCOMPLETE:
        api_refuse(&refusal, 503, "cluster_incomplete", NULL, "%s", err.text);
        break;
    case SUBMIT_DRAINING:
        api_refuse(&refusal, 503, "shutting_down", NULL, "%s", err.text);
        break;
    case SUBMIT_TOO_LONG:
        api_refuse(&refusal, 400, "context_length_exceeded", "messages", "%s", err.text);
        retry_after_s = 0;
        break;
    }
    refusal.retry_after_s = retry_after_s;
    api_reply_error(api, &refusal);
    return 0;
}

void api_work_is_over(struct api_request *api)
{
    if (api->work == WORK_NONE)
        return;
    api->work = WORK_NONE;
    request_of(api)->server->n_active--;
}

void api_work_cancel(struct api_request *api)
{
    struct http_server *server = request_of(api)->server;
    if (api->work == WORK_NONE)
        return;
    if (server->out)
        cluster_cancel(server->cluster, api->cluster_id, server->now_ns, server->out);
    api_work_is_over(api);
}

void api_error_of_event(struct api_error *error, const struct cluster_event *event)
{
    if (event->status == STATUS_TIMEOUT)
        api_refuse(error, 504, "deadline_exceeded", NULL, "%s", event->sentence);
    else if (event->status == STATUS_INVALID || event->status == STATUS_CORRUPT || event->status == STATUS_UNSUPPORTED)
        api_refuse(error, 500, "internal_error", NULL, "%s", event->sentence);
    else {
        api_refuse(error, 503, "cluster_failed", NULL, "%s", event->sentence);
        error->retry_after_s = 5;
    }
}

void api_random_id(char out[40], const char *prefix)
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    unsigned char bytes[24];
    ssize_t got = getrandom(bytes, sizeof bytes, 0);
    CHECK(got == (ssize_t)sizeof bytes);
    int n = snprintf(out, 40, "%.12s", prefix);
    for (size_t i = 0; i < sizeof bytes; i++)
        out[n++] = letters[bytes[i] % (sizeof letters - 1)];
    out[n] = 0;
}

/* ---- requests ---- */

static struct request *request_new(struct connection *c, const char *path, const char *method)
{
    struct request *request = xcalloc(1, sizeof *request);
    request->server = c->server;
    request->connection = c;
    request->is_head_request = !strcmp(method, "HEAD");
    request->method = xstrdup(request->is_head_request ? "GET" : method);
    request->path = xstrdup(path);
    request->api = (struct api_request){.config = &c->server->config, .cluster = c->server->cluster, .path = request->path};
    c->request = request;
    return request;
}

static void forget_body(struct request *request)
{
    request->server->bodies_bytes -= request->body.length;
    text_free(&request->body);
}

static void request_free(struct request *request)
{
    struct connection *c = request->connection;
    api_work_cancel(&request->api);
    api_chat_free(&request->api.chat);
    api_logits_free(&request->api.logits);
    if (request->response)
        MHD_destroy_response(request->response);
    forget_body(request);
    text_free(&request->stream);
    free(request->method);
    free(request->path);
    free(request->origin);
    c->request = NULL;
    free(request);
}

struct route {
    const char *method, *path;
    int is_prefix, needs_logits;
    void (*handle)(struct api_request *request);
};

static const struct route routes[] = {
    {"GET", "/health", 0, 0, api_health_get},
    {"GET", "/v1/models", 0, 0, api_models_get},
    {"GET", "/v1/models/", 1, 0, api_model_get},
    {"GET", "/v1/status", 0, 0, api_status_get},
    {"POST", "/v1/chat/completions", 0, 0, api_chat_post},
    {"POST", "/v1/logits", 0, 1, api_logits_post},
};

static const struct route *find_route(const struct http_server *server, const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const struct route *r = &routes[i];
        if ((!r->needs_logits || server->config.allow_logits) &&
            (r->is_prefix ? !strncmp(path, r->path, strlen(r->path)) : !strcmp(path, r->path)))
            return r;
    }
    return NULL;
}

static const char *allowed_methods(const struct route *route)
{
    return !strcmp(route->method, "GET") ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
}

static enum MHD_Result add_header(void *context, enum MHD_ValueKind kind, const char *name, size_t name_length, const char *value,
                                  size_t value_length)
{
    (void)kind;
    http_head_add(context, name, name_length, value ? value : "", value_length);
    return MHD_YES;
}

/* Same origin: a page that this server itself has served. */
static int is_own_origin(const char *origin, const char *host)
{
    const char *name = strstr(origin, "://");
    return name && host && !strcasecmp(name + 3, host);
}

/* Everything that the head alone decides, in the order in which it may be told: framing, host, key, path, method, origin, type, size. */
static int head_is_refused(struct request *request, const struct http_head *head)
{
    const struct http_server *server = request->server;
    struct api_error *error = &request->refusal;
    request->must_close = http_head_refused(head, server->limits.head_bytes_max, error);
    if (request->must_close)
        return 1;
    if (head->host && !http_host_is_allowed(head->host, &server->names))
        return api_refuse(error, 403, "host_not_allowed", NULL,
                          "this server does not answer to the name in the Host header; add it to the allowed hosts");
    if (!strcmp(request->method, "OPTIONS"))
        return 0;
    if (server->config.api_key && strcmp(request->path, "/health") && !http_key_matches(head->authorization, server->config.api_key))
        return api_refuse(error, 401, "invalid_api_key", NULL, "missing or wrong API key; send it as Authorization: Bearer KEY");
    const struct route *route = find_route(server, request->path);
    if (!route)
        return api_refuse(error, 404, "not_found", NULL, "there is no %s here; the API is under /v1", request->path);
    if (strcmp(request->method, route->method))
        return api_refuse(error, 405, "method_not_allowed", NULL, "%s takes %s", route->path, allowed_methods(route));
    if (strcmp(request->method, "POST"))
        return 0;
    if (head->origin && !is_own_origin(head->origin, head->host) && !origin_is_allowed(server, head->origin))
        return api_refuse(error, 403, "origin_not_allowed", NULL,
                          "pages of this origin may not use the API; add it to the allowed origins");
    if (!http_is_json(head->content_type))
        return api_refuse(error, 415, "unsupported_media_type", NULL, "Content-Type must be application/json");
    if (head->content_length && strtoull(head->content_length, NULL, 10) > server->limits.body_bytes_max)
        return api_refuse(error, 413, "body_too_large", NULL, "the body is larger than %zu bytes", server->limits.body_bytes_max);
    return 0;
}

static void reply_options(struct request *request)
{
    const struct route *route = find_route(request->server, request->path);
    struct MHD_Response *response = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    CHECK(response);
    MHD_add_response_header(response, "Allow", route ? allowed_methods(route) : "OPTIONS");
    if (request->origin && origin_is_allowed(request->server, request->origin)) {
        MHD_add_response_header(response, "Access-Control-Allow-Methods", route ? allowed_methods(route) : "OPTIONS");
        MHD_add_response_header(response, "Access-Control-Allow-Headers", "Authorization, Content-Type");
        MHD_add_response_header(response, "Access-Control-Max-Age", "600");
    }
    request->has_ended = 1;
    set_response(request, 204, response);
}

static void dispatch(struct request *request)
{
    struct http_server *server = request->server;
    const struct route *route = find_route(server, request->path);
    request->api.now_ns = server->now_ns;
    request->api.out = server->out;
    request->api.is_draining = server->drain_deadline_ns != 0;
    request->api.body = request->body.bytes ? request->body.bytes : "";
    request->api.body_bytes = request->body.length;
    if (request->refusal.http_status)
        reply_error_allowing(request, &request->refusal, request->refusal.http_status == 405 ? allowed_methods(route) : NULL);
    else if (!strcmp(request->method, "OPTIONS"))
        reply_options(request);
    else
        route->handle(&request->api);
    forget_body(request);
}

/* First call for a request: its head is complete. */
static void on_head(struct request *request, const char *version)
{
    struct connection *c = request->connection;
    struct http_head head = {.is_http_1_0 = !strcmp(version, MHD_HTTP_VERSION_1_0)};
    MHD_get_connection_values_n(c->mhd, MHD_HEADER_KIND, add_header, &head);
    if (head.origin)
        request->origin = xstrdup(head.origin);
    c->head_deadline_ns = c->idle_deadline_ns = 0;
    c->body_deadline_ns = c->server->now_ns + c->server->limits.body_deadline_ns;
    const char *expect = MHD_lookup_connection_value(c->mhd, MHD_HEADER_KIND, "Expect");
    size_t announced = head.n_content_length ? strtoull(head.content_length, NULL, 10) : 0;
    /* A refusal waits for a body that is on its way, or the client would see a reset instead; not for one that it has only announced. */
    if (head_is_refused(request, &head) &&
        (request->must_close || expect || announced > DISCARD_FACTOR * c->server->limits.body_bytes_max)) {
        request->must_close = 1;
        dispatch(request);
    }
}

/* Writes a refusal past the library, which takes none while a body arrives, and closes this direction. */
static void refuse_rudely(struct connection *c, const struct api_error *error)
{
    json_t *body = api_error_json(error);
    char *text = json_dumps(body, JSON_COMPACT);
    char *answer = xasprintf("HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
                             error->http_status, error->http_status == 413 ? "Content Too Large" : "Request Timeout", strlen(text), text);
    ssize_t sent = send(c->fd, answer, strlen(answer), MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)sent; /* who does not take it does not want it */
    shutdown(c->fd, SHUT_WR);
    c->body_deadline_ns = 0;
    c->close_deadline_ns = c->server->now_ns + 2000000000;
    free(answer);
    free(text);
    json_decref(body);
}

static void on_body(struct request *request, const char *bytes, size_t length)
{
    struct http_server *server = request->server;
    request->received_bytes += length;
    if (!request->refusal.http_status) {
        if (request->received_bytes > server->limits.body_bytes_max)
            api_refuse(&request->refusal, 413, "body_too_large", NULL, "the body is larger than %zu bytes", server->limits.body_bytes_max);
        else if (server->bodies_bytes + length > server->limits.bodies_bytes_max) {
            api_refuse(&request->refusal, 503, "busy", NULL, "too many large requests at once");
            request->refusal.retry_after_s = 5;
        } else {
            text_append(&request->body, bytes, length);
            server->bodies_bytes += length;
        }
    }
    if (request->refusal.http_status)
        forget_body(request);
    if (request->received_bytes > DISCARD_FACTOR * server->limits.body_bytes_max && !request->connection->close_deadline_ns)
        refuse_rudely(request->connection, &request->refusal);
}

static struct connection *connection_of(struct MHD_Connection *mhd)
{
    return MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

/* The library's callback: the head, each piece of the body, its end, and again after every wake(). */
static enum MHD_Result on_request(void *context, struct MHD_Connection *mhd, const char *url, const char *method, const char *version,
                                  const char *upload, size_t *upload_bytes, void **request_slot)
{
    (void)context;
    struct connection *c = connection_of(mhd);
    struct request *request = *request_slot;
    int is_first = !request;
    if (is_first) {
        *request_slot = request = request_new(c, url, method);
        on_head(request, version);
    } else if (*upload_bytes) {
        on_body(request, upload, *upload_bytes);
        *upload_bytes = 0;
        return MHD_YES;
    } else if (request->state == READING) {
        c->body_deadline_ns = 0;
        dispatch(request);
    }
    switch (request->state) {
    case READING:
    case QUEUED:
        return MHD_YES;
    case REPLIED:
        request->state = QUEUED;
        return MHD_queue_response(mhd, (unsigned)request->http_status, request->response);
    case WAITING:
        request->is_suspended = 1;
        MHD_suspend_connection(mhd);
        return MHD_YES;
    case DEAD:
        break;
    }
    return MHD_NO;
}

static uint64_t received_bytes(int fd)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) ? 0 : info.tcpi_bytes_received;
}

static void on_completed(void *context, struct MHD_Connection *mhd, void **request_slot, enum MHD_RequestTerminationCode code)
{
    (void)context, (void)code;
    struct connection *c = connection_of(mhd);
    if (*request_slot)
        request_free(*request_slot);
    *request_slot = NULL;
    c->body_deadline_ns = 0;
    c->idle_deadline_ns = c->server->now_ns + c->server->limits.idle_deadline_ns;
    c->idle_bytes = received_bytes(c->fd);
}

/* ---- connections ---- */

/* A FIN or RST shows here once, whatever the library does with the connection: while it is suspended the library does not look, and of a
 * FIN that comes together with data it does not learn (edge-triggered epoll, one read that was short). */
static void watch(struct connection *c)
{
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = c};
    epoll_ctl(c->server->epoll_fd, EPOLL_CTL_ADD, c->fd, &event);
}

static void on_connection(void *context, struct MHD_Connection *mhd, void **slot, enum MHD_ConnectionNotificationCode code)
{
    struct http_server *server = context;
    struct connection *c = *slot;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        *slot = c = xcalloc(1, sizeof *c);
        c->server = server;
        c->mhd = mhd;
        c->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        c->head_deadline_ns = server->now_ns + server->limits.head_deadline_ns;
        c->next = server->connections;
        if (c->next)
            c->next->previous = c;
        server->connections = c;
        int bytes = (int)server->limits.socket_bytes;
        setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
        watch(c);
        return;
    }
    if (c->request)
        request_free(c->request);
    epoll_ctl(server->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    *(c->previous ? &c->previous->next : &server->connections) = c->next;
    if (c->next)
        c->next->previous = c->previous;
    free(c);
    *slot = NULL;
}

/* The connection ends, whatever it was doing; its work is cancelled now, the library frees it when it next looks. */
static void kill_connection(struct connection *c)
{
    c->head_deadline_ns = c->body_deadline_ns = c->idle_deadline_ns = c->close_deadline_ns = 0;
    shutdown(c->fd, SHUT_RDWR);
    if (!c->request)
        return;
    api_work_cancel(&c->request->api);
    c->request->response_deadline_ns = 0;
    c->request->state = DEAD;
    wake(c->request);
}

static int has_passed(uint64_t deadline_ns, uint64_t now_ns)
{
    return deadline_ns && now_ns >= deadline_ns;
}

/* A hang-up ends work at once. What needs none is answered to who only closed his half; a request that will never be complete gets a
 * moment, because its last bytes may not have been read yet. */
static int has_hung_up(const struct connection *c)
{
    const uint64_t moment_ns = 100000000;
    if (!c->hang_up_ns)
        return 0;
    if (c->request && c->request->state != READING)
        return c->request->api.work != WORK_NONE;
    return c->server->now_ns - c->hang_up_ns > moment_ns;
}

static void enforce_deadlines(struct connection *c)
{
    struct http_server *server = c->server;
    uint64_t now = server->now_ns;
    struct request *request = c->request;
    if (c->idle_deadline_ns && !c->head_deadline_ns && received_bytes(c->fd) > c->idle_bytes)
        c->head_deadline_ns = now + server->limits.head_deadline_ns; /* the next request has begun */
    if (has_hung_up(c) || has_passed(c->head_deadline_ns, now) || has_passed(c->idle_deadline_ns, now) ||
        has_passed(c->close_deadline_ns, now) || (request && has_passed(request->response_deadline_ns, now))) {
        if (!request || request->state != DEAD)
            kill_connection(c);
    } else if (request && has_passed(c->body_deadline_ns, now)) {
        struct api_error error;
        api_refuse(&error, 408, "request_timeout", NULL, "the body did not arrive in time");
        refuse_rudely(c, &error);
    } else if (request && request->is_streaming && !request->has_ended && !request->stream.length &&
               now - request->last_piece_ns >= server->limits.keep_alive_ns && request->api.work == WORK_CHAT) {
        api_chat_keep_alive(&request->api);
    }
}

/* ---- the server ---- */

static void set_default(uint64_t *value, uint64_t fallback)
{
    if (!*value)
        *value = fallback;
}

static struct http_limits with_defaults(struct http_limits l)
{
    const uint64_t second = 1000000000;
    const size_t mib = 1 << 20;
    l.head_bytes_max = l.head_bytes_max ? l.head_bytes_max : 32 << 10;
    l.body_bytes_max = l.body_bytes_max ? l.body_bytes_max : 32 * mib;
    l.bodies_bytes_max = l.bodies_bytes_max ? l.bodies_bytes_max : 128 * mib;
    l.stream_bytes_max = l.stream_bytes_max ? l.stream_bytes_max : mib;
    l.socket_bytes = l.socket_bytes ? l.socket_bytes : 256 << 10;
    l.connections_max = l.connections_max ? l.connections_max : 1024;
    set_default(&l.head_deadline_ns, 10 * second);
    set_default(&l.body_deadline_ns, 60 * second);
    set_default(&l.idle_deadline_ns, 75 * second);
    set_default(&l.response_deadline_ns, 600 * second);
    set_default(&l.keep_alive_ns, 10 * second);
    return l;
}

static int is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

static int port_of(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &length))
        return 0;
    return ntohs(address.ss_family == AF_INET ? ((struct sockaddr_in *)(void *)&address)->sin_port
                                              : ((struct sockaddr_in6 *)(void *)&address)->sin6_port);
}

static enum status open_listener(struct http_server *server, struct error *err)
{
    const char *address = server->config.bind_address ? server->config.bind_address : "127.0.0.1";
    char port[16];
    snprintf(port, sizeof port, "%d", server->config.port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE}, *found;
    int failure = getaddrinfo(address, port, &hints, &found), one = 1;
    if (failure)
        return error_set(err, STATUS_INVALID, "http: '%s' is not an address to listen on (%s)", address, gai_strerror(failure));
    server->listen_fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    enum status status = STATUS_OK;
    if (server->listen_fd < 0 || setsockopt(server->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
        bind(server->listen_fd, found->ai_addr, found->ai_addrlen) || listen(server->listen_fd, 256))
        status = error_errno(err, STATUS_IO, "http: cannot listen on %s port %d", address, server->config.port);
    server->names = (struct http_names){is_loopback(found->ai_addr), server->config.allowed_hosts, server->config.n_allowed_hosts};
    server->port = status ? 0 : port_of(server->listen_fd);
    freeaddrinfo(found);
    return status;
}

static enum status start_daemon(struct http_server *server, struct error *err)
{
    size_t pool = server->limits.head_bytes_max * CONNECTION_POOL_FACTOR;
    server->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, server, MHD_OPTION_LISTEN_SOCKET,
                                      server->listen_fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)server->limits.connections_max,
                                      MHD_OPTION_CONNECTION_MEMORY_LIMIT, pool, MHD_OPTION_NOTIFY_COMPLETED, on_completed, server,
                                      MHD_OPTION_NOTIFY_CONNECTION, on_connection, server, MHD_OPTION_END);
    if (!server->daemon)
        return error_errno(err, STATUS_IO, "http: the server does not start");
    int library_fd = MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (server->epoll_fd < 0 || epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, library_fd, &event))
        return error_errno(err, STATUS_IO, "http: epoll");
    return STATUS_OK;
}

static int longest_token(const struct tokenizer *tokenizer)
{
    size_t longest = 1, length;
    for (int id = 0; id < tokenizer_size(tokenizer); id++)
        if (tokenizer_token_bytes(tokenizer, id, &length) && length > longest)
            longest = length;
    return (int)longest;
}

enum status http_server_open(struct http_server **out, const struct http_server_config *config, struct cluster *cluster, struct error *err)
{
    struct http_server *server = *out = xcalloc(1, sizeof *server);
    server->config = *config;
    server->limits = with_defaults(config->limits);
    if (!config->token_bytes_max)
        server->config.token_bytes_max = longest_token(config->tokenizer);
    server->cluster = cluster;
    server->epoll_fd = server->listen_fd = -1;
    enum status status = open_listener(server, err);
    if (!status)
        status = start_daemon(server, err);
    if (status)
        http_server_close(out);
    return status;
}

void http_server_close(struct http_server **slot)
{
    struct http_server *server = *slot;
    if (!server)
        return;
    server->out = NULL; /* nobody to tell */
    for (struct connection *c = server->connections; c; c = c->next)
        kill_connection(c);
    if (server->daemon) {
        MHD_run(server->daemon); /* takes the woken connections back, which stopping requires */
        MHD_stop_daemon(server->daemon);
    } else if (server->listen_fd >= 0) {
        close(server->listen_fd);
    }
    if (server->epoll_fd >= 0)
        close(server->epoll_fd);
    free(server);
    *slot = NULL;
}

int http_server_port(const struct http_server *server)
{
    return server->port;
}

int http_server_fd(const struct http_server *server)
{
    return server->epoll_fd;
}

int http_server_timeout_ms(struct http_server *server)
{
    MHD_UNSIGNED_LONG_LONG timeout;
    int ms = server->connections || server->drain_deadline_ns ? SWEEP_MS : SLEEP_MS_MAX;
    return MHD_get_timeout(server->daemon, &timeout) == MHD_YES && timeout < (unsigned)ms ? (int)timeout : ms;
}

int http_server_n_active(const struct http_server *server)
{
    return server->n_active;
}

static void note_hang_ups(struct http_server *server)
{
    struct epoll_event events[64];
    int n = epoll_wait(server->epoll_fd, events, sizeof events / sizeof *events, 0);
    for (int i = 0; i < n; i++)
        if (events[i].data.ptr)
            ((struct connection *)events[i].data.ptr)->hang_up_ns = server->now_ns;
}

static void end_what_still_runs(struct http_server *server)
{
    struct api_error error;
    api_refuse(&error, 503, "shutting_down", NULL, "the coordinator is shutting down");
    error.retry_after_s = 10;
    for (struct connection *c = server->connections; c; c = c->next)
        if (c->request && c->request->api.work) {
            enum api_work work = c->request->api.work;
            api_work_cancel(&c->request->api);
            if (work == WORK_CHAT)
                api_chat_fail(&c->request->api, &error);
            else
                api_logits_fail(&c->request->api, &error);
        }
}

void http_server_run(struct http_server *server, uint64_t now_ns, struct outbox *out)
{
    server->now_ns = now_ns;
    server->out = out;
    note_hang_ups(server);
    for (struct connection *c = server->connections; c; c = c->next)
        enforce_deadlines(c);
    if (has_passed(server->drain_deadline_ns, now_ns))
        end_what_still_runs(server);
    MHD_run(server->daemon);
    for (struct connection *c = server->connections; c; c = c->next)
        if (c->hang_up_ns && c->request && c->request->api.work)
            kill_connection(c); /* it had gone before its request was read */
    server->out = NULL;
}

static struct request *find_request(struct http_server *server, uint64_t cluster_id)
{
    for (struct connection *c = server->connections; c; c = c->next)
        if (c->request && c->request->api.work && c->request->api.cluster_id == cluster_id)
            return c->request;
    return NULL;
}

void http_server_on_events(struct http_server *server, uint64_t now_ns, struct outbox *out)
{
    struct cluster_event event;
    server->now_ns = now_ns;
    server->out = out;
    while (cluster_next_event(server->cluster, &event)) {
        struct request *request = find_request(server, event.request);
        if (!request)
            continue; /* cancelled in this same call */
        request->api.now_ns = now_ns;
        request->api.out = out;
        if (request->api.work == WORK_CHAT)
            api_chat_on_event(&request->api, &event);
        else
            api_logits_on_event(&request->api, &event);
    }
    MHD_run(server->daemon); /* what was written goes out now */
    server->out = NULL;
}

void http_server_drain(struct http_server *server, uint64_t deadline_ns)
{
    if (!server->drain_deadline_ns) {
        int fd = MHD_quiesce_daemon(server->daemon);
        if (fd >= 0)
            close(fd);
    }
    server->drain_deadline_ns = deadline_ns;
}

int http_server_is_drained(const struct http_server *server)
{
    const uint64_t last_words_ns = 1000000000; /* for errors to be read */
    if (!server->drain_deadline_ns)
        return 0;
    if (server->now_ns > server->drain_deadline_ns + last_words_ns)
        return 1;
    for (const struct connection *c = server->connections; c; c = c->next)
        if (c->request)
            return 0;
    return 1;
}
