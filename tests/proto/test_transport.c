/* Goal: messages cross real sockets whole, in order and only between processes whose keys allow it; hostile bytes never come out and cost
 * bounded memory. Method: a coordinator and two nodes on loopback in one thread, as three processes would use them, and strangers on raw
 * TCP and raw ZeroMQ sockets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "common/clock.h"
#include "proto/limits.h"
#include "proto/send_queue.h"
#include "proto/zmq_transport.h"

/* One transport and what has come out of it. */
struct end {
    struct zmq_transport *t;
    struct key_pair keys;
    char control[256], rows[256];
    int n; /* messages received */
    struct packet last;
    char first_bytes[64]; /* of the header of message n: [n % 64] */
    uint64_t rows_sum;
};

enum { COORDINATOR, HEAD, TAIL, N_ENDS };
static struct end ends[N_ENDS];
static int plaintext;

static void fresh_keys(struct key_pair *pair)
{
    assert_int_equal(zmq_curve_keypair(pair->public_key, pair->secret_key), 0);
}

static uint64_t now_ms(void)
{
    return clock_now_ns(clock_monotonic()) / 1000000;
}

static uint64_t sum(const uint8_t *bytes, size_t n)
{
    uint64_t s = n;
    for (size_t i = 0; i < n; i++)
        s = s * 31 + bytes[i];
    return s;
}

static void take_all(struct end *e)
{
    struct packet p;
    while (e->t && zmq_transport_base(e->t)->receive(zmq_transport_base(e->t), &p)) {
        e->first_bytes[e->n++ % 64] = (char)p.header[0];
        e->last = p;
        assert_int_equal((uintptr_t)p.rows % 4, 0);
        e->rows_sum = p.rows_bytes ? sum(p.rows, p.rows_bytes) : 0;
    }
}

/* Lets all transports work for at most ms, or until end has n messages. */
static void pump(struct end *end, int n, int ms)
{
    uint64_t until = now_ms() + (uint64_t)ms;
    while (now_ms() < until) {
        struct pollfd fds[N_ENDS];
        for (int i = 0; i < N_ENDS; i++) {
            take_all(&ends[i]);
            fds[i] = (struct pollfd){.fd = ends[i].t ? zmq_transport_fd(ends[i].t) : -1, .events = POLLIN};
        }
        if (end && end->n >= n)
            return;
        uint64_t now = now_ms();
        poll(fds, N_ENDS, now >= until ? 0 : until - now < 200 ? (int)(until - now) : 200);
    }
}

static void expect(struct end *end, int n)
{
    pump(end, n, 10000);
    assert_int_equal(end->n, n);
}

static enum status send_on(struct end *end, int peer, enum channel channel, const char *header, const void *rows, size_t rows_bytes)
{
    struct error err = {0};
    return zmq_transport_base(end->t)->send(zmq_transport_base(end->t), peer, channel, (const uint8_t *)header, strlen(header), rows,
                                            rows_bytes, &err);
}

static void open_node(struct end *e, const char *coordinator_key)
{
    struct error err = {0};
    struct zmq_transport_options o = {ROLE_NODE, ends[COORDINATOR].control, *e->rows ? e->rows : "tcp://127.0.0.1:*",
                                      &e->keys,  coordinator_key,           plaintext};
    if (zmq_transport_open(&e->t, &o, &err))
        fail_msg("%s", err.text);
    snprintf(e->rows, sizeof e->rows, "%s", zmq_transport_row_endpoint(e->t));
}

static void open_coordinator(void)
{
    struct error err = {0};
    struct end *c = &ends[COORDINATOR];
    struct zmq_transport_options o = {
        ROLE_COORDINATOR, *c->control ? c->control : "tcp://127.0.0.1:*", *c->rows ? c->rows : "tcp://127.0.0.1:*", &c->keys, NULL,
        plaintext};
    if (zmq_transport_open(&c->t, &o, &err))
        fail_msg("%s", err.text);
    snprintf(c->control, sizeof c->control, "%s", zmq_transport_control_endpoint(c->t));
    snprintf(c->rows, sizeof c->rows, "%s", zmq_transport_row_endpoint(c->t));
    struct trusted_key keys[2];
    for (int i = 0; i < 2; i++)
        snprintf(keys[i].key, sizeof keys[i].key, "%s", ends[HEAD + i].keys.public_key);
    zmq_transport_trust(c->t, &(struct trusted_keys){keys, 2});
}

