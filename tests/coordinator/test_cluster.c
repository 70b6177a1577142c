/* Goal: whatever nodes with trusted keys say, the coordinator's logic stops at no CHECK, keeps its books and takes nodes back when they are
 * well again. Method: the real cluster, every node played by this test message by message; time is a number. (Whole clusters under faults:
 * tests/sim.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "coordinator/cluster.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

enum { VOCAB = 16, PROMPT = 8, START_S = 5000, NAMES = 64 };

struct play {
    struct cluster *cluster;
    struct model_config model;
    uint64_t layer_bytes[STAGES_MAX + 1], now_ns;
    int n_nodes;
    uint32_t counter;      /* of the present epoch */
    int n_restarts[NAMES]; /* of each node's process: another peer, another boot */
    struct outbox out;
    int n_put, n_put_max; /* messages of the last tick, and of the tick with most of them */
};

static void name_of(int node, char name[16])
{
    snprintf(name, 16, "n%02d", node);
}

/* One layer a node; every cut is legal. */
static void begin(struct play *p, int n_nodes, int max_sequences, int queue_max)
{
    *p = (struct play){.n_nodes = n_nodes, .now_ns = START_S * SECOND};
    p->model = (struct model_config){.n_layers = n_nodes, .vocab_size = VOCAB, .hidden_size = 4};
    for (int i = 0; i < n_nodes; i++) {
        p->model.has_indexer[i] = 1;
        p->layer_bytes[i] = 100;
    }
    p->cluster = cluster_new(&(struct cluster_config){.model = &p->model,
                                                      .numeric = {1, "f32", "f32", "f32", "00112233445566778899aabbccddeeff"},
                                                      .n_tokens = VOCAB,
                                                      .n_nodes = n_nodes,
                                                      .layer_bytes = p->layer_bytes,
                                                      .row_endpoint = "tcp://10.0.0.100:7601",
                                                      .max_positions = 1 << 20,
                                                      .max_sequences = max_sequences,
                                                      .queue_max = queue_max,
                                                      .chunk_rows = PROMPT,
                                                      .max_rows_in_flight = 4 * PROMPT + max_sequences,
                                                      .request_deadline_ns = 30 * SECOND,
                                                      .instance = 77});
    outbox_init(&p->out, CLUSTER_MESSAGES_MAX);
}

static void end(struct play *p)
{
    cluster_free(&p->cluster);
    outbox_release(&p->out);
}

static void tick(struct play *p, uint64_t later_ns)
{
    p->now_ns += later_ns;
    cluster_tick(p->cluster, p->now_ns, &p->out);
    p->n_put = p->out.n;
    p->n_put_max = p->out.n > p->n_put_max ? p->out.n : p->n_put_max;
    outbox_clear(&p->out);
}

static uint64_t boot_of(const struct play *p, int node)
{
    return (uint64_t)(node + NAMES * p->n_restarts[node]) + 1;
}

static void say(struct play *p, int node, enum channel channel, Hearth__Envelope *e)
{
    Hearth__Epoch epoch = HEARTH__EPOCH__INIT;
    epoch.instance = 77;
    epoch.counter = p->counter;
    e->protocol = PROTOCOL_VERSION;
    e->epoch = &epoch;
    cluster_on_message(p->cluster, PEER_FIRST_NODE + (int)boot_of(p, node), "", channel, e, NULL, p->now_ns, &p->out);
    outbox_clear(&p->out);
}

static void hello(struct play *p, int node)
{
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Hello body = HEARTH__HELLO__INIT;
    Hearth__NumericClass numeric = HEARTH__NUMERIC_CLASS__INIT;
    char name[16];
    name_of(node, name);
    numeric.contract = 1;
    numeric.activations = numeric.cache = numeric.wire = "f32";
    numeric.model_identity = "00112233445566778899aabbccddeeff";
    body.protocol = PROTOCOL_VERSION;
    body.node = name;
    body.version = "0";
    body.numeric = &numeric;
    body.n_layers = (uint32_t)p->n_nodes;
    body.row_endpoint = "tcp://10.0.0.1:7602";
    body.row_key = "";
    body.boot = boot_of(p, node);
    e.body_case = HEARTH__ENVELOPE__BODY_HELLO;
    e.hello = &body;
    say(p, node, CHANNEL_CONTROL, &e);
}

static void beat(struct play *p, int node, uint32_t unit_ms, uint64_t rows)
{
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Heartbeat body = HEARTH__HEARTBEAT__INIT;
    body.state = "ready";
    body.unit_ms = unit_ms;
    body.rows = rows;
    body.boot = boot_of(p, node);
    e.body_case = HEARTH__ENVELOPE__BODY_HEARTBEAT;
    e.heartbeat = &body;
    say(p, node, CHANNEL_CONTROL, &e);
}

