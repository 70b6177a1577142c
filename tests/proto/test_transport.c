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
    char first_byte;
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
        e->n++;
        e->last = p;
        e->first_byte = (char)p.header[0];
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
        poll(fds, N_ENDS, 200);
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
    assert_true(ends[HEAD].last.peer == PEER_COORDINATOR && ends[HEAD].first_byte == 'a');
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(messages_go_around, open_ring, close_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