static void connect_ring(void)
{
    struct error err;
    for (int i = 0; i < N_ENDS; i++) {
        struct end *previous = &ends[i], *next = &ends[(i + 1) % N_ENDS];
        assert_int_equal(zmq_transport_set_next(previous->t, next->rows, next->keys.public_key, &err), STATUS_OK);
        if (next != &ends[COORDINATOR])
            zmq_transport_set_previous(next->t, previous->keys.public_key);
    }
}

static int open_ring(void **state)
{
    (void)state;
    memset(ends, 0, sizeof ends);
    plaintext = 0;
    for (int i = 0; i < N_ENDS; i++)
        fresh_keys(&ends[i].keys);
    open_coordinator();
    for (int i = HEAD; i < N_ENDS; i++)
        open_node(&ends[i], ends[COORDINATOR].keys.public_key);
    connect_ring();
    return 0;
}

static int close_ring(void **state)
{
    (void)state;
    uint64_t before = now_ms();
    for (int i = 0; i < N_ENDS; i++)
        zmq_transport_close(&ends[i].t);
    assert_true(now_ms() - before < 2000);
    return 0;
}

static const struct transport_counters *counters(int end)
{
    return zmq_transport_counters(ends[end].t);
}

/* A round: head speaks, coordinator answers, rows go once around. */
static void round_trip(void)
{
    int n[N_ENDS];
    for (int i = 0; i < N_ENDS; i++)
        n[i] = ends[i].n;
    assert_int_equal(send_on(&ends[HEAD], PEER_COORDINATOR, CHANNEL_CONTROL, "hello", NULL, 0), STATUS_OK);
    expect(&ends[COORDINATOR], n[COORDINATOR] + 1);
    assert_true(ends[COORDINATOR].last.peer >= PEER_FIRST_NODE && ends[COORDINATOR].last.channel == CHANNEL_CONTROL);
    assert_string_equal(ends[COORDINATOR].last.key, plaintext ? "" : ends[HEAD].keys.public_key);
    assert_int_equal(send_on(&ends[COORDINATOR], ends[COORDINATOR].last.peer, CHANNEL_CONTROL, "assign", NULL, 0), STATUS_OK);
    expect(&ends[HEAD], n[HEAD] + 1);
    assert_true(ends[HEAD].last.peer == PEER_COORDINATOR && ends[HEAD].first_bytes[n[HEAD] % 64] == 'a');
    assert_string_equal(ends[HEAD].last.key, plaintext ? "" : ends[COORDINATOR].keys.public_key);
    float rows[3] = {1, 2, 3};
    for (int i = 0; i < N_ENDS; i++) {
        struct end *to = &ends[(i + 1) % N_ENDS];
        int before = to->n;
        assert_int_equal(send_on(&ends[i], PEER_NEXT, CHANNEL_ROWS, "step", i ? rows : NULL, i ? sizeof rows : 0), STATUS_OK);
        expect(to, before + 1);
        assert_true(to->last.peer == PEER_PREVIOUS && to->last.channel == CHANNEL_ROWS && to->last.rows_bytes == (i ? sizeof rows : 0));
        assert_true(to->rows_sum == (i ? sum((uint8_t *)rows, sizeof rows) : 0));
        assert_string_equal(to->last.key, plaintext ? "" : ends[i].keys.public_key);
    }
}

static void messages_go_around(void **state)
{
    (void)state;
    round_trip();
    round_trip();
    assert_true(counters(COORDINATOR)->channels[CHANNEL_CONTROL].messages_in == 2 &&
                counters(COORDINATOR)->channels[CHANNEL_CONTROL].bytes_in == 10);
    assert_true(counters(COORDINATOR)->channels[CHANNEL_ROWS].messages_in == 2 &&
                counters(COORDINATOR)->channels[CHANNEL_ROWS].bytes_in == 2 * (4 + 12));
    assert_true(counters(HEAD)->channels[CHANNEL_CONTROL].messages_out == 2 && counters(HEAD)->malformed == 0);
}

