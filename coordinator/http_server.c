/* Connections, their deadlines, and what the loop calls. */
#include "coordinator/http_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/log.h"
#include "common/sockets.h"
#include "coordinator/http_internal.h"

/* A head larger than http_limits.head_bytes_max but within this gets our own 431, beyond it the library's. The same pool holds the read
 * buffer. */
enum { CONNECTION_POOL_FACTOR = 3 };

enum { CONNECTIONS_WAITING = 256 }; /* in the kernel */

/* How long the loop may sleep while connections exist: the precision of the deadlines below. */
enum { SWEEP_MS = 100, SLEEP_MS_MAX = 1000 };

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
        http_request_free(c->request);
    epoll_ctl(server->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    *(c->previous ? &c->previous->next : &server->connections) = c->next;
    if (c->next)
        c->next->previous = c->previous;
    free(c);
    *slot = NULL;
}

void http_connection_kill(struct connection *c)
{
    c->head_deadline_ns = c->body_deadline_ns = c->idle_deadline_ns = c->close_deadline_ns = 0;
    shutdown(c->fd, SHUT_RDWR);
    if (!c->request)
        return;
    api_work_cancel(&c->request->api);
    c->request->response_deadline_ns = 0;
    c->request->state = DEAD;
    http_request_wake(c->request);
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
    if (c->idle_deadline_ns && !c->head_deadline_ns && http_received_bytes(c->fd) > c->idle_bytes)
        c->head_deadline_ns = now + server->limits.head_deadline_ns; /* the next request has begun */
    if (has_hung_up(c) || has_passed(c->head_deadline_ns, now) || has_passed(c->idle_deadline_ns, now) ||
        has_passed(c->close_deadline_ns, now) || (request && has_passed(request->response_deadline_ns, now))) {
        if (!request || request->state != DEAD)
            http_connection_kill(c);
    } else if (request && has_passed(c->body_deadline_ns, now)) {
        struct api_error error;
        api_refuse(&error, 408, "request_timeout", NULL, "the body did not arrive in time");
        http_refuse_rudely(c, &error);
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

static enum status open_listener(struct http_server *server, struct error *err)
{
    const char *address = server->config.listen ? server->config.listen : "127.0.0.1:0";
    if (socket_listen(&server->listen_fd, address, CONNECTIONS_WAITING, err))
        return error_wrap(err, "--listen");
    server->port = socket_port(server->listen_fd);
    server->names =
        (struct http_names){socket_is_loopback(server->listen_fd), server->config.allowed_hosts, server->config.n_allowed_hosts};
    if (!server->names.is_loopback && !server->config.api_key)
        log_line(LOG_WARNING, "listening on %s without an API key (--api-key-file): whoever reaches it can ask", address);
    return STATUS_OK;
}

static enum status start_daemon(struct http_server *server, struct error *err)
{
    size_t pool = server->limits.head_bytes_max * CONNECTION_POOL_FACTOR;
    server->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, http_on_request, server, MHD_OPTION_LISTEN_SOCKET, server->listen_fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)server->limits.connections_max, MHD_OPTION_CONNECTION_MEMORY_LIMIT, pool,
        MHD_OPTION_NOTIFY_COMPLETED, http_on_completed, server, MHD_OPTION_NOTIFY_CONNECTION, on_connection, server, MHD_OPTION_END);
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
        http_connection_kill(c);
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
            http_connection_kill(c); /* it had gone before its request was read */
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
