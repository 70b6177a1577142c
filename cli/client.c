#include "cli/client.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/memory.h"

/* A long prompt may be computed for a long time before the first byte, when the answer is not streamed; a stream says something every 10 s.
 */
static const uint64_t CONNECT_NS = UINT64_C(10000000000), HEAD_NS = UINT64_C(3600000000000), SILENCE_NS = UINT64_C(120000000000);

enum { BUFFER_BYTES = 1 << 16, HEAD_BYTES_MAX = 1 << 16, ERROR_BODY_BYTES_MAX = 1 << 20, JSON_BODY_BYTES_MAX = 64 << 20, POLL_MS = 200 };

int client_is_url(const char *text)
{
    return strstr(text, "://") != NULL;
}

static enum status read_key(struct client *client, const char *path, struct error *err)
{
    enum { KEY_FILE_BYTES_MAX = 4096 };
    char *bytes;
    size_t length;
    enum status status = file_read_all(&bytes, &length, path, KEY_FILE_BYTES_MAX, err);
    if (status)
        return status;
    bytes[strcspn(bytes, "\r\n")] = 0;
    client->key = bytes;
    for (const char *c = bytes; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7e)
            return error_set(err, STATUS_INVALID, "%s: the API key has characters that cannot be sent", path);
    return *bytes ? STATUS_OK : error_set(err, STATUS_INVALID, "%s: the first line must be the API key", path);
}

enum status client_init(struct client *client, const char *url, const char *key_file, struct error *err)
{
    *client = (struct client){0};
    static const char scheme[] = "http://";
    if (strncasecmp(url, scheme, sizeof scheme - 1))
        return error_set(err, STATUS_INVALID, "'%s': must be http://HOST:PORT (encrypted connections are not supported here)", url);
    const char *host = url + sizeof scheme - 1;
    size_t length = *host == '[' ? strcspn(host, "]/") + (host[strcspn(host, "]/")] == ']') : strcspn(host, ":/");
    const char *port = host[length] == ':' ? host + length + 1 : "80", *path = host + strcspn(host, "/");
    size_t port_length = host[length] == ':' ? strcspn(port, "/") : 2;
    if (!length || (*host == '[' && host[length - 1] != ']') || !port_length || strspn(port, "0123456789") < port_length ||
        (host[length] && host[length] != ':' && host[length] != '/') || strpbrk(url, " \r\n\t@?#"))
        return error_set(err, STATUS_INVALID, "'%s': must be http://HOST:PORT", url);
    if (*path && strcmp(path, "/") && strcmp(path, "/v1") && strcmp(path, "/v1/"))
        return error_set(err, STATUS_INVALID, "'%s': nothing may follow the port but /v1", url);
    client->host = xasprintf("%.*s", (int)length, host);
    client->port = xasprintf("%.*s", (int)port_length, port);
    return key_file ? read_key(client, key_file, err) : STATUS_OK;
}

void client_release(struct client *client)
{
    free(client->host);
    free(client->port);
    free(client->key);
    *client = (struct client){0};
}

/* ---- one exchange ---- */

struct exchange {
    const struct client *client;
    const struct client_request *request;
    int fd;
    char buffer[BUFFER_BYTES];
    size_t begin, end; /* bytes that were received and not used */
    int status;
    int is_chunked, has_length;
    size_t length;
    struct text error_body;
};

static enum status wait_for(const struct exchange *x, short events, uint64_t limit_ns, const char *what, struct error *err)
{
    uint64_t deadline = clock_now_ns(clock_monotonic()) + limit_ns;
    struct pollfd fd = {x->fd, events, 0};
    while (clock_now_ns(clock_monotonic()) < deadline) {
        int n = poll(&fd, 1, POLL_MS);
        if (x->client->interrupted && *x->client->interrupted)
            return error_set(err, STATUS_CANCELLED, "interrupted");
        if (n > 0)
            return STATUS_OK;
        if (n < 0 && errno != EINTR)
            return error_errno(err, STATUS_IO, "poll");
    }
    return error_set(err, STATUS_TIMEOUT, "%s:%s: %s within %.0f s", x->client->host, x->client->port, what, (double)limit_ns / 1e9);
}

static enum status connect_one(struct exchange *x, const struct addrinfo *to, struct error *err)
{
    int failure = 0;
    socklen_t length = sizeof failure;
    x->fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (x->fd < 0)
        return error_errno(err, STATUS_IO, "socket");
    enum status status = STATUS_OK;
    if (connect(x->fd, to->ai_addr, to->ai_addrlen)) {
        failure = errno;
        if (failure == EINPROGRESS)
            status = wait_for(x, POLLOUT, CONNECT_NS, "no connection", err);
        if (!status && failure == EINPROGRESS && getsockopt(x->fd, SOL_SOCKET, SO_ERROR, &failure, &length))
            failure = errno;
        errno = failure;
    }
    if (!status && failure)
        status = error_errno(err, STATUS_IO, "cannot connect to %s port %s", x->client->host, x->client->port);
    if (status) {
        close(x->fd);
        x->fd = -1;
    }
    return status;
}

