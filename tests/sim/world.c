#include "tests/sim/world.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/memory.h"
#include "coordinator/cluster.h"
#include "coordinator/cluster_state.h"
#include "model/head.h"
#include "node/stage.h"
#include "tests/sim/hash_engine.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

enum {
    NODES = 3,
    LAYERS = 6,
    VOCAB = 97,
    ROW_WIDTH = HASH_ROW_WIDTH,
    POSITIONS = 64 * 12,
    SEQUENCES = 4,
    ROWS_IN_FLIGHT = 48,
    CHUNK = 8,
    COORDINATOR = NODES, /* actor numbers: nodes, then the coordinator */
    REQUESTS_MAX = 40,
    PROMPT_MAX = 60,
    NEW_MAX = 20,
    OUTBOX = 4096,
    KEPT_MAX = 32,
};

enum event_kind {
    EVENT_DELIVER,
    EVENT_UNIT,
    EVENT_NODE_TIMER,
    EVENT_TICK,
    EVENT_FAULT,
    EVENT_SUBMIT,
    EVENT_RESTART_NODE,
    EVENT_RESUME_NODE
};

struct message {
    int from, to, from_life, to_life;
    struct message *next; /* behind it on its link */
    enum channel channel;
    size_t header_bytes, rows_bytes;
    uint8_t *bytes;
};

struct event {
    uint64_t at, order;
    enum event_kind kind;
    int actor; /* EVENT_DELIVER: the receiver, with the sender and the channel */
    int from;
    enum channel channel;
};

/* Messages of one connection arrive in order. Every message has an event; an event that may deliver takes the first message. */
struct link {
    struct message *first, *last;
    uint64_t last_delivery;
};

struct node {
    int life; /* raised by every start */
    int is_alive, is_paused;
    uint64_t boot, heard_ns, epoch_instance, units, rows;
    uint32_t epoch_counter;
    int next, previous_is_coordinator;
    char previous_key[PEER_KEY_BYTES];
    struct hash_engine *engine;
    struct stage *stage;
    int has_unit_event, is_ready, begin, end;
};

struct asked {
    uint64_t id;
    int prompt[PROMPT_MAX], n_prompt, want[NEW_MAX], n_want, got, is_over, must_finish;
    int is_teacher_forced, n_rows, n_drafts;                  /* rows whose logits have come */
    float rows[PROMPT_MAX][VOCAB], drafts[PROMPT_MAX][VOCAB]; /* teacher-forced: what one process gives */
};

struct world {
    struct clock clock; /* first: the real code reads it */
    uint64_t now, random, order;
    enum world_defect defect;
    struct event *heap;
    int n_events, events_capacity;
    struct node nodes[NODES];
    int coordinator_life;
    struct cluster *cluster;
    struct model_config model;
    uint64_t layer_bytes[LAYERS + 1];
    struct link links[NODES + 1][NODES + 1][N_CHANNELS];
    int is_cut[NODES + 1][NODES + 1];
    struct message *kept[KEPT_MAX]; /* copies of messages to nodes, some of which come again in another epoch */
    struct asked asked[REQUESTS_MAX];
    int n_asked, is_healing;
    double loss;
    uint64_t delay_max;
    struct world_result result;
};

static uint64_t draw(struct world *w, uint64_t n)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return n ? w->random % n : 0;
}

