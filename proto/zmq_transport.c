#include "proto/zmq_transport.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/memory.h"
#include "proto/peer_table.h"
#include "proto/send_queue.h"
#include "proto/sockets.h"
#include "proto/wire_rules.h"
#include "proto/zap.h"

enum {
    DROPS_PER_CALL = 64,      /* of receive, so that a flood of rubbish cannot hold the caller */
    CONTROL_BEFORE_ROWS = 16, /* control messages go first, but not for ever */
    MONITOR_EVENTS_HWM = 4096,
    ENDPOINT_TEXT_BYTES = 256,
    RETRY_NS = 2000000, /* for what is queued */
};

/* ZeroMQ gives up on a connection for good after some protocol errors, and does not say so. A connecting socket that could not have sent
 * for this long is made anew. */
#define STUCK_NS UINT64_C(5000000000)

/* A socket that connects, and what waits for it. */
struct connection {
    void *socket; /* NULL: not connected to anything */
    enum socket_kind kind;
    char endpoint[ENDPOINT_TEXT_BYTES], key[PEER_KEY_BYTES];
    uint64_t writable_ns; /* when it last could have sent */
    struct send_queue queue;
};

struct zmq_transport {
    struct transport base;
    enum transport_role role;
    int plaintext;
    struct key_pair keys;
    void *context;
    struct zap zap;
    void *control_bound, *rows_bound; /* control_bound: coordinator only */
    void *monitors[2];                /* of the bound sockets */
    struct connection coordinator;    /* node only */
    struct connection next;
    char control_endpoint[ENDPOINT_TEXT_BYTES], row_endpoint[ENDPOINT_TEXT_BYTES];
    uint8_t routing_id[ROUTING_ID_BYTES];
    struct peer_table peers; /* coordinator only */
    int epoll_fd, again_fd, retry_fd;
    int control_streak;
    struct frames frames; /* the message that is out */
    void *aligned;        /* [ROW_MESSAGE_BYTES_MAX], allocated when first needed */
    struct transport_counters counters;
};

/* ---- descriptors ---- */

static enum status watch(struct zmq_transport *t, int fd, struct error *err)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, fd, &event) ? error_errno(err, STATUS_IO, "cannot watch a socket") : STATUS_OK;
}

/* Makes the descriptor readable until the next receive. */
static void wake(struct zmq_transport *t)
{
    uint64_t one = 1;
    ssize_t wrote = write(t->again_fd, &one, sizeof one);
    (void)wrote; /* fails only when it is readable already */
}

static void unwake(int fd)
{
    uint64_t count;
    ssize_t got = read(fd, &count, sizeof count);
    (void)got; /* fails only when it was not readable */
}

/* While something is queued we try again by the clock: any call on a socket may take the news that it is writable, and a ROUTER does not
 * say which peer is. */
static void retry_soon(struct zmq_transport *t)
{
    const struct itimerspec soon = {.it_value.tv_nsec = RETRY_NS};
    CHECK(!timerfd_settime(t->retry_fd, 0, &soon, NULL));
}

/* A ZeroMQ descriptor tells of a change once, and any call on the socket may take the news. */
static void wake_if_readable(struct zmq_transport *t, void *socket)
{
    if (socket_events(socket) & ZMQ_POLLIN)
        wake(t);
}

/* ---- connections ---- */

/* An endpoint, or one whose port is *. ZeroMQ itself takes 99999 for another port. */
static enum status check_endpoint(const char *what, const char *endpoint, int may_be_any_port, struct error *err)
{
    char text[ENDPOINT_BYTES_MAX + 8];
    size_t length = endpoint ? strlen(endpoint) : 0;
    snprintf(text, sizeof text, "%s", length && length <= ENDPOINT_BYTES_MAX ? endpoint : "");
    if (may_be_any_port && length > 2 && !strcmp(text + strlen(text) - 2, ":*"))
        text[strlen(text) - 1] = '1';
    return wire_is_endpoint(text)
               ? STATUS_OK
               : error_set(err, STATUS_INVALID, "the %s endpoint '%.140s' is not tcp://host:port", what, endpoint ? endpoint : "");
}

static void connection_close(struct zmq_transport *t, struct connection *c)
{
    if (c->socket) {
        epoll_ctl(t->epoll_fd, EPOLL_CTL_DEL, socket_fd(c->socket), NULL);
        zmq_close(c->socket);
    }
    c->socket = NULL;
}