static void messages_come_out_in_order_and_whole(void **state)
{
    (void)state;
    round_trip();
    static uint8_t large[ROW_MESSAGE_BYTES_MAX];
    for (size_t i = 0; i < sizeof large; i++)
        large[i] = (uint8_t)(i * 2654435761u >> 24);
    int before = ends[HEAD].n;
    static char header[HEADER_BYTES_MAX + 1];
    memset(header, 'h', HEADER_BYTES_MAX);
    assert_int_equal(send_on(&ends[COORDINATOR], PEER_NEXT, CHANNEL_ROWS, header, large, sizeof large),
                     STATUS_OK); /* both frames at their limits */
    expect(&ends[HEAD], before + 1);
    assert_true(ends[HEAD].last.rows_bytes == sizeof large && ends[HEAD].last.header_bytes == HEADER_BYTES_MAX);
    assert_true(ends[HEAD].rows_sum == sum(large, sizeof large));
    /* more than the sockets hold: the rest waits in our queue and nothing is lost or turned round */
    int accepted = 0, busy = 0;
    for (int i = 0; i < 40; i++)
        if (send_on(&ends[HEAD], PEER_NEXT, CHANNEL_ROWS, (char[]){(char)('A' + accepted), 0}, large, sizeof large - 4))
            busy++;
        else
            accepted++;
    assert_true(accepted >= 15 && busy > 0);
    before = ends[TAIL].n;
    expect(&ends[TAIL], before + accepted);
    for (int i = 0; i < accepted; i++)
        assert_int_equal(ends[TAIL].first_bytes[(before + i) % 64], 'A' + i);
    assert_int_equal(counters(HEAD)->queue_full, busy);
    round_trip();
}

/* A stage whose compute thread is behind does not receive; it must go on sending, or two such stages would wait for each other. */
static void sending_needs_no_receiving(void **state)
{
    (void)state;
    round_trip();
    static uint8_t large[ROW_MESSAGE_BYTES_MAX];
    int before = ends[TAIL].n, sent = 0;
    uint64_t until = now_ms() + 20000;
    while (sent < 100 && now_ms() < until) {
        if (!send_on(&ends[HEAD], PEER_NEXT, CHANNEL_ROWS, "rows", large, sizeof large))
            sent++;
        else
            poll(NULL, 0, 1);
        take_all(&ends[TAIL]); /* only the tail receives */
    }
    assert_int_equal(sent, 100);
    expect(&ends[TAIL], before + 100);
}

static void control_is_bounded_too(void **state)
{
    (void)state;
    round_trip();
    int peer = ends[COORDINATOR].last.peer, accepted = 0;
    for (int i = 0; i < N_ENDS; i++)
        take_all(&ends[i]);
    peer = PEER_FIRST_NODE; /* the first that ever spoke */
    enum status status;
    static char header[HEADER_BYTES_MAX + 1];
    memset(header, 'c', HEADER_BYTES_MAX);
    do
        status = send_on(&ends[COORDINATOR], peer, CHANNEL_CONTROL, header, NULL, 0);
    while (!status && ++accepted < 100000);
    assert_int_equal(status, STATUS_BUSY);
    int before = ends[HEAD].n;
    expect(&ends[HEAD], before + accepted);
    assert_int_equal(send_on(&ends[COORDINATOR], 12345, CHANNEL_CONTROL, "x", NULL, 0), STATUS_BUSY); /* nobody has that number */
    assert_int_equal(send_on(&ends[COORDINATOR], PEER_COORDINATOR, CHANNEL_CONTROL, "x", NULL, 0), STATUS_BUSY);
}