static void violation(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void violation(struct world *w, const char *format, ...)
{
    if (w->result.violation[0])
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(w->result.violation, sizeof w->result.violation, format, args);
    va_end(args);
}

static uint64_t sim_now_ns(struct clock *clock)
{
    return ((struct world *)clock)->now;
}

/* ---- the event heap ---- */

static int is_before(const struct event *a, const struct event *b)
{
    return a->at < b->at || (a->at == b->at && a->order < b->order);
}

static void schedule_on(struct world *w, uint64_t at, enum event_kind kind, int actor, int from, enum channel channel)
{
    if (w->n_events == w->events_capacity) {
        w->events_capacity = w->events_capacity ? 2 * w->events_capacity : 256;
        w->heap = xrealloc(w->heap, (size_t)w->events_capacity * sizeof *w->heap);
    }
    int i = w->n_events++;
    w->heap[i] = (struct event){at, w->order++, kind, actor, from, channel};
    for (; i > 0 && is_before(&w->heap[i], &w->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        struct event swap = w->heap[i];
        w->heap[i] = w->heap[(i - 1) / 2];
        w->heap[(i - 1) / 2] = swap;
    }
}

static void schedule(struct world *w, uint64_t at, enum event_kind kind, int actor)
{
    schedule_on(w, at, kind, actor, 0, CHANNEL_CONTROL);
}

static struct event next_event(struct world *w)
{
    struct event first = w->heap[0];
    w->heap[0] = w->heap[--w->n_events];
    for (int i = 0, child; (child = 2 * i + 1) < w->n_events; i = child) {
        if (child + 1 < w->n_events && is_before(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (is_before(&w->heap[i], &w->heap[child]))
            break;
        struct event swap = w->heap[i];
        w->heap[i] = w->heap[child];
        w->heap[child] = swap;
    }
    return first;
}

/* ---- the network ---- */

static int life_of(const struct world *w, int actor)
{
    return actor == COORDINATOR ? w->coordinator_life : w->nodes[actor].life;
}

static void free_message(struct message **m)
{
    free((*m)->bytes);
    free(*m);
    *m = NULL;
}

static void key_of(int actor, char key[PEER_KEY_BYTES])
{
    memset(key, 'a' + actor, PEER_KEY_BYTES - 1);
    key[PEER_KEY_BYTES - 1] = 0;
}

/* Some row messages are lost (a full queue somewhere). */
static void send_one(struct world *w, int from, int to, const struct outgoing *o)
{
    w->result.n_messages++;
    if (o->channel == CHANNEL_ROWS && (double)draw(w, 1000000) < w->loss * 1e6) {
        w->result.n_lost++;
        return;
    }
    size_t offset = (o->header_bytes + 7) & ~(size_t)7;
    struct message *m = xcalloc(1, sizeof *m);
    *m = (struct message){.from = from,
                          .to = to,
                          .from_life = life_of(w, from),
                          .to_life = life_of(w, to),
                          .channel = o->channel,
                          .header_bytes = o->header_bytes,
                          .rows_bytes = o->rows_bytes,
                          .bytes = xcalloc(offset + o->rows_bytes, 1)};
    memcpy(m->bytes, o->bytes, offset + o->rows_bytes);
    struct link *link = &w->links[from][to][o->channel];
    uint64_t at = w->now + 50000 + draw(w, w->delay_max);
    link->last_delivery = at > link->last_delivery ? at : link->last_delivery + 1;
    *(link->last ? &link->last->next : &link->first) = m;
    link->last = m;
    schedule_on(w, link->last_delivery, EVENT_DELIVER, to, from, o->channel);
}

static void flush(struct world *w, int from, struct outbox *out)
{
    for (int i = 0; i < out->n; i++) {
        const struct outgoing *o = &out->messages[i];
        int to;
        if (from == COORDINATOR && o->channel == CHANNEL_ROWS) {
            const struct membership *m = &w->cluster->membership; /* the loop connects to stage 0 of the map */
            if (!m->n_stages)
                continue;
            to = m->members[m->by_stage[0]].name[1] - '0';
        } else if (from == COORDINATOR) {
            to = (o->peer - PEER_FIRST_NODE) % NODES;
            if ((o->peer - PEER_FIRST_NODE) / NODES != w->nodes[to].life)
                continue; /* that connection is gone */
        } else {
            to = o->peer == PEER_COORDINATOR ? COORDINATOR : w->nodes[from].next;
        }
        send_one(w, from, to, o);
    }
    outbox_clear(out);
}

/* ---- a node around its stage ---- */

static void node_put(struct world *w, int i, Hearth__Envelope *e, struct outbox *out)
{
    Hearth__Epoch epoch = HEARTH__EPOCH__INIT;
    epoch.instance = w->nodes[i].epoch_instance;
    epoch.counter = w->nodes[i].epoch_counter;
    e->protocol = PROTOCOL_VERSION;
    e->epoch = &epoch;
    outbox_put(out, PEER_COORDINATOR, CHANNEL_CONTROL, e, NULL, 0);
}

static void free_stage(struct node *n)
{
    if (n->stage)
        stage_free(&n->stage);
    if (n->engine)
        hash_engine_free(&n->engine);
    n->is_ready = 0;
}

static void say_hello(struct world *w, int i, struct outbox *out)
{
    char name[3] = {'n', (char)('0' + i), 0}, key[PEER_KEY_BYTES], endpoint[32];
    key_of(i, key);
    snprintf(endpoint, sizeof endpoint, "tcp://10.0.0.%d:7602", i);
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Hello hello = HEARTH__HELLO__INIT;
    Hearth__NumericClass numeric = HEARTH__NUMERIC_CLASS__INIT;
    numeric.contract = 1;
    numeric.activations = numeric.cache = numeric.wire = "f32";
    numeric.model_identity = "00112233445566778899aabbccddeeff";
    hello.protocol = PROTOCOL_VERSION;
    hello.node = name;
    hello.version = "0";
    hello.numeric = &numeric;
    hello.n_layers = LAYERS;
    hello.has_mtp = 1;
    hello.row_endpoint = endpoint;
    hello.row_key = key;
    hello.threads = 1;
    hello.boot = w->nodes[i].boot;
    e.body_case = HEARTH__ENVELOPE__BODY_HELLO;
    e.hello = &hello;
    w->nodes[i].epoch_instance = w->nodes[i].epoch_counter = 0;
    node_put(w, i, &e, out);
}

static void node_timer(struct world *w, int i)
{
    struct node *n = &w->nodes[i];
    struct outbox out;
    outbox_init(&out, OUTBOX);
    if (w->now - n->heard_ns > 2 * SECOND || !n->stage) {
        free_stage(n);
        say_hello(w, i, &out);
    } else {
        Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
        if (!n->is_ready) { /* loading took one timer */
            Hearth__Ready ready = HEARTH__READY__INIT;
            ready.layer_begin = (uint32_t)n->begin;
            ready.layer_end = (uint32_t)n->end;
            e.body_case = HEARTH__ENVELOPE__BODY_READY;
            e.ready = &ready;
            node_put(w, i, &e, &out);
            n->is_ready = 1;
        }
        Hearth__Heartbeat beat = HEARTH__HEARTBEAT__INIT;
        beat.progress = n->units;
        beat.state = "ready";
        beat.boot = n->boot;
        e.body_case = HEARTH__ENVELOPE__BODY_HEARTBEAT;
        e.heartbeat = &beat;
        node_put(w, i, &e, &out);
    }
    flush(w, i, &out);
    outbox_release(&out);
    schedule(w, w->now + 400 * MS + draw(w, 100 * MS), EVENT_NODE_TIMER, i);
}

static int actor_of_endpoint(const char *endpoint)
{
    int actor = -1;
    sscanf(endpoint, "tcp://10.0.0.%d:", &actor);
    return actor;
}

static void on_assign(struct world *w, int i, const Hearth__Envelope *e)
{
    struct node *n = &w->nodes[i];
    const Hearth__Assign *a = e->assign;
    struct error err;
    free_stage(n);
    n->epoch_instance = e->epoch->instance;
    n->epoch_counter = e->epoch->counter;
    n->begin = (int)a->layer_begin;
    n->end = (int)a->layer_end;
    n->next = actor_of_endpoint(a->next_endpoint);
    snprintf(n->previous_key, sizeof n->previous_key, "%s", a->previous_key);
    int is_tail = a->stage + 1 == a->n_stages;
    n->engine = hash_engine_new(&(struct hash_engine_options){.layer_begin = n->begin,
                                                              .layer_end = n->end,
                                                              .n_layers = LAYERS,
                                                              .has_mtp = is_tail,
                                                              .vocab_size = VOCAB,
                                                              .max_sequences = (int)a->max_sequences,
                                                              .max_positions = (int)a->max_positions,
                                                              .set_rows = n->end % 2 ? 2 * CHUNK : 0,
                                                              .bad_token = -1,
                                                              .bad_layer = -1});
    struct stage_config config = {.epoch_instance = n->epoch_instance,
                                  .epoch_counter = n->epoch_counter,
                                  .stage = (int)a->stage,
                                  .n_stages = (int)a->n_stages,
                                  .max_positions = (int)a->max_positions,
                                  .max_sequences = (int)a->max_sequences,
                                  .max_rows_in_flight = (int)a->max_rows_in_flight,
                                  .unit_rows_max = 6};
    if (stage_new(&n->stage, &config, &n->engine->base, &err))
        violation(w, "stage_new: %s", err.text);
}

static void wake_stage(struct world *w, int i)
{
    struct node *n = &w->nodes[i];
    if (n->stage && !n->has_unit_event && stage_has_work(n->stage)) {
        n->has_unit_event = 1;
        schedule(w, w->now + MS / 2 + draw(w, 8 * MS), EVENT_UNIT, i);
    }
}

static void run_unit(struct world *w, int i)
{
    struct node *n = &w->nodes[i];
    n->has_unit_event = 0;
    if (!n->is_alive || n->is_paused || !n->stage || !stage_has_work(n->stage))
        return;
    struct outbox out;
    outbox_init(&out, OUTBOX);
    stage_run_unit(n->stage, &w->clock, &out);
    n->units++;
    if (n->engine->n_violations)
        violation(w, "node %d: %s", i, n->engine->violation);
    flush(w, i, &out);
    outbox_release(&out);
    wake_stage(w, i);
}

static void node_receive(struct world *w, int i, const struct message *m, const Hearth__Envelope *e, const float *rows)
{
    struct node *n = &w->nodes[i];
    char key[PEER_KEY_BYTES];
    key_of(m->from, key);
    if (m->channel == CHANNEL_CONTROL) {
        n->heard_ns = w->now;
        if (e->body_case == HEARTH__ENVELOPE__BODY_ASSIGN) {
            on_assign(w, i, e);
            return;
        }
    } else if (strcmp(key, n->previous_key)) {
        return;
    }
    if (!n->stage)
        return;
    struct outbox out;
    outbox_init(&out, OUTBOX);
    stage_handle(n->stage, e, rows, w->now, &out);
    flush(w, i, &out);
    outbox_release(&out);
    wake_stage(w, i);
}

/* ---- the coordinator around the cluster ---- */

static void start_coordinator(struct world *w)
{
    struct cluster_config config = {.model = &w->model,
                                    .numeric = {1, "f32", "f32", "f32", "00112233445566778899aabbccddeeff"},
                                    .n_tokens = VOCAB - 2,
                                    .n_nodes = NODES,
                                    .layer_bytes = w->layer_bytes,
                                    .row_endpoint = "tcp://10.0.0.3:7601",
                                    .max_positions = POSITIONS,
                                    .max_sequences = SEQUENCES,
                                    .queue_max = 8,
                                    .chunk_rows = CHUNK,
                                    .max_rows_in_flight = ROWS_IN_FLIGHT,
                                    .request_deadline_ns = 120 * SECOND,
                                    .instance = draw(w, UINT64_MAX) | 1};
    key_of(COORDINATOR, config.row_key);
    w->cluster = cluster_new(&config);
    w->coordinator_life++;
}

static struct asked *find_asked(struct world *w, uint64_t id)
{
    for (int i = 0; i < w->n_asked; i++)
        if (w->asked[i].id == id && !w->asked[i].is_over)
            return &w->asked[i];
    return NULL;
}

/* Every row once, in order, with the numbers of one process. */
static void check_logits(struct world *w, struct asked *a, const struct cluster_event *event)
{
    int *count = event->is_draft_row ? &a->n_drafts : &a->n_rows;
    const float *want = event->is_draft_row ? a->drafts[event->position] : a->rows[event->position];
    if (event->position != *count || memcmp(event->logits, want, sizeof a->rows[0]))
        violation(w, "request %d: logits of %s %d are wrong or out of order", (int)(a - w->asked), event->is_draft_row ? "MTP row" : "row",
                  event->position);
    ++*count;
}

static void take_events(struct world *w)
{
    struct cluster_event event;
    while (cluster_next_event(w->cluster, &event)) {
        struct asked *a = find_asked(w, event.request);
        if (!a) {
            violation(w, "an event of a request that is over or was never made");
            continue;
        }
        if (event.kind == EVENT_TOKEN && (a->got >= a->n_want || a->want[a->got] != event.token))
            violation(w, "request %d: token %d is %d, one process gives %d", (int)(a - w->asked), a->got, event.token,
                      a->got < a->n_want ? a->want[a->got] : -1);
        a->got += event.kind == EVENT_TOKEN;
        if (event.kind == EVENT_LOGITS)
            check_logits(w, a, &event);
        if (event.kind == EVENT_DONE && a->is_teacher_forced && (a->n_rows != a->n_prompt || a->n_drafts != a->n_prompt - 1))
            violation(w, "request %d ended after %d rows and %d MTP rows of %d", (int)(a - w->asked), a->n_rows, a->n_drafts, a->n_prompt);
        if (event.kind == EVENT_DONE && a->got != a->n_want)
            violation(w, "request %d ended after %d of %d tokens", (int)(a - w->asked), a->got, a->n_want);
        if (event.kind == EVENT_FAILED &&
            (a->must_finish || strstr(event.sentence, "again and again") || strstr(event.sentence, "cannot go on")))
            violation(w, "request %d failed: %s", (int)(a - w->asked), event.sentence);
        w->result.n_done += event.kind == EVENT_DONE;
        w->result.n_failed += event.kind == EVENT_FAILED;
        if (event.kind == EVENT_DONE || event.kind == EVENT_FAILED)
            a->is_over = 1;
    }
}

static void coordinator_step(struct world *w, const struct message *m, const Hearth__Envelope *e, const float *rows)
{
    struct outbox out;
    outbox_init(&out, OUTBOX);
    char key[PEER_KEY_BYTES];
    if (m) {
        key_of(m->from, key);
        cluster_on_message(w->cluster, PEER_FIRST_NODE + m->from_life * NODES + m->from, key, m->channel, e, rows, w->now, &out);
    }
    cluster_tick(w->cluster, w->now, &out);
    take_events(w);
    flush(w, COORDINATOR, &out);
    outbox_release(&out);
}

/* What one process gives for the prompt, row by row. */
static void one_process_rows(struct asked *a)
{
    struct hash_reference reference;
    hash_reference_init(&reference, LAYERS, VOCAB);
    for (int p = 0; p < a->n_prompt; p++)
        hash_reference_push(&reference, a->prompt[p], a->rows[p], p ? a->drafts[p - 1] : NULL);
    hash_reference_release(&reference);
}

/* What one process says, greedy. */
static void one_process_tokens(struct asked *a, int max_new)
{
    struct hash_reference reference;
    float logits[VOCAB];
    hash_reference_init(&reference, LAYERS, VOCAB);
    for (int p = 0; a->n_want < max_new; p++) {
        hash_reference_push(&reference, p < a->n_prompt ? a->prompt[p] : a->want[p - a->n_prompt], logits, NULL);
        if (p >= a->n_prompt - 1)
            a->want[a->n_want++] = largest_logit(logits, VOCAB - 2);
    }
    hash_reference_release(&reference);
}

static void submit(struct world *w)
{
    if (w->n_asked == REQUESTS_MAX)
        return;
    struct asked *a = &w->asked[w->n_asked];
    struct cluster_request ask = {.max_new = 1 + (int)draw(w, NEW_MAX), .sampling = sampler_params_default};
    int retry;
    struct error err;
    *a = (struct asked){.n_prompt = 1 + (int)draw(w, PROMPT_MAX), .must_finish = w->is_healing};
    for (int i = 0; i < a->n_prompt; i++)
        a->prompt[i] = (int)draw(w, VOCAB - 2);
    a->is_teacher_forced = ask.teacher_forced = ask.want_drafts = draw(w, 4) == 0;
    ask.sampling.temperature = 0;
    ask.prompt = a->prompt;
    ask.n_prompt = a->n_prompt;
    if (cluster_submit(w->cluster, &ask, w->now, &a->id, &retry, &err)) {
        w->result.n_refused++;
        if (w->is_healing)
            violation(w, "refused after healing: %s", err.text);
        return;
    }
    if (a->is_teacher_forced)
        one_process_rows(a);
    else
        one_process_tokens(a, ask.max_new);
    w->n_asked++;
}

/* ---- faults ---- */

static void restart_coordinator(struct world *w)
{
    w->result.n_coordinator_restarts++;
    cluster_free(&w->cluster); /* what it had sent is still on its way */
    for (int i = 0; i < w->n_asked; i++)
        w->asked[i].is_over = 1;
    start_coordinator(w);
}

static void fault(struct world *w)
{
    int i = (int)draw(w, NODES);
    struct node *n = &w->nodes[i];
    switch (draw(w, 6)) {
    case 0: /* kill -9, restarted after a while */
        if (!n->is_alive)
            return;
        w->result.n_kills++;
        free_stage(n);
        n->is_alive = 0;
        n->life++;
        schedule(w, w->now + draw(w, 4 * SECOND), EVENT_RESTART_NODE, i);
        break;
    case 1: /* SIGSTOP */
        if (!n->is_alive || n->is_paused)
            return;
        w->result.n_pauses++;
        n->is_paused = 1;
        schedule(w, w->now + draw(w, 4 * SECOND), EVENT_RESUME_NODE, i);
        break;
    case 2: { /* a link is cut, one way or both; it heals with the next fault on it, or at the end */
        int a = (int)draw(w, NODES + 1), b = (int)draw(w, NODES + 1);
        w->result.n_partitions++;
        w->is_cut[a][b] ^= 1;
        w->is_cut[b][a] = draw(w, 2) ? w->is_cut[a][b] : w->is_cut[b][a];
        break;
    }
    case 3:
        if (draw(w, 3) == 0)
            restart_coordinator(w);
        break;
    default: { /* an asker hangs up */
        struct asked *a = w->n_asked ? &w->asked[draw(w, (uint64_t)w->n_asked)] : NULL;
        if (!a || a->is_over)
            return;
        struct outbox out;
        outbox_init(&out, OUTBOX);
        cluster_cancel(w->cluster, a->id, w->now, &out);
        a->is_over = 1;
        w->result.n_cancelled++;
        flush(w, COORDINATOR, &out);
        outbox_release(&out);
        take_events(w);
    }
    }
}

static void apply_defect(struct world *w, int to, Hearth__Envelope *e)
{
    if (w->defect == DEFECT_NO_EPOCH_CHECK && to != COORDINATOR && e->body_case != HEARTH__ENVELOPE__BODY_ASSIGN && w->nodes[to].stage) {
        e->epoch->instance = w->nodes[to].epoch_instance;
        e->epoch->counter = w->nodes[to].epoch_counter;
    }
    if (w->defect == DEFECT_CUT_OFF_BY_ONE && e->body_case == HEARTH__ENVELOPE__BODY_CUT)
        e->cut->from++;
    if (w->defect == DEFECT_CUT_OFF_BY_ONE && e->body_case == HEARTH__ENVELOPE__BODY_STEP && e->step->cut_from != NO_CUT)
        e->step->cut_from++;
    if (w->defect == DEFECT_STALE_GENERATION && to != COORDINATOR && e->body_case == HEARTH__ENVELOPE__BODY_CUT)
        e->cut->generation = 0;
    if (w->defect == DEFECT_STALE_GENERATION && to != COORDINATOR && e->body_case == HEARTH__ENVELOPE__BODY_STEP)
        e->step->generation = 0;
}

/* A message of an older epoch reaches a node once more. */
static void replay(struct world *w)
{
    const struct message *m = w->kept[draw(w, KEPT_MAX)];
    Hearth__Envelope *e;
    struct error err;
    if (!m || !w->nodes[m->to].is_alive || w->nodes[m->to].is_paused)
        return;
    const struct node *n = &w->nodes[m->to];
    const float *rows = m->rows_bytes ? (const void *)(m->bytes + ((m->header_bytes + 7) & ~(size_t)7)) : NULL;
    CHECK(!wire_decode(&e, m->bytes, m->header_bytes, rows, m->rows_bytes, ROW_WIDTH, &err));
    int is_old = e->epoch->instance != n->epoch_instance || e->epoch->counter != n->epoch_counter;
    if (is_old && e->body_case != HEARTH__ENVELOPE__BODY_ASSIGN) {
        w->result.n_replays++;
        apply_defect(w, m->to, e);
        node_receive(w, m->to, m, e, rows);
    }
    wire_free(&e);
}

static void start_node(struct world *w, int i)
{
    struct node *n = &w->nodes[i];
    n->is_alive = 1;
    n->is_paused = 0;
    n->boot = draw(w, UINT64_MAX);
    n->heard_ns = 0;
    n->has_unit_event = 0;
    n->units = 0;
}

/* ---- the run ---- */

/* The process that the message was sent to is still there. */
static int is_at_home(const struct world *w, const struct message *m)
{
    return m->to == COORDINATOR ? m->to_life == w->coordinator_life : w->nodes[m->to].is_alive && m->to_life == w->nodes[m->to].life;
}

static void hand_over(struct world *w, const struct message *m)
{
    Hearth__Envelope *e;
    struct error err;
    size_t offset = (m->header_bytes + 7) & ~(size_t)7;
    const float *rows = m->rows_bytes ? (const void *)(m->bytes + offset) : NULL;
    if (wire_decode(&e, m->bytes, m->header_bytes, rows, m->rows_bytes, ROW_WIDTH, &err)) {
        violation(w, "a message of our own is refused: %s", err.text);
        return;
    }
    apply_defect(w, m->to, e);
    if (m->to == COORDINATOR)
        coordinator_step(w, m, e, rows);
    else
        node_receive(w, m->to, m, e, rows);
    wire_free(&e);
}

/* The first message of a link. A frozen process and a cut link do not lose what TCP carries: it waits in buffers and comes late, in order.
 * A dead node's connection is gone with what was on it; a dead coordinator's messages may still lie in a node's queue. */
static void deliver(struct world *w, int from, int to, enum channel channel)
{
    struct link *link = &w->links[from][to][channel];
    struct message *m = link->first;
    if (is_at_home(w, m) && ((to != COORDINATOR && w->nodes[to].is_paused) || w->is_cut[from][to])) {
        schedule_on(w, w->now + 20 * MS, EVENT_DELIVER, to, from, channel);
        return;
    }
    link->first = m->next;
    if (!link->first)
        link->last = NULL;
    if (is_at_home(w, m) && (from == COORDINATOR || m->from_life == w->nodes[from].life))
        hand_over(w, m);
    if (to == COORDINATOR || draw(w, 4)) {
        free_message(&m);
        return;
    }
    struct message **kept = &w->kept[draw(w, KEPT_MAX)];
    if (*kept)
        free_message(kept);
    *kept = m;
}

static void handle(struct world *w, struct event *event)
{
    struct node *n = event->actor < NODES ? &w->nodes[event->actor] : NULL;
    switch (event->kind) {
    case EVENT_DELIVER:
        deliver(w, event->from, event->actor, event->channel);
        break;
    case EVENT_UNIT:
        run_unit(w, event->actor);
        break;
    case EVENT_NODE_TIMER:
        if (n->is_alive && !n->is_paused)
            node_timer(w, event->actor);
        else
            schedule(w, w->now + 50 * MS, EVENT_NODE_TIMER, event->actor);
        break;
    case EVENT_TICK:
        coordinator_step(w, NULL, NULL, NULL);
        schedule(w, w->now + 50 * MS, EVENT_TICK, COORDINATOR);
        break;
    case EVENT_FAULT:
        if (!w->is_healing) {
            for (int i = 0; i < 4; i++)
                replay(w);
            fault(w);
            schedule(w, w->now + draw(w, 3 * SECOND), EVENT_FAULT, COORDINATOR);
        }
        break;
    case EVENT_SUBMIT:
        if (!w->is_healing) {
            submit(w);
            schedule(w, w->now + draw(w, SECOND), EVENT_SUBMIT, COORDINATOR);
        }
        break;
    case EVENT_RESTART_NODE:
        start_node(w, event->actor);
        break;
    case EVENT_RESUME_NODE:
        n->is_paused = 0;
        wake_stage(w, event->actor);
        break;
    }
}

static void run_until(struct world *w, uint64_t end)
{
    while (w->n_events && w->heap[0].at <= end && !w->result.violation[0]) {
        struct event event = next_event(w);
        w->now = event.at;
        handle(w, &event);
    }
    w->now = end > w->now ? end : w->now;
}

static void heal(struct world *w)
{
    w->is_healing = 1;
    w->loss = 0;
    memset(w->is_cut, 0, sizeof w->is_cut);
    run_until(w, w->now + 7 * SECOND); /* the last restarts and resumptions are under way, and what they lead to is noticed */
    uint64_t limit = w->now + 60 * SECOND;
    while (w->now < limit && !w->result.violation[0]) {
        run_until(w, w->now + 200 * MS);
        if (cluster_is_ready(w->cluster) && !cluster_n_running(w->cluster))
            break;
    }
    for (int i = 0; i < NODES; i++)
        if (!w->nodes[i].is_alive || w->nodes[i].is_paused)
            limit = 0;
    if (!cluster_is_ready(w->cluster))
        violation(w, "not ready 60 s after the last fault");
    for (int i = 0; i < w->n_asked; i++)
        if (!w->asked[i].is_over && limit) {
            const struct request *r = cluster_find(w->cluster, w->asked[i].id);
            violation(
                w,
                "request %d neither ended nor failed: state %d, %d of %d tokens, %d rows sent, %d %d %d left the stages, %d times redone",
                i, r ? (int)r->state : -1, w->asked[i].got, w->asked[i].n_want, r ? r->sent : 0, r ? r->left[0] : 0, r ? r->left[1] : 0,
                r ? r->left[2] : 0, r ? r->n_redone : 0);
        }
}

static void check_end(struct world *w)
{
    for (int i = 0; i < 3; i++)
        submit(w);
    run_until(w, w->now + 30 * SECOND);
    for (int i = 0; i < w->n_asked; i++)
        if (!w->asked[i].is_over)
            violation(w, "request %d after healing did not end", i);
    w->result.n_redone = (int)w->cluster->counters.redone;
    for (int i = 0; i < NODES; i++)
        if (w->nodes[i].stage && stage_free_positions(w->nodes[i].stage) != POSITIONS)
            violation(w, "node %d keeps %d positions of sequences that are over", i, POSITIONS - stage_free_positions(w->nodes[i].stage));
}

struct world_result world_run(uint64_t seed, enum world_defect defect)
{
    struct world *w = xcalloc(1, sizeof *w);
    w->clock.now_ns = sim_now_ns;
    w->random = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    w->defect = defect;
    w->model = (struct model_config){.n_layers = LAYERS, .n_mtp_layers = 1, .vocab_size = VOCAB, .hidden_size = ROW_WIDTH};
    for (int i = 0; i <= LAYERS; i++) {
        w->model.has_indexer[i] = 1;
        w->layer_bytes[i] = 100 + draw(w, 100);
    }
    w->loss = draw(w, 3) ? 0 : 0.03 * (double)draw(w, 100) / 100;
    w->delay_max = 1 + draw(w, draw(w, 2) ? 2 * MS : 80 * MS);
    w->now = SECOND;
    start_coordinator(w);
    for (int i = 0; i < NODES; i++) {
        start_node(w, i);
        schedule(w, w->now + draw(w, 600 * MS), EVENT_NODE_TIMER, i);
    }
    schedule(w, w->now, EVENT_TICK, COORDINATOR);
    schedule(w, w->now + 2 * SECOND, EVENT_SUBMIT, COORDINATOR);
    if (draw(w, 8))
        schedule(w, w->now + 3 * SECOND, EVENT_FAULT, COORDINATOR);
    run_until(w, w->now + 12 * SECOND + draw(w, 10 * SECOND));
    heal(w);
    check_end(w);
    cluster_free(&w->cluster);
    for (int i = 0; i < NODES; i++)
        free_stage(&w->nodes[i]);
    for (struct link *link = &w->links[0][0][0]; link < &w->links[NODES][NODES][N_CHANNELS - 1] + 1; link++)
        while (link->first) {
            struct message *m = link->first;
            link->first = m->next;
            free_message(&m);
        }
    for (int i = 0; i < KEPT_MAX; i++)
        if (w->kept[i])
            free_message(&w->kept[i]);
    free(w->heap);
    struct world_result result = w->result;
    free(w);
    return result;
}