static enum status connection_open(struct zmq_transport *t, struct connection *c, struct error *err)
{
    const struct socket_security security = {t->plaintext ? NULL : &t->keys, c->key,
                                             c->kind == SOCKET_CONTROL_CONNECTED ? t->routing_id : NULL};
    enum status status = socket_open(&c->socket, t->context, c->kind, c->endpoint, &security, err);
    c->writable_ns = clock_now_ns(clock_monotonic());
    return status ? status : watch(t, socket_fd(c->socket), err);
}

static enum status connection_set(struct zmq_transport *t, struct connection *c, const char *endpoint, const char *key, struct error *err)
{
    connection_close(t, c);
    send_queue_clear(&c->queue);
    if (!endpoint)
        return STATUS_OK;
    enum status status = check_endpoint("next", endpoint, 0, err);
    if (status)
        return status;
    if (!t->plaintext && (!key || !wire_is_key(key)))
        return error_set(err, STATUS_INVALID, "%s: the key that must be there is missing; both ends need keys, or both plaintext",
                         endpoint);
    memcpy(c->endpoint, endpoint, strlen(endpoint) + 1);
    memset(c->key, 0, sizeof c->key);
    if (!t->plaintext)
        memcpy(c->key, key, PEER_KEY_BYTES);
    return connection_open(t, c, err);
}

static void connection_flush(struct connection *c)
{
    for (const struct queued_message *m; c->socket && (m = send_queue_first(&c->queue)); send_queue_pop(&c->queue))
        if (socket_send(c->socket, NULL, 0, m->bytes, m->header_bytes, m->rows_bytes ? m->bytes + m->header_bytes : NULL, m->rows_bytes) ==
            SENT_NOT_NOW)
            return;
}

static void connection_tend(struct zmq_transport *t, struct connection *c, uint64_t now_ns)
{
    if (!c->socket)
        return;
    if (socket_events(c->socket) & ZMQ_POLLOUT) {
        c->writable_ns = now_ns;
        connection_flush(c);
    } else if (now_ns - c->writable_ns > STUCK_NS) {
        struct error err;
        connection_close(t, c);
        t->counters.reconnects++;
        if (connection_open(t, c, &err))
            log_line(LOG_WARNING, "cannot connect anew: %s", err.text);
    }
}

/* ---- peers ---- */

static enum sent peer_push(struct zmq_transport *t, struct node_peer *p, const uint8_t *header, size_t header_bytes, const void *rows,
                           size_t rows_bytes)
{
    return socket_send(t->control_bound, p->routing_id, p->routing_id_bytes, header, header_bytes, rows_bytes ? rows : NULL, rows_bytes);
}

static void peer_flush(struct zmq_transport *t, struct node_peer *p)
{
    for (const struct queued_message *m; (m = send_queue_first(&p->queue)); send_queue_pop(&p->queue)) {
        enum sent sent = peer_push(t, p, m->bytes, m->header_bytes, m->bytes + m->header_bytes, m->rows_bytes);
        if (sent == SENT_NO_PEER)
            send_queue_clear(&p->queue);
        if (sent != SENT)
            return;
    }
}

/* Returns how many messages still wait. */
static int peers_flush(struct zmq_transport *t)
{
    unsigned n_queued = 0;
    for (struct node_peer *p = t->peers.peers; p < t->peers.peers + PEERS_MAX; n_queued += p++->queue.n)
        peer_flush(t, p);
    return (int)n_queued;
}

/* ---- send ---- */

static struct connection *connection_of(struct zmq_transport *t, int peer, enum channel channel)
{
    if (peer == PEER_NEXT && channel == CHANNEL_ROWS)
        return t->next.socket ? &t->next : NULL;
    return peer == PEER_COORDINATOR && channel == CHANNEL_CONTROL && t->coordinator.socket ? &t->coordinator : NULL;
}

