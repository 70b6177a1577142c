/* Requests: what their heads decide, their bodies, and which route answers. */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "common/check.h"
#include "coordinator/http_internal.h"

/* A client that sends more than it may is listened to for this many times the limit, so that it reads the refusal instead of a reset. */
enum { DISCARD_FACTOR = 4 };

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

void http_request_free(struct request *request)
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
    if (head->origin && !is_own_origin(head->origin, head->host) && !http_origin_is_allowed(server, head->origin))
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
    if (request->origin && http_origin_is_allowed(request->server, request->origin)) {
        MHD_add_response_header(response, "Access-Control-Allow-Methods", route ? allowed_methods(route) : "OPTIONS");
        MHD_add_response_header(response, "Access-Control-Allow-Headers", "Authorization, Content-Type");
        MHD_add_response_header(response, "Access-Control-Max-Age", "600");
    }
    request->has_ended = 1;
    http_request_set_response(request, 204, response);
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
        http_request_refuse(request, &request->refusal, request->refusal.http_status == 405 ? allowed_methods(route) : NULL);
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

void http_refuse_rudely(struct connection *c, const struct api_error *error)
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
        http_refuse_rudely(request->connection, &request->refusal);
}

static struct connection *connection_of(struct MHD_Connection *mhd)
{
    return MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

/* The library's callback: the head, each piece of the body, its end, and again after every http_request_wake(). */
enum MHD_Result http_on_request(void *context, struct MHD_Connection *mhd, const char *url, const char *method, const char *version,
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

uint64_t http_received_bytes(int fd)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) ? 0 : info.tcpi_bytes_received;
}

void http_on_completed(void *context, struct MHD_Connection *mhd, void **request_slot, enum MHD_RequestTerminationCode code)
{
    (void)context, (void)code;
    struct connection *c = connection_of(mhd);
    if (*request_slot)
        http_request_free(*request_slot);
    *request_slot = NULL;
    c->body_deadline_ns = 0;
    c->idle_deadline_ns = c->server->now_ns + c->server->limits.idle_deadline_ns;
    c->idle_bytes = http_received_bytes(c->fd);
}