static enum status connect_any(struct exchange *x, struct error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    char host[256];
    size_t n = strlen(x->client->host), is_bracketed = x->client->host[0] == '[' && n > 2;
    snprintf(host, sizeof host, "%.*s", (int)(n - 2 * is_bracketed), x->client->host + is_bracketed);
    int failure = getaddrinfo(host, x->client->port, &hints, &found);
    if (failure)
        return error_set(err, STATUS_NOT_FOUND, "'%s' is not known: %s", host, gai_strerror(failure));
    enum status status = STATUS_IO;
    for (const struct addrinfo *a = found; a && status && status != STATUS_CANCELLED; a = a->ai_next)
        status = connect_one(x, a, err);
    freeaddrinfo(found);
    return status;
}

static enum status send_all(struct exchange *x, const char *bytes, size_t length, struct error *err)
{
    while (length) {
        enum status status = wait_for(x, POLLOUT, SILENCE_NS, "nothing more could be sent", err);
        if (status)
            return status;
        ssize_t n = send(x->fd, bytes, length, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return errno == EPIPE || errno == ECONNRESET ? STATUS_OK
                                                         : error_errno(err, STATUS_IO, "send"); /* a refusal may be there to read */
        if (n > 0) {
            bytes += n;
            length -= (size_t)n;
        }
    }
    return STATUS_OK;
}

static enum status send_request(struct exchange *x, struct error *err)
{
    const struct client *c = x->client;
    char *body = x->request->body ? json_dumps(x->request->body, JSON_COMPACT) : NULL;
    char *length = body ? xasprintf("Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body)) : xstrdup("");
    char *head = xasprintf("%s %s HTTP/1.1\r\nHost: %s:%s\r\nUser-Agent: hearth/%s\r\nConnection: close\r\n%s%s%s%s\r\n",
                           body ? "POST" : "GET", x->request->path, c->host, c->port, HEARTH_VERSION,
                           c->key ? "Authorization: Bearer " : "", c->key ? c->key : "", c->key ? "\r\n" : "", length);
    enum status status = send_all(x, head, strlen(head), err);
    if (!status && body)
        status = send_all(x, body, strlen(body), err);
    free(body);
    free(head);
    free(length);
    return status;
}

/* Receives some bytes behind those that are there; 0 bytes: the end. */
static enum status receive(struct exchange *x, uint64_t limit_ns, size_t *n, struct error *err)
{
    if (x->begin == x->end)
        x->begin = x->end = 0;
    if (x->end == sizeof x->buffer) {
        memmove(x->buffer, x->buffer + x->begin, x->end - x->begin);
        x->end -= x->begin;
        x->begin = 0;
    }
    if (x->end == sizeof x->buffer)
        return error_set(err, STATUS_INVALID, "%s:%s: a line is too long", x->client->host, x->client->port);
    for (;;) {
        enum status status = wait_for(x, POLLIN, limit_ns, "no answer", err);
        if (status)
            return status;
        ssize_t got = recv(x->fd, x->buffer + x->end, sizeof x->buffer - x->end, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (got < 0)
            return error_errno(err, STATUS_IO, "%s:%s: the connection broke", x->client->host, x->client->port);
        x->end += (size_t)got;
        *n = (size_t)got;
        return STATUS_OK;
    }
}

/* A line without its end, zero-terminated, in the buffer: valid until the next call. */
static enum status read_line(struct exchange *x, uint64_t limit_ns, char **line, struct error *err)
{
    size_t n;
    for (;;) {
        char *end = memchr(x->buffer + x->begin, '\n', x->end - x->begin);
        if (end) {
            *line = x->buffer + x->begin;
            x->begin = (size_t)(end + 1 - x->buffer);
            *end = 0;
            if (end > *line && end[-1] == '\r')
                end[-1] = 0;
            return STATUS_OK;
        }
        enum status status = receive(x, limit_ns, &n, err);
        if (status)
            return status;
        if (!n)
            return error_set(err, STATUS_IO, "%s:%s: the connection was closed before the answer was complete", x->client->host,
                             x->client->port);
    }
}

static enum status read_head(struct exchange *x, struct error *err)
{
    char *line = NULL, *end;
    size_t bytes = 0;
    enum status status = read_line(x, HEAD_NS, &line, err);
    if (status)
        return status;
    if (sscanf(line, "HTTP/1.%*1d %3d", &x->status) != 1)
        return error_set(err, STATUS_INVALID, "%s:%s does not speak HTTP", x->client->host, x->client->port);
    while (!(status = read_line(x, SILENCE_NS, &line, err)) && *line) {
        if ((bytes += strlen(line)) > HEAD_BYTES_MAX)
            return error_set(err, STATUS_INVALID, "%s:%s: the answer's head is too large", x->client->host, x->client->port);
        char *value = strchr(line, ':');
        if (!value)
            continue;
        *value++ = 0;
        value += strspn(value, " \t");
        if (!strcasecmp(line, "Transfer-Encoding"))
            x->is_chunked = !strcasecmp(value, "chunked");
        if (!strcasecmp(line, "Content-Length")) {
            x->has_length = 1;
            x->length = strtoull(value, &end, 10);
            if (*end || strspn(value, "0123456789") != strlen(value) || !*value)
                return error_set(err, STATUS_INVALID, "%s:%s: Content-Length is no number", x->client->host, x->client->port);
        }
    }
    return status;
}

static enum status take(struct exchange *x, const char *bytes, size_t length, struct error *err)
{
    if (x->status / 100 == 2 || (x->status == 503 && x->request->accepts_503))
        return x->request->on_body(x->request->context, bytes, length, err);
    if (x->error_body.length + length <= ERROR_BODY_BYTES_MAX)
        text_append(&x->error_body, bytes, length);
    return STATUS_OK;
}

/* Takes `length` bytes, or all until the end when it is SIZE_MAX. */
static enum status read_bytes(struct exchange *x, size_t length, struct error *err)
{
    while (length) {
        size_t here = x->end - x->begin, n = here < length ? here : length, got = 0;
        enum status status = n ? take(x, x->buffer + x->begin, n, err) : receive(x, SILENCE_NS, &got, err);
        if (status)
            return status;
        x->begin += n;
        if (length != SIZE_MAX)
            length -= n;
        if (!n && !got)
            return length == SIZE_MAX ? STATUS_OK
                                      : error_set(err, STATUS_IO, "%s:%s: the connection was closed before the answer was complete",
                                                  x->client->host, x->client->port);
    }
    return STATUS_OK;
}

static enum status read_chunks(struct exchange *x, struct error *err)
{
    char *line = NULL, *end;
    for (;;) {
        enum status status = read_line(x, SILENCE_NS, &line, err);
        if (status)
            return status;
        unsigned long long n = strtoull(line, &end, 16);
        if (end == line || n > SIZE_MAX / 2)
            return error_set(err, STATUS_INVALID, "%s:%s: broken chunk", x->client->host, x->client->port);
        if (!n)
            return STATUS_OK;
        status = read_bytes(x, (size_t)n, err);
        if (!status)
            status = read_line(x, SILENCE_NS, &line, err); /* the line end behind the chunk */
        if (status)
            return status;
    }
}

static enum status read_body(struct exchange *x, struct error *err)
{
    if (x->is_chunked)
        return read_chunks(x, err);
    return read_bytes(x, x->has_length ? x->length : SIZE_MAX, err);
}

/* The server's own sentence where it gives one. */
static enum status error_of(const struct exchange *x, struct error *err)
{
    json_t *body = x->error_body.length ? json_loadb(x->error_body.bytes, x->error_body.length, 0, NULL) : NULL;
    const char *message = json_string_value(json_object_get(json_object_get(body, "error"), "message"));
    error_set(err, x->status >= 500 ? STATUS_BUSY : STATUS_INVALID, "%s:%s: %s (HTTP %d)", x->client->host, x->client->port,
              message ? message : "refused", x->status);
    json_decref(body);
    return err->status;
}

enum status client_send(const struct client *client, const struct client_request *request, struct error *err)
{
    struct exchange *x = xcalloc(1, sizeof *x);
    *x = (struct exchange){.client = client, .request = request, .fd = -1};
    enum status status = connect_any(x, err);
    if (!status)
        status = send_request(x, err);
    do { /* 100 Continue and the like are followed by the answer */
        if (!status)
            status = read_head(x, err);
    } while (!status && x->status / 100 == 1);
    if (!status)
        status = read_body(x, err);
    if (!status && x->status / 100 != 2 && !(x->status == 503 && request->accepts_503))
        status = error_of(x, err);
    if (x->fd >= 0)
        close(x->fd);
    text_free(&x->error_body);
    free(x);
    return status;
}

static enum status collect(void *context, const char *bytes, size_t length, struct error *err)
{
    struct text *text = context;
    if (text->length + length > JSON_BODY_BYTES_MAX)
        return error_set(err, STATUS_INVALID, "the answer is too large");
    text_append(text, bytes, length);
    return STATUS_OK;
}

enum status client_get_json(const struct client *client, const char *path, json_t **out, struct error *err)
{
    struct text body = {0};
    json_error_t where;
    *out = NULL;
    enum status status = client_send(client, &(struct client_request){.path = path, .on_body = collect, .context = &body}, err);
    if (!status) {
        *out = json_loadb(body.bytes ? body.bytes : "", body.length, 0, &where);
        if (!*out)
            status = error_set(err, STATUS_INVALID, "%s:%s%s: %s", client->host, client->port, path, where.text);
    }
    text_free(&body);
    return status;
}
