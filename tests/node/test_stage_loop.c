/* Goal: the node program keeps its side of the protocol with a coordinator that comes, goes, refuses and assigns: it waits, loads, answers,
 * shows a long unit for what it is, and leaves in time. Method: the real program (node_run in a child process) over loopback, the
 * coordinator played by this test with the real transport; one node has all layers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"
#include "node/stage_loop.h"
#include "proto/outbox.h"
#include "proto/zmq_transport.h"
#include "tests/lib/golden.h"

enum { N_BODIES = 64, PROMPT = 5, SEQUENCE = 11, WAIT_MS = 5000 };

struct play {
    pid_t pid;
    struct zmq_transport *transport;
    struct outbox out;
    uint32_t width;
    int peer;
    int is_beating;
    uint64_t beat_ms, instance;
    uint32_t counter;
    /* what has come */
    int n[N_BODIES];
    uint64_t last_ms[N_BODIES];
    char row_endpoint[ENDPOINT_BYTES_MAX + 1], sentence[TEXT_BYTES_MAX + 1], state[NAME_BYTES_MAX + 1];
    uint32_t unit_ms, scope;
    uint64_t progress, boot, free_positions;
    float *logits;
};

#ifdef __SANITIZE_THREAD__
/* libzmq is not built with the sanitizer, which therefore sees none of its synchronisation. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:libzmq.so\ncalled_from_lib:libzmq.so\n";
}
#endif

static char *folder;
static struct model *model;

static uint64_t now_ms(void)
{
    return clock_now_ns(clock_monotonic()) / 1000000;
}

static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    close(fd);
    return ntohs(address.sin_port);
}

/* ---- what the coordinator hears ---- */

static void note(struct play *p, const struct packet *packet, const Hearth__Envelope *e)
{
    p->n[e->body_case]++;
    p->last_ms[e->body_case] = now_ms();
    if (packet->channel == CHANNEL_CONTROL)
        p->peer = packet->peer;
    switch (e->body_case) {
    case HEARTH__ENVELOPE__BODY_HELLO:
        snprintf(p->row_endpoint, sizeof p->row_endpoint, "%s", e->hello->row_endpoint);
        p->boot = e->hello->boot;
        break;
    case HEARTH__ENVELOPE__BODY_HEARTBEAT:
        snprintf(p->state, sizeof p->state, "%s", e->heartbeat->state);
        p->unit_ms = e->heartbeat->unit_ms;
        p->progress = e->heartbeat->progress;
        assert_true(e->heartbeat->boot == p->boot || !p->boot);
        break;
    case HEARTH__ENVELOPE__BODY_REFUSE:
        snprintf(p->sentence, sizeof p->sentence, "%s", e->refuse->sentence);
        p->scope = e->refuse->scope;
        break;
    case HEARTH__ENVELOPE__BODY_READY:
        p->free_positions = e->ready->free_positions;
        break;
    case HEARTH__ENVELOPE__BODY_RESULT:
        free(p->logits);
        p->logits = xcalloc(1, packet->rows_bytes + 1);
        memcpy(p->logits, packet->rows, packet->rows_bytes);
        break;
    default:
        break;
    }
}

static void put(struct play *p, enum channel channel, Hearth__Envelope *e)
{
    Hearth__Epoch epoch = HEARTH__EPOCH__INIT;
    epoch.instance = p->instance;
    epoch.counter = p->counter;
    e->protocol = PROTOCOL_VERSION;
    e->epoch = &epoch;
    outbox_put(&p->out, channel == CHANNEL_ROWS ? PEER_NEXT : p->peer, channel, e, NULL, 0);
    outbox_flush(&p->out, zmq_transport_base(p->transport), NULL);
}

static void beat(struct play *p)
{
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Heartbeat body = HEARTH__HEARTBEAT__INIT;
    e.body_case = HEARTH__ENVELOPE__BODY_HEARTBEAT;
    e.heartbeat = &body;
    body.state = "ready";
    put(p, CHANNEL_CONTROL, &e);
    p->beat_ms = now_ms();
}

/* Listens for at most ms, or until a message of the kind has come (0: for all of the time). 1: it came. */
static int listen_for(struct play *p, int body, int ms)
{
    struct transport *t = zmq_transport_base(p->transport);
    uint64_t until = now_ms() + (uint64_t)ms;
    int before = p->n[body];
    while (now_ms() < until && (!body || p->n[body] == before)) {
        struct pollfd fd = {zmq_transport_fd(p->transport), POLLIN, 0};
        struct packet packet;
        if (p->is_beating && now_ms() - p->beat_ms > 300)
            beat(p);
        poll(&fd, 1, 20);
        while (t->receive(t, &packet)) {
            Hearth__Envelope *e;
            struct error err;
            if (wire_decode(&e, packet.header, packet.header_bytes, packet.rows, packet.rows_bytes, p->width, &err))
                fail_msg("%s", err.text);
            note(p, &packet, e);
            wire_free(&e);
        }
    }
    return !body || p->n[body] != before;
}

/* ---- what it says ---- */

