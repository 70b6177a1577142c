/* Answers, whole and in pieces, and the work in the cluster behind them. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "common/check.h"
#include "common/log.h"
#include "coordinator/http_internal.h"

static struct request *request_of(struct api_request *api)
{
    return (struct request *)api; /* its first member */
}

int http_origin_is_allowed(const struct http_server *server, const char *origin)
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
    if (request->origin && http_origin_is_allowed(request->server, request->origin)) {
        MHD_add_response_header(response, "Access-Control-Allow-Origin", request->origin);
        MHD_add_response_header(response, "Vary", "Origin");
    }
    if (request->must_close || request->server->drain_deadline_ns)
        MHD_add_response_header(response, "Connection", "close");
}

void http_request_wake(struct request *request)
{
    if (!request->is_suspended)
        return;
    request->is_suspended = 0;
    MHD_resume_connection(request->connection->mhd);
}

void http_request_set_response(struct request *request, int http_status, struct MHD_Response *response)
{
    CHECK(!request->response);
    add_common_headers(request, response);
    request->response = response;
    request->http_status = http_status;
    request->state = REPLIED;
    http_request_wake(request);
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
    http_request_set_response(request, http_status, response_of_json(body));
}

void http_request_refuse(struct request *request, const struct api_error *error, const char *allow)
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
    http_request_set_response(request, error->http_status, response);
}

void api_reply_error(struct api_request *api, const struct api_error *error)
{
    http_request_refuse(request_of(api), error, NULL);
}

/* The library asks for bytes of a stream. With none there it leaves the connection alone until http_request_wake(). */
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
    http_request_set_response(request, 200, response);
}

void api_stream(struct api_request *api, const char *bytes, size_t length)
{
    struct request *request = request_of(api);
    if (request->state == DEAD || !length)
        return;
    size_t unread = request->stream.length - request->stream_read;
    if (api->work != WORK_LOGITS && unread + length > request->server->limits.stream_bytes_max) { /* logits bound themselves */
        log_line(LOG_WARNING, "api: a client that does not read its answer was dropped with %zu bytes waiting", unread);
        http_connection_kill(request->connection);
        return;
    }
    if (request->stream_read > unread) { /* what was read makes room for what was not */
        memmove(request->stream.bytes, request->stream.bytes + request->stream_read, unread);
        request->stream.length = unread;
        request->stream_read = 0;
    }
    text_append(&request->stream, bytes, length);
    request->last_piece_ns = request->server->now_ns;
    http_request_wake(request);
}

void api_stream_end(struct api_request *api)
{
    struct request *request = request_of(api);
    request->has_ended = 1;
    request->response_deadline_ns = request->server->now_ns + request->server->limits.response_deadline_ns;
    http_request_wake(request);
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