static enum status transport_send(struct transport *base, int peer_number, enum channel channel, const uint8_t *header, size_t header_bytes,
                                  const void *rows, size_t rows_bytes, struct error *err)
{
    struct zmq_transport *t = (struct zmq_transport *)base;
    CHECK(header_bytes && header_bytes <= HEADER_BYTES_MAX && rows_bytes <= ROW_MESSAGE_BYTES_MAX && (rows || !rows_bytes));
    CHECK(channel == CHANNEL_ROWS || !rows_bytes);
    struct connection *c = connection_of(t, peer_number, channel);
    struct node_peer *p = channel == CHANNEL_CONTROL ? peer_table_by_number(&t->peers, peer_number) : NULL;
    struct send_queue *queue = c ? &c->queue : p ? &p->queue : NULL;
    enum sent sent = queue ? SENT_NOT_NOW : SENT_NO_PEER;
    if (c)
        connection_flush(c); /* a caller that is too busy to receive must get rid of its messages all the same */
    else if (p)
        peer_flush(t, p);
    if (queue && !queue->n)
        sent = p ? peer_push(t, p, header, header_bytes, rows, rows_bytes)
                 : socket_send(c->socket, NULL, 0, header, header_bytes, rows_bytes ? rows : NULL, rows_bytes);
    if (queue)
        wake_if_readable(t, p ? t->control_bound : c->socket);
    if (sent == SENT_NO_PEER || (sent == SENT_NOT_NOW && !send_queue_put(queue, header, header_bytes, rows, rows_bytes))) {
        t->counters.queue_full++;
        return error_set(err, STATUS_BUSY, sent == SENT_NO_PEER ? "peer %d is not connected" : "peer %d: its queue is full", peer_number);
    }
    if (sent == SENT_NOT_NOW)
        retry_soon(t);
    t->counters.channels[channel].messages_out++;
    t->counters.channels[channel].bytes_out += header_bytes + rows_bytes;
    return STATUS_OK;
}

/* ---- receive ---- */

/* The receiving end never sends; whatever comes back on a connection for rows is not for us. */
static int drain_next(struct zmq_transport *t)
{
    struct frames frames = {0};
    enum received got = RECEIVED_MALFORMED;
    for (int i = 0; t->next.socket && i < DROPS_PER_CALL && got != RECEIVED_NOTHING; i++) {
        got = socket_receive(t->next.socket, 0, &frames);
        t->counters.malformed += got != RECEIVED_NOTHING;
    }
    frames_release(&frames);
    return t->next.socket && got != RECEIVED_NOTHING;
}

static int read_monitor(struct zmq_transport *t, void *monitor)
{
    for (int i = 0; i < DROPS_PER_CALL; i++) {
        char event[8], address[ENDPOINT_TEXT_BYTES];
        if (zmq_recv(monitor, event, sizeof event, ZMQ_DONTWAIT) < 0)
            return 0;
        zmq_recv(monitor, address, sizeof address, ZMQ_DONTWAIT);
        t->counters.handshakes_failed++;
    }
    return 1;
}

/* Everything that is not a message for the caller. 1: there is more of it. */
static int tend(struct zmq_transport *t, uint64_t now_ns)
{
    int more = zap_answer(&t->zap, now_ns);
    t->counters.keys_refused = t->zap.refused;
    for (int i = 0; i < 2; i++)
        if (t->monitors[i])
            more |= read_monitor(t, t->monitors[i]);
    more |= drain_next(t);
    connection_tend(t, &t->coordinator, now_ns);
    connection_tend(t, &t->next, now_ns);
    int n_queued = peers_flush(t) + (int)(t->coordinator.queue.n + t->next.queue.n);
    if (n_queued)
        retry_soon(t);
    return more;
}

static const void *aligned_rows(struct zmq_transport *t)
{
    const void *data = zmq_msg_data(&t->frames.rows);
    if ((uintptr_t)data % 4 == 0)
        return data;
    if (!t->aligned)
        t->aligned = xrealloc(NULL, ROW_MESSAGE_BYTES_MAX);
    memcpy(t->aligned, data, zmq_msg_size(&t->frames.rows));
    return t->aligned;
}