static void ready(struct play *p, int node)
{
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Ready body = HEARTH__READY__INIT;
    body.layer_begin = (uint32_t)node;
    body.layer_end = (uint32_t)node + 1;
    e.body_case = HEARTH__ENVELOPE__BODY_READY;
    e.ready = &body;
    say(p, node, CHANNEL_CONTROL, &e);
}

/* A new map is due: everyone takes its range. */
static void take_ranges(struct play *p)
{
    tick(p, MS);
    p->counter++;
    for (int i = 0; i < p->n_nodes; i++)
        ready(p, i);
    assert_true(cluster_is_ready(p->cluster));
}

static void come_together(struct play *p)
{
    for (int i = 0; i < p->n_nodes; i++)
        hello(p, i);
    take_ranges(p);
}

/* Half seconds in which every node says that it is well. */
static void live(struct play *p, int n_beats)
{
    for (; n_beats; n_beats--) {
        for (int i = 0; i < p->n_nodes; i++)
            beat(p, i, 0, 0);
        tick(p, SECOND / 2);
    }
}

static uint64_t ask(struct play *p)
{
    static const int prompt[PROMPT] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint64_t id;
    int retry;
    struct error err;
    struct cluster_request request = {.prompt = prompt, .n_prompt = PROMPT, .max_new = 4, .sampling = sampler_params_default};
    request.sampling.temperature = 0;
    assert_int_equal(cluster_submit(p->cluster, &request, p->now_ns, &id, &retry, &err), SUBMIT_OK);
    return id;
}

static void opened(struct play *p, int node, uint64_t id)
{
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Opened body = HEARTH__OPENED__INIT;
    body.sequence = id;
    body.stage = (uint32_t)node;
    e.body_case = HEARTH__ENVELOPE__BODY_OPENED;
    e.opened = &body;
    say(p, node, CHANNEL_CONTROL, &e);
}

static void result(struct play *p, uint64_t id, uint32_t position)
{
    uint32_t ids[] = {3};
    float logits[] = {1};
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Result body = HEARTH__RESULT__INIT;
    body.sequence = id;
    body.position = position;
    body.n_ids = body.n_logits = 1;
    body.ids = ids;
    body.logits = logits;
    e.body_case = HEARTH__ENVELOPE__BODY_RESULT;
    e.result = &body;
    say(p, p->n_nodes - 1, CHANNEL_ROWS, &e);
}

static int n_events(struct play *p, enum cluster_event_kind kind)
{
    struct cluster_event event;
    int n = 0;
    while (cluster_next_event(p->cluster, &event))
        n += event.kind == kind;
    return n;
}

static double number_of(struct play *p, const char *key)
{
    json_t *status = cluster_status(p->cluster, p->now_ns);
    assert_non_null(status);
    double value = json_number_value(json_object_get(status, key));
    json_decref(status);
    return value;
}

static double rate_of(struct play *p, int node)
{
    json_t *status = cluster_status(p->cluster, p->now_ns);
    double value = json_number_value(json_object_get(json_array_get(json_object_get(status, "nodes"), (size_t)node), "rows_per_second"));
    json_decref(status);
    return value;
}

/* ---- promises ---- */

static void a_long_remark_of_a_node_is_cut_between_characters(void **state)
{
    (void)state;
    for (int shift = 0; shift < 4; shift++) {
        struct play p;
        char sentence[TEXT_BYTES_MAX + 1] = "abcd";
        begin(&p, 2, 4, 4);
        come_together(&p);
        ask(&p);
        tick(&p, MS);
        sentence[shift] = 0;
        for (int i = 0; strlen(sentence) + 4 <= TEXT_BYTES_MAX; i++)
            strcat(sentence, i % 2 ? "\xe2\x82\xac" : "\xf0\x9f\x94\xa5"); /* three and four bytes */
        Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
        Hearth__Refuse body = HEARTH__REFUSE__INIT;
        body.code = REFUSE_INTERNAL;
        body.sentence = sentence;
        body.scope = HEARTH__SCOPE__SCOPE_NODE;
        e.body_case = HEARTH__ENVELOPE__BODY_REFUSE;
        e.refuse = &body;
        say(&p, 1, CHANNEL_CONTROL, &e);
        tick(&p, MS);
        json_t *status = cluster_status(p.cluster, p.now_ns);
        assert_non_null(status); /* of text that is no UTF-8 there is no JSON */
        const char *missing = json_string_value(json_object_get(status, "missing"));
        assert_non_null(strstr(missing, "n01"));
        assert_non_null(strstr(missing, "\xe2\x82\xac"));
        const char *failure = json_string_value(json_object_get(status, "last_failure")); /* the running answer's */
        assert_non_null(strstr(failure, "\xe2\x82\xac"));
        assert_null(strchr(failure, '?'));
        assert_non_null(strstr(failure, "layers 1-2 are not served until it is back"));
        json_decref(status);
        end(&p);
    }
}