/* Nobody reads at the other end, then it is gone, then it is back. */
static void a_peer_vanishes_and_comes_back(void **state)
{
    (void)state;
    round_trip();
    int old_peer = PEER_FIRST_NODE;
    zmq_transport_close(&ends[HEAD].t);
    pump(NULL, 0, 300);
    assert_int_equal(send_on(&ends[COORDINATOR], old_peer, CHANNEL_CONTROL, "x", NULL, 0), STATUS_BUSY);
    assert_int_equal(send_on(&ends[COORDINATOR], PEER_NEXT, CHANNEL_ROWS, "waits", NULL, 0), STATUS_OK);
    assert_int_equal(zmq_transport_n_queued(ends[COORDINATOR].t, PEER_NEXT, CHANNEL_ROWS), 1);
    struct error err;
    open_node(&ends[HEAD], ends[COORDINATOR].keys.public_key);
    zmq_transport_set_previous(ends[HEAD].t, ends[COORDINATOR].keys.public_key);
    int before = ends[HEAD].n;
    expect(&ends[HEAD], before + 1); /* what waited */
    assert_int_equal(zmq_transport_set_next(ends[HEAD].t, ends[TAIL].rows, ends[TAIL].keys.public_key, &err), STATUS_OK);
    round_trip();
    /* the coordinator too */
    zmq_transport_close(&ends[COORDINATOR].t);
    pump(NULL, 0, 300);
    open_coordinator();
    assert_int_equal(zmq_transport_set_next(ends[COORDINATOR].t, ends[HEAD].rows, ends[HEAD].keys.public_key, &err), STATUS_OK);
    round_trip();
    assert_int_equal(ends[COORDINATOR].last.peer, PEER_PREVIOUS);
}

static void a_restarted_process_gets_a_new_number(void **state)
{
    (void)state;
    int seen[20];
    uint64_t begin = now_ms();
    for (int i = 0; i < 20; i++) {
        zmq_transport_close(&ends[HEAD].t);
        open_node(&ends[HEAD], ends[COORDINATOR].keys.public_key);
        int before = ends[COORDINATOR].n;
        assert_int_equal(send_on(&ends[HEAD], PEER_COORDINATOR, CHANNEL_CONTROL, "hello", NULL, 0), STATUS_OK);
        expect(&ends[COORDINATOR], before + 1);
        seen[i] = ends[COORDINATOR].last.peer;
        for (int j = 0; j < i; j++)
            assert_int_not_equal(seen[i], seen[j]);
        int mine = ends[HEAD].n;
        assert_int_equal(send_on(&ends[COORDINATOR], seen[i], CHANNEL_CONTROL, "x", NULL, 0), STATUS_OK);
        expect(&ends[HEAD], mine + 1);
        if (i)
            assert_int_equal(send_on(&ends[COORDINATOR], seen[i - 1], CHANNEL_CONTROL, "x", NULL, 0), STATUS_BUSY);
    }
    assert_true(now_ms() - begin < 3000); /* some ms each; a lost wake-up costs 200 */
}

/* The stage before connects, then our own Assign arrives: no retry of ZeroMQ's lies between. */
static void a_stage_that_connects_too_early_waits_at_the_door(void **state)
{
    (void)state;
    round_trip();
    zmq_transport_set_previous(ends[TAIL].t, NULL);
    struct error err;
    assert_int_equal(zmq_transport_set_next(ends[HEAD].t, ends[TAIL].rows, ends[TAIL].keys.public_key, &err), STATUS_OK);
    assert_int_equal(send_on(&ends[HEAD], PEER_NEXT, CHANNEL_ROWS, "early", NULL, 0), STATUS_OK);
    int before = ends[TAIL].n;
    pump(NULL, 0, 200);
    assert_int_equal(ends[TAIL].n, before);
    uint64_t begin = now_ms();
    zmq_transport_set_previous(ends[TAIL].t, ends[HEAD].keys.public_key);
    expect(&ends[TAIL], before + 1);
    assert_true(now_ms() - begin < 1000 && counters(TAIL)->keys_refused == 0);
}

/* ---- strangers ---- */

static uint64_t messages_in(void)
{
    uint64_t n = 0;
    for (int i = 0; i < N_ENDS; i++)
        n += counters(i)->channels[CHANNEL_CONTROL].messages_in + counters(i)->channels[CHANNEL_ROWS].messages_in;
    return n;
}