/* Who sent the message that was just taken; 0: someone who may not. */
static int identify(struct zmq_transport *t, struct packet *packet, uint64_t now_ns)
{
    if (packet->channel == CHANNEL_CONTROL && t->role == ROLE_NODE) {
        packet->peer = PEER_COORDINATOR;
        memcpy(packet->key, t->coordinator.key, PEER_KEY_BYTES); /* CURVE has proved it */
        return 1;
    }
    if (!t->plaintext) {
        const char *key = zmq_msg_gets(&t->frames.header, "User-Id");
        if (!key || strlen(key) != KEY_TEXT_BYTES || !zap_is_trusted(&t->zap, key))
            return 0;
        memcpy(packet->key, key, PEER_KEY_BYTES);
    }
    if (packet->channel == CHANNEL_ROWS) {
        packet->peer = PEER_PREVIOUS;
        return 1;
    }
    const struct node_peer *peer =
        peer_table_of(&t->peers, zmq_msg_data(&t->frames.routing_id), zmq_msg_size(&t->frames.routing_id), packet->key, now_ns);
    packet->peer = peer ? peer->number : 0;
    return peer != NULL;
}

static enum received receive_on(struct zmq_transport *t, enum channel channel, struct packet *packet, uint64_t now_ns)
{
    int is_dealer = channel == CHANNEL_CONTROL && t->role == ROLE_NODE;
    void *socket = channel == CHANNEL_ROWS ? t->rows_bound : is_dealer ? t->coordinator.socket : t->control_bound;
    enum received got = socket ? socket_receive(socket, !is_dealer, &t->frames) : RECEIVED_NOTHING;
    if (got == RECEIVED_MESSAGE && channel == CHANNEL_CONTROL && t->frames.has_rows)
        got = RECEIVED_MALFORMED; /* control messages have one frame */
    t->counters.malformed += got == RECEIVED_MALFORMED;
    if (got != RECEIVED_MESSAGE)
        return got;
    *packet = (struct packet){.channel = channel};
    if (!identify(t, packet, now_ns)) {
        t->counters.untrusted++;
        return RECEIVED_MALFORMED;
    }
    packet->header = zmq_msg_data(&t->frames.header);
    packet->header_bytes = zmq_msg_size(&t->frames.header);
    packet->rows = t->frames.has_rows ? aligned_rows(t) : NULL;
    packet->rows_bytes = t->frames.has_rows ? zmq_msg_size(&t->frames.rows) : 0;
    t->counters.channels[channel].messages_in++;
    t->counters.channels[channel].bytes_in += packet->header_bytes + packet->rows_bytes;
    return RECEIVED_MESSAGE;
}

static int transport_receive(struct transport *base, struct packet *packet)
{
    struct zmq_transport *t = (struct zmq_transport *)base;
    uint64_t now_ns = clock_now_ns(clock_monotonic());
    unwake(t->again_fd);
    unwake(t->retry_fd);
    int more = tend(t, now_ns);
    for (int dropped = 0; dropped < DROPS_PER_CALL;) {
        enum channel first = t->control_streak < CONTROL_BEFORE_ROWS ? CHANNEL_CONTROL : CHANNEL_ROWS, got_on = first;
        enum received got = receive_on(t, first, packet, now_ns);
        if (got == RECEIVED_NOTHING)
            got = receive_on(t, got_on = first == CHANNEL_CONTROL ? CHANNEL_ROWS : CHANNEL_CONTROL, packet, now_ns);
        t->control_streak = got == RECEIVED_NOTHING || got_on == CHANNEL_ROWS ? 0 : t->control_streak + 1;
        if (got == RECEIVED_NOTHING) {
            if (more)
                wake(t);
            return 0;
        }
        if (got == RECEIVED_MESSAGE)
            return 1;
        dropped++;
    }
    wake(t);
    return 0;
}

/* ---- life ---- */

/* The network thread tells of connections that ended before they were known. It waits when nobody reads, so only these events are asked
 * for. */
static enum status monitor_open(struct zmq_transport *t, int index, void *socket, struct error *err)
{
    const char *endpoint = index ? "inproc://hearth-rows" : "inproc://hearth-control";
    int hwm = MONITOR_EVENTS_HWM, linger = 0;
    t->monitors[index] = zmq_socket(t->context, ZMQ_PAIR);
    if (!t->monitors[index] || zmq_setsockopt(t->monitors[index], ZMQ_RCVHWM, &hwm, sizeof hwm) ||
        zmq_setsockopt(t->monitors[index], ZMQ_LINGER, &linger, sizeof linger) ||
        zmq_socket_monitor(socket, endpoint, ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) ||
        zmq_connect(t->monitors[index], endpoint))
        return error_set(err, STATUS_IO, "cannot watch a socket's connections: %s", zmq_strerror(errno));
    return watch(t, socket_fd(t->monitors[index]), err);
}