static void assign(struct play *p, int begin, int end)
{
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Assign body = HEARTH__ASSIGN__INIT;
    body.layer_begin = (uint32_t)begin;
    body.layer_end = (uint32_t)end;
    body.n_stages = 1;
    body.next_endpoint = (char *)zmq_transport_row_endpoint(p->transport);
    body.next_key = body.previous_key = "";
    body.max_positions = 256;
    body.max_sequences = 2;
    body.max_rows_in_flight = 32;
    e.body_case = HEARTH__ENVELOPE__BODY_ASSIGN;
    e.assign = &body;
    p->counter++;
    put(p, CHANNEL_CONTROL, &e);
    p->is_beating = 1;
}

static void open_sequence(struct play *p)
{
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Open body = HEARTH__OPEN__INIT;
    body.sequence = SEQUENCE;
    body.positions = 64;
    body.temperature = body.top_p = 1;
    body.row_width = p->width;
    body.n_tokens = 100;
    e.body_case = HEARTH__ENVELOPE__BODY_OPEN;
    e.open = &body;
    put(p, CHANNEL_CONTROL, &e);
}

static void prefill(struct play *p)
{
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Step body = HEARTH__STEP__INIT;
    uint32_t ids[PROMPT] = {5, 17, 900, 33, 4};
    body.sequence = SEQUENCE;
    body.cut_from = NO_CUT;
    body.n_rows = body.chunk_rows = PROMPT;
    body.n_token_ids = PROMPT;
    body.token_ids = ids;
    body.next_token = -1;
    body.want = WANT_LOGITS | WANT_CANDIDATES;
    body.prefix_hash = WIRE_HASH_EMPTY;
    body.remaining_ms = 60000;
    e.body_case = HEARTH__ENVELOPE__BODY_STEP;
    e.step = &body;
    put(p, CHANNEL_ROWS, &e);
}

static void refuse(struct play *p)
{
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Refuse body = HEARTH__REFUSE__INIT;
    body.code = REFUSE_MODEL;
    body.sentence = "another model (this is a test)";
    body.scope = HEARTH__SCOPE__SCOPE_NODE;
    e.body_case = HEARTH__ENVELOPE__BODY_REFUSE;
    e.refuse = &body;
    put(p, CHANNEL_CONTROL, &e);
}

/* ---- a play ---- */

static void begin(struct play *p, int slow_unit_ms)
{
    struct error err = {0};
    char control[64];
    snprintf(control, sizeof control, "tcp://127.0.0.1:%d", free_port());
    *p = (struct play){.instance = 77, .width = (uint32_t)model->config->hidden_size};
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (!p->pid) {
        char slow[16];
        snprintf(slow, sizeof slow, "%d", slow_unit_ms);
        execl("/proc/self/exe", "node", "--as-node", control, folder, slow, (char *)NULL);
        _exit(EXIT_FAILURE);
    }
    outbox_init(&p->out, 8);
    struct zmq_transport_options t = {
        .role = ROLE_COORDINATOR, .control_endpoint = control, .row_endpoint = "tcp://127.0.0.1:*", .plaintext = 1};
    if (zmq_transport_open(&p->transport, &t, &err))
        fail_msg("%s", err.text);
}