static const char *port_of(int i)
{
    return i == 0 ? ends[COORDINATOR].control : ends[i - 1].rows;
}
enum { N_PORTS = N_ENDS + 1 };

/* A raw ZeroMQ client with these keys; NULL: none. */
static void *stranger(void *context, const char *endpoint, const struct key_pair *keys, const char *server_key)
{
    void *socket = zmq_socket(context, ZMQ_DEALER);
    int zero = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &zero, sizeof zero);
    if (keys) {
        assert_int_equal(zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->secret_key, 41), 0);
        assert_int_equal(zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, keys->public_key, 41), 0);
        assert_int_equal(zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, server_key, 41), 0);
    }
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    return socket;
}

static const char *key_of(int port)
{
    return ends[port ? port - 1 : COORDINATOR].keys.public_key;
}

/* Two frames, and one, from a client that may not; nothing may come out. */
static void nothing_from(const struct key_pair *keys, const char *wrong_server_key)
{
    void *context = zmq_ctx_new();
    uint64_t before = messages_in();
    void *sockets[N_PORTS];
    for (int i = 0; i < N_PORTS; i++) {
        sockets[i] = stranger(context, port_of(i), keys, wrong_server_key ? wrong_server_key : key_of(i));
        zmq_send(sockets[i], "let me in", 9, ZMQ_DONTWAIT);
        zmq_send(sockets[i], "let me in", 9, ZMQ_DONTWAIT | ZMQ_SNDMORE);
        zmq_send(sockets[i], "please", 6, ZMQ_DONTWAIT);
    }
    pump(NULL, 0, 1000);
    for (int i = 0; i < N_PORTS; i++)
        zmq_close(sockets[i]);
    zmq_ctx_term(context);
    assert_true(messages_in() == before);
}

static void unknown_keys_reach_nothing(void **state)
{
    (void)state;
    round_trip();
    struct key_pair unknown;
    fresh_keys(&unknown);
    nothing_from(&unknown, NULL);
    for (int i = 0; i < N_ENDS; i++)
        assert_true(counters(i)->keys_refused >= 1);
    round_trip();
}

static void no_keys_reach_nothing(void **state)
{
    (void)state;
    round_trip();
    nothing_from(NULL, NULL);
    for (int i = 0; i < N_ENDS; i++)
        assert_true(counters(i)->handshakes_failed >= 1);
    round_trip();
}

static void a_wrong_server_key_reaches_nothing(void **state)
{
    (void)state;
    round_trip();
    struct key_pair unknown;
    fresh_keys(&unknown);
    nothing_from(&ends[HEAD].keys, unknown.public_key); /* a good node, told a wrong key */
    for (int i = 0; i < N_ENDS; i++)
        assert_true(counters(i)->handshakes_failed >= 1);
    round_trip();
}

static void only_the_stage_before_may_send_rows(void **state)
{
    (void)state;
    round_trip();
    void *context = zmq_ctx_new();
    uint64_t before = messages_in();
    void *socket = stranger(context, ends[TAIL].rows, &ends[COORDINATOR].keys,
                            ends[TAIL].keys.public_key); /* the coordinator's key, but HEAD is before TAIL */
    zmq_send(socket, "rows", 4, ZMQ_DONTWAIT);
    pump(NULL, 0, 1000);
    assert_true(messages_in() == before && counters(TAIL)->keys_refused >= 1);
    zmq_close(socket);
    zmq_ctx_term(context);
    /* and a key that was right until a moment ago */
    zmq_transport_set_previous(ends[TAIL].t, ends[COORDINATOR].keys.public_key);
    assert_int_equal(send_on(&ends[HEAD], PEER_NEXT, CHANNEL_ROWS, "old", NULL, 0), STATUS_OK);
    pump(NULL, 0, 300);
    assert_true(messages_in() == before && counters(TAIL)->untrusted == 1);
    zmq_transport_set_previous(ends[TAIL].t, ends[HEAD].keys.public_key);
    round_trip();
    zmq_transport_trust(ends[COORDINATOR].t, &(struct trusted_keys){0});
    before = messages_in();
    assert_int_equal(send_on(&ends[HEAD], PEER_COORDINATOR, CHANNEL_CONTROL, "old", NULL, 0), STATUS_OK);
    assert_int_equal(send_on(&ends[TAIL], PEER_NEXT, CHANNEL_ROWS, "old", NULL, 0), STATUS_OK);
    pump(NULL, 0, 300);
    assert_true(messages_in() == before && counters(COORDINATOR)->untrusted == 2);
}

