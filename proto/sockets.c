#include "proto/sockets.h"

#include <errno.h>
#include <string.h>

#include "common/check.h"
#include "proto/limits.h"

/* An encrypted frame is its content, a flag, a 16-byte authenticator, an 8-byte nonce and the 8 bytes of "\x07MESSAGE". */
enum { CURVE_FRAME_BYTES = 33 };

/* Rows: at most N + 1 messages of a sequence are in flight (rule 15), and each may have 2 MiB. What does not fit waits in our own queue,
 * which is counted in bytes; ZeroMQ counts only messages. Control messages are small and come in bursts: one Commit and one Step a token
 * for every running sequence. */
enum { ROWS_HWM = 8, CONTROL_HWM = 128 };

struct setting {
    int option, value;
};

static const struct setting common_settings[] = {
    {ZMQ_LINGER, 0}, /* a closed socket forgets; the default holds the process until the last peer has read */
    {ZMQ_HANDSHAKE_IVL,
     3000}, /* a connection says who it is within 3 s or goes; the default of 30 s lets idle strangers hold descriptors */
    {ZMQ_HEARTBEAT_IVL, 1000},     /* notices a dead link below ours; a hung process is noticed by Heartbeat messages */
    {ZMQ_HEARTBEAT_TIMEOUT, 3000}, /* three missed; ours (LOST after 2 s) is the one that decides */
    {ZMQ_HEARTBEAT_TTL, 3000},     /* the same for the other side */
    {ZMQ_TCP_KEEPALIVE, 1},        /* the kernel's own check, for links where even ZeroMQ's thread is stopped */
    {ZMQ_TCP_KEEPALIVE_IDLE, 10},
    {ZMQ_TCP_KEEPALIVE_INTVL, 5},
    {ZMQ_TCP_KEEPALIVE_CNT, 3},
    {ZMQ_RCVTIMEO, 0}, /* nothing here ever waits, even if a flag were forgotten */
    {ZMQ_SNDTIMEO, 0},
    {ZMQ_SNDBUF, -1}, /* the kernel tunes its buffers better than a constant for every link would */
    {ZMQ_RCVBUF, -1},
};

static const struct setting connected_settings[] = {
    {ZMQ_HANDSHAKE_IVL, 1500},     /* a refused key is tried again soon; three round trips fit many times */
    {ZMQ_IMMEDIATE, 1},            /* nothing queues in ZeroMQ for a peer that is not there: it would arrive stale */
    {ZMQ_RECONNECT_IVL, 100},      /* a restarted peer is found quickly ... */
    {ZMQ_RECONNECT_IVL_MAX, 1000}, /* ... and an absent one is not hammered */
    {ZMQ_CONNECT_TIMEOUT, 3000},   /* a host that swallows packets costs seconds, not the kernel's two minutes */
};

static const struct setting bound_settings[] = {
    {ZMQ_BACKLOG, 1024},       /* with the default of 100 a burst of strangers makes good peers wait a second for their SYN */
    {ZMQ_ROUTER_MANDATORY, 1}, /* a message for nobody is an error, not a silence */
};

static int set_all(void *socket, const struct setting *settings, size_t n)
{
    int failed = 0;
    for (size_t i = 0; i < n; i++)
        failed |= zmq_setsockopt(socket, settings[i].option, &settings[i].value, sizeof(int));
    return failed;
}
#define SET_ALL(socket, settings) set_all(socket, settings, sizeof settings / sizeof *settings)

/* A node that comes back after its link died takes over its own routing id from the half-open connection. It cannot take another's: ids are
 * 128 random bits that only the owner and we know, and the peer table holds each to its key. Row sockets need no ids: nothing is sent back
 * on them. */
static const struct setting control_bound_settings[] = {{ZMQ_ROUTER_HANDOVER, 1}};

static int set_limits(void *socket, int is_rows, const char *endpoint)
{
    int hwm = is_rows ? ROWS_HWM : CONTROL_HWM;
    /* The only bound before a frame is in memory: a 9-byte frame header may declare 8 GiB. */
    int64_t frame_bytes_max = (is_rows ? ROW_MESSAGE_BYTES_MAX : HEADER_BYTES_MAX) + CURVE_FRAME_BYTES;
    /* Only when the address asks for it: with IPv6 on, an IPv4 address becomes a mapped one, which fails where IPv6 is switched off. */
    int ipv6 = strchr(endpoint, '[') != NULL;
    return zmq_setsockopt(socket, ZMQ_SNDHWM, &hwm, sizeof hwm) | zmq_setsockopt(socket, ZMQ_RCVHWM, &hwm, sizeof hwm) |
           zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &frame_bytes_max, sizeof frame_bytes_max) |
           zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof ipv6);
}

/* In plaintext the domain alone makes ZeroMQ ask us, and refuse the framing of versions 1 and 2, which takes random bytes for messages. */
static int set_security(void *socket, int is_bound, const struct socket_security *security)
{
    int failed = 0, one = 1;
    if (is_bound)
        failed |= zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, "hearth", 6);
    if (!security->keys)
        return failed;
    failed |= zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, security->keys->secret_key, PEER_KEY_BYTES);
    if (is_bound)
        return failed | zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &one, sizeof one);
    return failed | zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, security->keys->public_key, PEER_KEY_BYTES) |
           zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, security->server_key, PEER_KEY_BYTES);
}