/* SIGTERM: Drain, and exit 0 in time. */
static void end(struct play *p)
{
    int status, waited = 0;
    kill(p->pid, SIGTERM);
    assert_true(listen_for(p, HEARTH__ENVELOPE__BODY_DRAIN, 1000));
    for (; waitpid(p->pid, &status, WNOHANG) == 0; waited += 10) {
        assert_true(waited < 4000);
        listen_for(p, 0, 10);
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    zmq_transport_close(&p->transport);
    outbox_release(&p->out);
    free(p->logits);
}

static void connect_rows(struct play *p)
{
    struct error err;
    if (zmq_transport_set_next(p->transport, p->row_endpoint, "", &err))
        fail_msg("%s", err.text);
}

static void assign_and_wait(struct play *p)
{
    assert_true(listen_for(p, HEARTH__ENVELOPE__BODY_HELLO, WAIT_MS));
    connect_rows(p);
    assign(p, 0, model->config->n_layers);
    assert_true(listen_for(p, HEARTH__ENVELOPE__BODY_READY, 4 * WAIT_MS));
}

static void expect_answer(struct play *p)
{
    struct error err;
    struct sequence_state s;
    static const int ids[PROMPT] = {5, 17, 900, 33, 4};
    size_t vocab = (size_t)model->config->vocab_size;
    float *want = xcalloc(PROMPT * vocab, sizeof *want);
    open_sequence(p);
    assert_true(listen_for(p, HEARTH__ENVELOPE__BODY_OPENED, WAIT_MS));
    prefill(p);
    assert_true(listen_for(p, HEARTH__ENVELOPE__BODY_RESULT, 4 * WAIT_MS));
    assert_int_equal(model_sequence_init(model, &s, PROMPT, &err), STATUS_OK);
    assert_int_equal(model_forward(model, &(struct model_input){&s, ids, PROMPT, want, NULL}, 1, &err), STATUS_OK);
    assert_memory_equal(p->logits, want + (PROMPT - 1) * vocab, vocab * sizeof *want);
    sequence_state_release(&s);
    free(want);
}

static void a_node_waits_loads_answers_and_leaves(void **state)
{
    (void)state;
    struct play p;
    begin(&p, 0);
    assert_true(listen_for(&p, HEARTH__ENVELOPE__BODY_HELLO, WAIT_MS));
    int hellos = p.n[HEARTH__ENVELOPE__BODY_HELLO];
    listen_for(&p, 0, 1800);
    assert_in_range(p.n[HEARTH__ENVELOPE__BODY_HELLO] - hellos, 2, 4);
    assert_string_equal(p.state, "waiting");
    assign_and_wait(&p);
    assert_int_equal(p.free_positions, 256);
    expect_answer(&p);
    /* What belongs to another epoch has no effect. */
    p.counter--;
    open_sequence(&p);
    assert_false(listen_for(&p, HEARTH__ENVELOPE__BODY_OPENED, 300));
    p.counter++;
    hellos = p.n[HEARTH__ENVELOPE__BODY_HELLO];
    listen_for(&p, 0, 2500);
    assert_string_equal(p.state, "ready");
    assert_int_equal(p.n[HEARTH__ENVELOPE__BODY_HELLO], hellos);
    end(&p);
}

static void a_silent_coordinator_is_waited_for_and_a_new_one_is_obeyed(void **state)
{
    (void)state;
    struct play p;
    begin(&p, 0);
    assign_and_wait(&p);
    p.is_beating = 0;
    uint64_t silent_ms = now_ms();
    assert_true(listen_for(&p, HEARTH__ENVELOPE__BODY_HELLO, 4000));
    assert_in_range(now_ms() - silent_ms, 1500, 3500);
    p.instance = 78;
    p.counter = 0;
    assign_and_wait(&p); /* the weights are still there */
    expect_answer(&p);
    end(&p);
}

static void a_refusal_is_retried_slowly(void **state)
{
    (void)state;
    struct play p;
    begin(&p, 0);
    assert_true(listen_for(&p, HEARTH__ENVELOPE__BODY_HELLO, WAIT_MS));
    refuse(&p);
    listen_for(&p, 0, 300);
    uint64_t refused_ms = now_ms();
    assert_true(listen_for(&p, HEARTH__ENVELOPE__BODY_HELLO, 8000));
    assert_in_range(now_ms() - refused_ms, 3500, 6000);
    /* And what it cannot own itself. */
    assign(&p, 3, model->config->n_layers);
    assert_true(listen_for(&p, HEARTH__ENVELOPE__BODY_REFUSE, WAIT_MS));
    assert_int_equal(p.scope, HEARTH__SCOPE__SCOPE_NODE);
    assert_non_null(strstr(p.sentence, "can be cut before"));
    refused_ms = now_ms();
    assert_true(listen_for(&p, HEARTH__ENVELOPE__BODY_HELLO, 8000));
    assert_in_range(now_ms() - refused_ms, 4000, 6000);
    assert_string_equal(p.state, "failed");
    assign_and_wait(&p);
    end(&p);
}

static void a_long_unit_is_seen_and_ends_in_time(void **state)
{
    (void)state;
    struct play p;
    begin(&p, 2500);
    assign_and_wait(&p);
    open_sequence(&p);
    assert_true(listen_for(&p, HEARTH__ENVELOPE__BODY_OPENED, WAIT_MS));
    prefill(&p);
    listen_for(&p, 0, 1700);
    uint64_t progress = p.progress;
    assert_in_range(p.unit_ms, 500, 2500);
    assert_int_equal(p.n[HEARTH__ENVELOPE__BODY_RESULT], 0);
    listen_for(&p, 0, 3000);
    assert_true(p.progress > progress);
    end(&p);
}

static int set_up(void **state)
{
    (void)state;
    folder = temporary_copy(kindling_dir());
    model = open_or_fail(folder, &(struct model_options){.n_threads = 1, .max_positions = 64});
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    model_close(&model);
    temporary_remove(&folder);
    return 0;
}

/* What the child process is: hearth-node with these options. */
static int be_a_node(const char *control, const char *dir, int slow_unit_ms)
{
    struct error err = {0};
    struct node_options o = {.model = dir,
                             .name = "n",
                             .coordinator = control,
                             .bind = "tcp://127.0.0.1:*",
                             .isa = "auto",
                             .metrics = "off",
                             .threads = 1,
                             .slow_unit_ms = slow_unit_ms,
                             .plaintext = 1};
    enum status status = node_run(&o, &err);
    if (status)
        fprintf(stderr, "node: %s\n", err.text);
    return status ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "--as-node"))
        return be_a_node(argv[2], argv[3], atoi(argv[4]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_waits_loads_answers_and_leaves),
        cmocka_unit_test(a_silent_coordinator_is_waited_for_and_a_new_one_is_obeyed),
        cmocka_unit_test(a_refusal_is_retried_slowly),
        cmocka_unit_test(a_long_unit_is_seen_and_ends_in_time),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