static void a_key_that_is_trusted_later_gets_in(void **state)
{
    (void)state;
    struct key_pair old = ends[HEAD].keys;
    zmq_transport_close(&ends[HEAD].t);
    fresh_keys(&ends[HEAD].keys);
    open_node(&ends[HEAD], ends[COORDINATOR].keys.public_key);
    assert_int_equal(send_on(&ends[HEAD], PEER_COORDINATOR, CHANNEL_CONTROL, "hello", NULL, 0), STATUS_OK);
    pump(&ends[COORDINATOR], 1, 700);
    assert_true(ends[COORDINATOR].n == 0 && counters(COORDINATOR)->keys_refused >= 1);
    struct trusted_key key;
    memcpy(key.key, ends[HEAD].keys.public_key, sizeof key.key);
    zmq_transport_trust(ends[COORDINATOR].t, &(struct trusted_keys){&key, 1});
    expect(&ends[COORDINATOR], 1);
    assert_string_equal(ends[COORDINATOR].last.key, key.key);
    ends[HEAD].keys = old;
}

static long resident_kib(void)
{
    long pages = 0, total;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_int_equal(fscanf(f, "%ld %ld", &total, &pages), 2);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* The address sanitizer keeps freed memory back, so the figures mean nothing under it. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_MEMORY_MEASURED = 0 };
#else
enum { IS_MEMORY_MEASURED = 1 };
#endif

static void assert_grown_less(long before_kib, long kib)
{
    long grown = resident_kib() - before_kib;
    if (IS_MEMORY_MEASURED && grown > kib)
        fail_msg("memory grew by %ld KiB", grown);
}

static int tcp_connect(const char *endpoint)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(strrchr(endpoint, ':') + 1)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof to));
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void tcp_send(int fd, const void *bytes, size_t n)
{
    ssize_t wrote = send(fd, bytes, n, MSG_NOSIGNAL);
    (void)wrote; /* it may have been closed already: that is what we ask for */
}

static const uint8_t greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};

/* Random bytes, some after a valid beginning. */
static void send_garbage(int connections)
{
    uint64_t random = 88172645463325252u;
    for (int i = 0; i < connections; i++) {
        uint8_t bytes[500];
        for (size_t j = 0; j < sizeof bytes; j++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            bytes[j] = (uint8_t)(random >> 24);
        }
        if (i % 4 == 1)
            memcpy(bytes, greeting, sizeof greeting);
        if (i % 4 == 2)
            memcpy(bytes, "\x01\x00\x0a", 3); /* the framing of version 1 */
        int fd = tcp_connect(port_of(i % N_PORTS));
        tcp_send(fd, bytes, sizeof bytes);
        if (i % 50 == 0)
            pump(NULL, 0, 5);
        close(fd);
    }
    pump(NULL, 0, 300);
}

static void garbage_on_every_port_comes_to_nothing(void **state)
{
    (void)state;
    round_trip();
    send_garbage(200); /* what libraries allocate once */
    uint64_t before = messages_in();
    long memory = resident_kib();
    send_garbage(2000);
    assert_true(messages_in() == before);
    assert_grown_less(memory, 1024);
    uint64_t failed = 0;
    for (int i = 0; i < N_ENDS; i++)
        failed += counters(i)->handshakes_failed;
    assert_true(failed > 100);
    round_trip();
}

/* Half-open handshakes are dropped by themselves, and do not keep good peers out. */
static void silent_connections_do_not_hold_the_door(void **state)
{
    (void)state;
    int fds[100];
    for (int i = 0; i < 100; i++)
        fds[i] = tcp_connect(port_of(i % N_PORTS));
    round_trip();
    pump(NULL, 0, 4000);
    int closed = 0;
    for (int i = 0; i < 100; i++) {
        char byte[100];
        ssize_t got;
        while ((got = recv(fds[i], byte, sizeof byte, 0)) > 0)
            continue;
        closed += got == 0 || errno == ECONNRESET;
        close(fds[i]);
    }
    assert_int_equal(closed, 100);
    round_trip();
}