static enum status bind_one(struct zmq_transport *t, void **socket, enum socket_kind kind, const char *endpoint, char *bound,
                            struct error *err)
{
    const struct socket_security security = {t->plaintext ? NULL : &t->keys, NULL, NULL};
    enum status status = socket_open(socket, t->context, kind, endpoint, &security, err);
    if (status)
        return status;
    size_t bytes = ENDPOINT_TEXT_BYTES;
    if (zmq_getsockopt(*socket, ZMQ_LAST_ENDPOINT, bound, &bytes))
        return error_set(err, STATUS_IO, "%s: cannot tell what was bound: %s", endpoint, zmq_strerror(errno));
    status = watch(t, socket_fd(*socket), err);
    return status ? status : monitor_open(t, kind == SOCKET_ROWS_BOUND, *socket, err);
}

static enum status check_options(const struct zmq_transport_options *o, struct error *err)
{
    enum status status = check_endpoint("control", o->control_endpoint, o->role == ROLE_COORDINATOR, err);
    if (!status)
        status = check_endpoint("row", o->row_endpoint, 1, err);
    if (status || o->plaintext)
        return status;
    if (!o->keys || !wire_is_key(o->keys->public_key) || !wire_is_key(o->keys->secret_key))
        return error_set(err, STATUS_INVALID, "no keys: make a pair with hearth keys new FILE, or allow plaintext by name");
    if (o->role == ROLE_NODE && (!o->coordinator_key || !wire_is_key(o->coordinator_key)))
        return error_set(err, STATUS_INVALID,
                         "the coordinator's public key is needed (40 characters; hearth keys show FILE prints it there)");
    return STATUS_OK;
}

static enum status open_context(struct zmq_transport *t, struct error *err)
{
    t->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    t->again_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->retry_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (t->epoll_fd < 0 || t->again_fd < 0 || t->retry_fd < 0)
        return error_errno(err, STATUS_IO, "cannot create an event descriptor");
    enum status status = watch(t, t->again_fd, err);
    if (!status)
        status = watch(t, t->retry_fd, err);
    t->context = zmq_ctx_new();
    if (!t->context)
        return error_set(err, STATUS_IO, "cannot start ZeroMQ: %s", zmq_strerror(errno));
    zmq_ctx_set(t->context, ZMQ_BLOCKY, 0); /* closing never waits for peers */
    if (!status)
        status = zap_open(&t->zap, t->context, t->plaintext, err);
    return status ? status : watch(t, socket_fd(t->zap.socket), err);
}

enum status zmq_transport_open(struct zmq_transport **out, const struct zmq_transport_options *o, struct error *err)
{
    *out = NULL;
    enum status status = check_options(o, err);
    if (status)
        return status;
    struct zmq_transport *t = xcalloc(1, sizeof *t);
    *t = (struct zmq_transport){.base = {transport_send, transport_receive},
                                .role = o->role,
                                .plaintext = o->plaintext,
                                .epoll_fd = -1,
                                .again_fd = -1,
                                .retry_fd = -1};
    t->coordinator.kind = SOCKET_CONTROL_CONNECTED;
    t->coordinator.queue.bytes_max = CONTROL_QUEUE_BYTES;
    t->next.kind = SOCKET_ROWS_CONNECTED;
    t->next.queue.bytes_max = ROW_QUEUE_BYTES;
    if (!o->plaintext)
        t->keys = *o->keys;
    else
        log_line(
            LOG_WARNING,
            "PLAINTEXT: no keys and no encryption on %s; whoever reaches the ports can read every conversation and forge every message",
            o->row_endpoint);
    if (getrandom(t->routing_id, sizeof t->routing_id, 0) != sizeof t->routing_id)
        status = error_errno(err, STATUS_IO, "cannot draw random bytes");
    t->routing_id[0] |= 1; /* ids that begin with zero are ZeroMQ's */
    if (!status)
        status = open_context(t, err);
    if (!status)
        status = bind_one(t, &t->rows_bound, SOCKET_ROWS_BOUND, o->row_endpoint, t->row_endpoint, err);
    if (!status && o->role == ROLE_COORDINATOR)
        status = bind_one(t, &t->control_bound, SOCKET_CONTROL_BOUND, o->control_endpoint, t->control_endpoint, err);
    if (!status && o->role == ROLE_NODE)
        status = connection_set(t, &t->coordinator, o->control_endpoint, o->coordinator_key, err);
    if (status)
        zmq_transport_close(&t);
    *out = t;
    return status;
}