static void a_node_that_hung_is_taken_back_when_it_moves_again(void **state)
{
    (void)state;
    struct play p;
    begin(&p, 2, 4, 4);
    come_together(&p);
    beat(&p, 1, 61000, 0);
    tick(&p, MS);
    assert_false(cluster_is_ready(p.cluster));
    hello(&p, 1); /* it says so as long as it hears nothing; its compute thread still hangs */
    tick(&p, MS);
    beat(&p, 1, 61500, 0);
    hello(&p, 1);
    json_t *status = cluster_status(p.cluster, p.now_ns);
    assert_non_null(strstr(json_string_value(json_object_get(status, "missing")), "hangs")); /* its Hellos do not hide why */
    json_decref(status);
    tick(&p, MS);
    assert_false(cluster_is_ready(p.cluster));
    beat(&p, 1, 0, 5);
    beat(&p, 0, 0, 0);
    hello(&p, 1);
    take_ranges(&p);
    end(&p);
}

static void a_node_that_hung_may_be_restarted(void **state)
{
    (void)state;
    struct play p;
    begin(&p, 1, 4, 4);
    come_together(&p);
    beat(&p, 0, 61000, 0);
    tick(&p, MS);
    assert_false(cluster_is_ready(p.cluster));
    p.n_restarts[0]++; /* killed; nothing was heard of the old process since */
    hello(&p, 0);
    take_ranges(&p);
    end(&p);
}

static void rows_from_before_a_return_are_no_speed(void **state)
{
    (void)state;
    struct play p;
    begin(&p, 2, 4, 4);
    come_together(&p);
    for (int i = 0; i < 10; i++) {
        beat(&p, 0, 0, 1000000);
        beat(&p, 1, 0, 0);
        tick(&p, SECOND / 2);
    }
    hello(&p, 0); /* it had lost us; its count goes on */
    for (int i = 0; i < 10; i++) {
        beat(&p, 0, 0, 1000000);
        beat(&p, 1, 0, 0);
        assert_true(rate_of(&p, 0) < 1);
        tick(&p, SECOND / 2);
    }
    end(&p);
}

static void use_of_experts_is_shown_of_nodes_that_have_them_on_disk(void **state)
{
    (void)state;
    struct play p;
    begin(&p, 2, 4, 4);
    come_together(&p);
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Heartbeat body = HEARTH__HEARTBEAT__INIT;
    body.state = "ready";
    body.boot = boot_of(&p, 1);
    body.expert_hits = 11;
    body.expert_misses = 12;
    body.expert_read_bytes = UINT64_C(1) << 40;
    body.expert_wait_ms = 14;
    body.expert_slots_used = 15;
    body.expert_slots = 16;
    e.body_case = HEARTH__ENVELOPE__BODY_HEARTBEAT;
    e.heartbeat = &body;
    say(&p, 1, CHANNEL_CONTROL, &e);
    beat(&p, 0, 0, 0);
    json_t *status = cluster_status(p.cluster, p.now_ns), *nodes = json_object_get(status, "nodes");
    json_t *want = json_pack("{s:i, s:i, s:I, s:i, s:i, s:i}", "hits", 11, "misses", 12, "read_bytes", (json_int_t)1 << 40, "wait_ms", 14,
                             "slots_used", 15, "slots", 16);
    assert_true(json_equal(json_object_get(json_array_get(nodes, 1), "experts"), want));
    assert_null(json_object_get(json_array_get(nodes, 0), "experts"));
    json_decref(want);
    json_decref(status);
    end(&p);
}