/* In plaintext a stranger gets as far as frames: the limits must hold by themselves. */
static int open_plain_ring(void **state)
{
    memset(ends, 0, sizeof ends);
    plaintext = 1;
    open_coordinator();
    for (int i = HEAD; i < N_ENDS; i++)
        open_node(&ends[i], NULL);
    connect_ring();
    (void)state;
    return 0;
}

static void plaintext_works_and_old_framing_is_refused(void **state)
{
    (void)state;
    round_trip();
    uint64_t before = messages_in();
    send_garbage(400);
    assert_true(messages_in() == before);
    round_trip();
}

/* A ZMTP 3 handshake without keys, by hand. */
static int plain_handshake(const char *endpoint)
{
    static const uint8_t ready[] = "\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06"
                                   "DEALER"; /* command, 28 bytes follow */
    int fd = tcp_connect(endpoint);
    uint8_t command[sizeof ready - 1];
    memcpy(command, ready, sizeof command);
    command[1] = sizeof command - 2;
    tcp_send(fd, greeting, sizeof greeting);
    pump(NULL, 0, 50);
    tcp_send(fd, command, sizeof command);
    pump(NULL, 0, 50);
    return fd;
}

static int is_closed(int fd)
{
    uint8_t bytes[512];
    ssize_t got;
    pump(NULL, 0, 200);
    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0)
        continue;
    int closed = got == 0 || errno != EAGAIN;
    close(fd);
    return closed;
}

static void huge_frames_are_refused_by_their_header(void **state)
{
    (void)state;
    round_trip();
    long memory = resident_kib();
    uint64_t before = messages_in();
    for (int i = 0; i < N_PORTS; i++) {
        int fd = plain_handshake(port_of(i));
        tcp_send(fd, "\x00\x02hi", 4); /* a good message first: the handshake was right */
        pump(NULL, 0, 100);
        assert_true(messages_in() == ++before);
        tcp_send(fd,
                 "\x02\x00\x00\x00\x02\x00\x00\x00\x00"
                 "payload",
                 16); /* 8 GiB */
        assert_true(is_closed(fd));
        fd = plain_handshake(port_of(i));
        tcp_send(fd,
                 "\x02\x00\x00\x00\x00\x00\x20\x10\x00"
                 "payload",
                 16); /* 4 KiB above 2 MiB */
        assert_true(is_closed(fd));
        fd = plain_handshake(port_of(i));
        tcp_send(fd, "\x00\x00", 2); /* an empty frame */
        pump(NULL, 0, 50);
        close(fd);
    }
    assert_true(messages_in() == before);
    assert_grown_less(memory, 1024);
    round_trip();
}

static void messages_of_many_frames_are_dropped_whole(void **state)
{
    (void)state;
    round_trip();
    void *context = zmq_ctx_new();
    for (int port = 0; port < N_PORTS; port++) {
        int e = port ? port - 1 : COORDINATOR;
        uint64_t before = messages_in(), malformed = counters(e)->malformed;
        void *socket = stranger(context, port_of(port), NULL, NULL);
        for (int i = 0; i < 16000; i++)
            assert_true(zmq_send(socket, "x", 1, i + 1 < 16000 ? ZMQ_SNDMORE : 0) == 1);
        pump(NULL, 0, 500);
        assert_true(messages_in() == before && counters(e)->malformed == malformed + 1);
        zmq_send(socket, "one", 3, 0);
        pump(NULL, 0, 200);
        assert_true(messages_in() == before + 1);
        /* above the limits of frames, below ZeroMQ's */
        static char large[ROW_MESSAGE_BYTES_MAX + 4];
        zmq_send(socket, large, HEADER_BYTES_MAX + 1, 0);
        if (port) {
            zmq_send(socket, "header", 6, ZMQ_SNDMORE);
            zmq_send(socket, large, sizeof large, 0);
        } else {
            zmq_send(socket, "control has", 11, ZMQ_SNDMORE);
            zmq_send(socket, "one frame", 9, 0);
        }
        pump(NULL, 0, 300);
        assert_true(messages_in() == before + 1 && counters(e)->malformed == malformed + 3);
        zmq_close(socket);
    }
    zmq_ctx_term(context);
    round_trip();
}