enum status socket_open(void **out, void *context, enum socket_kind kind, const char *endpoint, const struct socket_security *security,
                        struct error *err)
{
    int is_bound = kind == SOCKET_CONTROL_BOUND || kind == SOCKET_ROWS_BOUND,
        is_rows = kind == SOCKET_ROWS_BOUND || kind == SOCKET_ROWS_CONNECTED;
    *out = NULL;
    void *socket = zmq_socket(context, is_bound ? ZMQ_ROUTER : ZMQ_DEALER);
    if (!socket)
        return error_set(err, STATUS_IO, "%s: cannot create a socket: %s", endpoint, zmq_strerror(errno));
    int failed = SET_ALL(socket, common_settings) | set_limits(socket, is_rows, endpoint) | set_security(socket, is_bound, security) |
                 (is_bound ? SET_ALL(socket, bound_settings) : SET_ALL(socket, connected_settings));
    if (kind == SOCKET_CONTROL_BOUND)
        failed |= SET_ALL(socket, control_bound_settings);
    if (security->routing_id)
        failed |= zmq_setsockopt(socket, ZMQ_ROUTING_ID, security->routing_id, ROUTING_ID_BYTES);
    const char *doing = failed ? "set an option" : is_bound ? "bind" : "connect";
    if (failed || (is_bound ? zmq_bind(socket, endpoint) : zmq_connect(socket, endpoint))) {
        error_set(err, STATUS_IO, "%s: cannot %s: %s", endpoint, doing, zmq_strerror(errno));
        zmq_close(socket);
        return STATUS_IO;
    }
    *out = socket;
    return STATUS_OK;
}

static int get_int(void *socket, int option)
{
    int value = 0;
    size_t bytes = sizeof value;
    return zmq_getsockopt(socket, option, &value, &bytes) ? 0 : value;
}

int socket_has_more(void *socket)
{
    return get_int(socket, ZMQ_RCVMORE);
}

int socket_events(void *socket)
{
    return get_int(socket, ZMQ_EVENTS);
}

int socket_fd(void *socket)
{
    return get_int(socket, ZMQ_FD);
}

/* ---- messages ---- */

static int take_frame(void *socket, zmq_msg_t *frame, int *has)
{
    CHECK(!zmq_msg_init(frame));
    *has = 1;
    return zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) >= 0;
}

/* ZeroMQ hands out whole messages only, so the rest is here and its number is finite. */
static void drop_rest(void *socket)
{
    while (socket_has_more(socket)) {
        zmq_msg_t frame;
        int has, taken = take_frame(socket, &frame, &has);
        zmq_msg_close(&frame);
        if (!taken)
            return;
    }
}

enum received socket_receive(void *socket, int with_routing_id, struct frames *f)
{
    frames_release(f);
    if (with_routing_id) {
        if (!take_frame(socket, &f->routing_id, &f->has_routing_id))
            return RECEIVED_NOTHING;
        if (!socket_has_more(socket))
            return RECEIVED_MALFORMED;
    }
    if (!take_frame(socket, &f->header, &f->has_header))
        return with_routing_id ? RECEIVED_MALFORMED : RECEIVED_NOTHING;
    int is_whole = !socket_has_more(socket) || (take_frame(socket, &f->rows, &f->has_rows) && !socket_has_more(socket));
    drop_rest(socket);
    size_t header = zmq_msg_size(&f->header), rows = f->has_rows ? zmq_msg_size(&f->rows) : 0;
    if (!is_whole || !header || header > HEADER_BYTES_MAX || (f->has_rows && !rows) || rows > ROW_MESSAGE_BYTES_MAX ||
        (with_routing_id && zmq_msg_size(&f->routing_id) > ROUTING_ID_BYTES_MAX))
        return RECEIVED_MALFORMED;
    return RECEIVED_MESSAGE;
}

void frames_release(struct frames *f)
{
    if (f->has_routing_id)
        zmq_msg_close(&f->routing_id);
    if (f->has_header)
        zmq_msg_close(&f->header);
    if (f->has_rows)
        zmq_msg_close(&f->rows);
    f->has_routing_id = f->has_header = f->has_rows = 0;
}

enum sent socket_send(void *socket, const uint8_t *routing_id, size_t routing_id_bytes, const uint8_t *header, size_t header_bytes,
                      const void *rows, size_t rows_bytes)
{
    /* Only the first frame can fail for want of room or of a peer; the rest follows it, or is dropped whole with the connection. */
    if (routing_id && zmq_send(socket, routing_id, routing_id_bytes, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0)
        return errno == EHOSTUNREACH ? SENT_NO_PEER : SENT_NOT_NOW;
    if (zmq_send(socket, header, header_bytes, ZMQ_DONTWAIT | (rows ? ZMQ_SNDMORE : 0)) < 0)
        return routing_id ? SENT_NO_PEER : SENT_NOT_NOW;
    if (rows && zmq_send(socket, rows, rows_bytes, ZMQ_DONTWAIT) < 0)
        return SENT_NO_PEER;
    return SENT;
}