static void incomplete_since_counts_from_when_it_was_complete_last(void **state)
{
    (void)state;
    struct play p;
    begin(&p, 2, 1, 4);
    assert_true(number_of(&p, "since_s") == 0); /* not since the machine started, even before the first tick */
    tick(&p, MS);
    tick(&p, 3 * SECOND);
    assert_true(number_of(&p, "since_s") > 2.9 && number_of(&p, "since_s") < 3.1);
    come_together(&p);
    live(&p, 8);
    assert_true(number_of(&p, "since_s") < 1);
    ask(&p), ask(&p);
    tick(&p, MS);
    /* the second one waits in the queue while node 1 comes and goes, and is told before 11 s have passed */
    int n_failed = 0;
    for (int i = 0; i < 11; i++) {
        beat(&p, 0, 0, 0);
        hello(&p, 1); /* ends the map that was just made */
        tick(&p, MS);
        beat(&p, 0, 0, 0);
        beat(&p, 1, 0, 0);
        tick(&p, SECOND - MS);
        n_failed += n_events(&p, EVENT_FAILED);
    }
    assert_int_equal(n_failed, 2);
    assert_int_equal(cluster_n_running(p.cluster), 0);
    end(&p);
}

static void results_of_rows_that_were_never_sent_have_no_effect(void **state)
{
    (void)state;
    struct play p;
    begin(&p, 2, 4, 4);
    come_together(&p);
    uint64_t id = ask(&p);
    tick(&p, MS);
    opened(&p, 0, id), opened(&p, 1, id);
    result(&p, id, PROMPT - 1); /* nothing was sent yet */
    result(&p, id, POSITIONS_MAX - 1);
    assert_int_equal(n_events(&p, EVENT_TOKEN), 0);
    tick(&p, MS);
    assert_int_equal(p.n_put, 1); /* the prompt's step */
    result(&p, id, PROMPT);
    result(&p, id, POSITIONS_MAX - 1);
    assert_int_equal(n_events(&p, EVENT_TOKEN), 0);
    result(&p, id, PROMPT - 1);
    assert_int_equal(n_events(&p, EVENT_TOKEN), 1);
    end(&p);
}

static void many_names_and_ranges_of_one_node_stop_nothing(void **state)
{
    (void)state;
    struct play p;
    begin(&p, 2, 4, 4);
    come_together(&p);
    for (int i = 0; i < 40; i++)
        hello(&p, 2 + i); /* more names than there is room for */
    for (int i = 0; i < 20; i++)
        for (int node = 0; node < 20; node++)
            ready(&p, (node + i) % 20);
    live(&p, 2);
    assert_true(cluster_is_ready(p.cluster));
    hello(&p, 0);
    tick(&p, 3 * SECOND); /* all are lost */
    assert_false(cluster_is_ready(p.cluster));
    come_together(&p);
    end(&p);
}

static void the_busiest_tick_fits_into_the_outbox(void **state)
{
    (void)state;
    struct play p;
    begin(&p, STAGES_MAX, CLUSTER_SEQUENCES_MAX, CLUSTER_SEQUENCES_MAX);
    come_together(&p);
    for (int i = 0; i < CLUSTER_SEQUENCES_MAX; i++)
        ask(&p);
    tick(&p, MS);
    assert_int_equal(p.n_put, CLUSTER_SEQUENCES_MAX * STAGES_MAX);
    n_events(&p, EVENT_ADMITTED);
    uint64_t first = 0;
    live(&p, 2);
    for (int i = 0; i < CLUSTER_SEQUENCES_MAX; i++) {
        uint64_t id = ask(&p); /* they wait */
        first = first ? first : id;
    }
    for (uint64_t id = first - CLUSTER_SEQUENCES_MAX; id < first; id++)
        for (int node = 0; node < STAGES_MAX; node++)
            opened(&p, node, id);
    live(&p, 57);
    for (int node = 0; node < STAGES_MAX; node++)
        beat(&p, node, 0, 0);
    tick(&p, SECOND / 2); /* all that run have passed their deadline, and as many are let in; heartbeats go out */
    assert_int_equal(n_events(&p, EVENT_FAILED), CLUSTER_SEQUENCES_MAX);
    assert_true(p.n_put_max > 2 * CLUSTER_SEQUENCES_MAX * STAGES_MAX && p.n_put_max <= CLUSTER_MESSAGES_MAX);
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_remark_of_a_node_is_cut_between_characters),
        cmocka_unit_test(a_node_that_hung_is_taken_back_when_it_moves_again),
        cmocka_unit_test(a_node_that_hung_may_be_restarted),
        cmocka_unit_test(rows_from_before_a_return_are_no_speed),
        cmocka_unit_test(use_of_experts_is_shown_of_nodes_that_have_them_on_disk),
        cmocka_unit_test(incomplete_since_counts_from_when_it_was_complete_last),
        cmocka_unit_test(results_of_rows_that_were_never_sent_have_no_effect),
        cmocka_unit_test(many_names_and_ranges_of_one_node_stop_nothing),
        cmocka_unit_test(the_busiest_tick_fits_into_the_outbox),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