/* A connection refused for good by the other side's ZeroMQ is made anew by us. */
static void wrong_options_are_refused(void **state)
{
    (void)state;
    struct zmq_transport *t;
    struct error err = {0};
    struct key_pair keys;
    fresh_keys(&keys);
    struct zmq_transport_options o = {ROLE_COORDINATOR, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", NULL, NULL, 0};
    assert_int_equal(zmq_transport_open(&t, &o, &err), STATUS_INVALID);
    assert_null(t);
    assert_non_null(strstr(err.text, "hearth keys new"));
    o.keys = &keys;
    o.role = ROLE_NODE;
    o.control_endpoint = "tcp://127.0.0.1:7600";
    assert_int_equal(zmq_transport_open(&t, &o, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "coordinator's public key"));
    o.role = ROLE_COORDINATOR;
    o.control_endpoint = "tcp://127.0.0.1:99999";
    assert_int_equal(zmq_transport_open(&t, &o, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "control endpoint 'tcp://127.0.0.1:99999'"));
    o.control_endpoint = "tcp://192.0.2.1:7600"; /* nobody's address */
    assert_int_equal(zmq_transport_open(&t, &o, &err), STATUS_IO);
    assert_non_null(strstr(err.text, "tcp://192.0.2.1:7600: cannot bind"));
    o.control_endpoint = "tcp://127.0.0.1:*";
    assert_int_equal(zmq_transport_open(&t, &o, &err), STATUS_OK);
    struct zmq_transport *second;
    o.control_endpoint = zmq_transport_control_endpoint(t);
    assert_int_equal(zmq_transport_open(&second, &o, &err), STATUS_IO);
    assert_non_null(strstr(err.text, "in use"));
    assert_int_equal(zmq_transport_set_next(t, "tcp://127.0.0.1:1", "", &err), STATUS_INVALID);
    assert_int_equal(zmq_transport_set_next(t, NULL, NULL, &err), STATUS_OK);
    zmq_transport_close(&t);
}

static void a_stuck_connection_is_made_anew(void **state)
{
    (void)state;
    struct error err;
    assert_int_equal(zmq_transport_set_next(ends[TAIL].t, "tcp://127.0.0.1:9", ends[COORDINATOR].keys.public_key, &err),
                     STATUS_OK); /* nobody is there */
    pump(NULL, 0, 5600);
    assert_true(counters(TAIL)->reconnects >= 1);
    connect_ring();
    round_trip();
}

int main(void)
{
#define RING(test) cmocka_unit_test_setup_teardown(test, open_ring, close_ring)
#define PLAIN(test) cmocka_unit_test_setup_teardown(test, open_plain_ring, close_ring)
    const struct CMUnitTest tests[] = {
        RING(messages_go_around),
        RING(messages_come_out_in_order_and_whole),
        RING(sending_needs_no_receiving),
        RING(control_is_bounded_too),
        RING(a_peer_vanishes_and_comes_back),
        RING(a_restarted_process_gets_a_new_number),
        RING(a_stage_that_connects_too_early_waits_at_the_door),
        RING(unknown_keys_reach_nothing),
        RING(no_keys_reach_nothing),
        RING(a_wrong_server_key_reaches_nothing),
        RING(only_the_stage_before_may_send_rows),
        RING(a_key_that_is_trusted_later_gets_in),
        RING(garbage_on_every_port_comes_to_nothing),
        RING(silent_connections_do_not_hold_the_door),
        PLAIN(plaintext_works_and_old_framing_is_refused),
        PLAIN(huge_frames_are_refused_by_their_header),
        PLAIN(messages_of_many_frames_are_dropped_whole),
        cmocka_unit_test(wrong_options_are_refused),
        RING(a_stuck_connection_is_made_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