static void close_bound(struct zmq_transport *t, void *socket, void *monitor)
{
    if (monitor)
        while (read_monitor(t, monitor)) /* the network thread may be waiting to tell us, and must not be when its socket goes */
            continue;
    if (socket) {
        zmq_socket_monitor(socket, NULL, 0);
        zmq_close(socket);
    }
    if (monitor)
        zmq_close(monitor);
}

void zmq_transport_close(struct zmq_transport **transport)
{
    struct zmq_transport *t = *transport;
    *transport = NULL;
    if (!t)
        return;
    frames_release(&t->frames);
    connection_close(t, &t->coordinator);
    connection_close(t, &t->next);
    send_queue_clear(&t->coordinator.queue);
    send_queue_clear(&t->next.queue);
    peer_table_clear(&t->peers);
    close_bound(t, t->control_bound, t->monitors[0]);
    close_bound(t, t->rows_bound, t->monitors[1]);
    zap_close(&t->zap);
    while (t->context && zmq_ctx_term(t->context) && errno == EINTR)
        continue;
    if (t->again_fd >= 0)
        close(t->again_fd);
    if (t->retry_fd >= 0)
        close(t->retry_fd);
    if (t->epoll_fd >= 0)
        close(t->epoll_fd);
    free(t->aligned);
    explicit_bzero(&t->keys, sizeof t->keys);
    free(t);
}

struct transport *zmq_transport_base(struct zmq_transport *t)
{
    return &t->base;
}

void zmq_transport_trust(struct zmq_transport *t, const struct trusted_keys *trusted)
{
    CHECK(t->role == ROLE_COORDINATOR);
    zap_set_keys(&t->zap, trusted);
    wake(t); /* someone may be waiting to be let in */
}

void zmq_transport_set_previous(struct zmq_transport *t, const char *key)
{
    CHECK(t->role == ROLE_NODE);
    zap_set_key(&t->zap, key);
    wake(t);
}

enum status zmq_transport_set_next(struct zmq_transport *t, const char *endpoint, const char *key, struct error *err)
{
    return connection_set(t, &t->next, endpoint, key, err);
}

int zmq_transport_fd(const struct zmq_transport *t)
{
    return t->epoll_fd;
}

const char *zmq_transport_control_endpoint(const struct zmq_transport *t)
{
    return t->control_endpoint;
}

const char *zmq_transport_row_endpoint(const struct zmq_transport *t)
{
    return t->row_endpoint;
}

int zmq_transport_n_queued(const struct zmq_transport *t, int peer, enum channel channel)
{
    struct zmq_transport *self = (struct zmq_transport *)t;
    const struct connection *c = connection_of(self, peer, channel);
    const struct node_peer *p = channel == CHANNEL_CONTROL ? peer_table_by_number(&self->peers, peer) : NULL;
    return (int)(c ? c->queue.n : p ? p->queue.n : 0);
}

const struct transport_counters *zmq_transport_counters(const struct zmq_transport *t)
{
    return &t->counters;
}

void zmq_transport_log_counters(const struct zmq_transport *transport)
{
    const struct transport_counters *c = zmq_transport_counters(transport);
    const struct channel_counters *control = &c->channels[CHANNEL_CONTROL], *rows = &c->channels[CHANNEL_ROWS];
    log_line(LOG_INFO,
             "control: %llu messages (%llu bytes) in, %llu (%llu) out; rows: %llu (%llu) in, %llu (%llu) out; refused keys %llu, failed handshakes %llu, "
             "malformed %llu, not queued %llu",
             (unsigned long long)control->messages_in, (unsigned long long)control->bytes_in, (unsigned long long)control->messages_out,
             (unsigned long long)control->bytes_out, (unsigned long long)rows->messages_in, (unsigned long long)rows->bytes_in,
             (unsigned long long)rows->messages_out, (unsigned long long)rows->bytes_out, (unsigned long long)c->keys_refused,
             (unsigned long long)c->handshakes_failed, (unsigned long long)c->malformed, (unsigned long long)c->queue_full);
}
