#include "coordinator/membership.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/json.h"
#include "common/log.h"

#define SECOND_NS UINT64_C(1000000000)

enum { HEARTBEAT_MS = 500 };

/* A unit is made to take about 50 ms (protocol rule 7); one that takes this long has hung. */
enum { UNIT_MS_MAX = 60000 };

enum { REMARK_BYTES_SHOWN = 150 }; /* in the sentence that says what is missing; all of it is in the node's row of the status */

static const struct {
    const char *name;
    unsigned next; /* states that may follow */
} states[N_NODE_STATES] = {
#define TO(state) (1u << NODE_##state)
    [NODE_JOINING] = {"joining", TO(JOINING) | TO(ASSIGNED) | TO(DRAINING) | TO(SUSPECT) | TO(LOST) | TO(GONE)},
    [NODE_ASSIGNED] = {"assigned", TO(JOINING) | TO(ASSIGNED) | TO(LOADING) | TO(READY) | TO(DRAINING) | TO(SUSPECT) | TO(LOST) | TO(GONE)},
    [NODE_LOADING] = {"loading", TO(JOINING) | TO(ASSIGNED) | TO(READY) | TO(DRAINING) | TO(SUSPECT) | TO(LOST) | TO(GONE)},
    [NODE_READY] = {"ready", TO(JOINING) | TO(ASSIGNED) | TO(DRAINING) | TO(SUSPECT) | TO(LOST) | TO(GONE)},
    [NODE_DRAINING] = {"draining", TO(JOINING) | TO(LOST) | TO(GONE)},
    [NODE_SUSPECT] = {"suspect", TO(JOINING) | TO(ASSIGNED) | TO(LOADING) | TO(READY) | TO(DRAINING) | TO(LOST) | TO(GONE)},
    [NODE_LOST] = {"lost", TO(JOINING)},
    [NODE_GONE] = {"gone", TO(JOINING)},
#undef TO
};

static void set_state(struct member *member, enum node_state state, uint64_t now_ns)
{
    CHECK(states[member->state].next & 1u << state);
    if (member->state == state)
        return;
    log_line(LOG_INFO, "node %s: %s -> %s", member->name, states[member->state].name, states[state].name);
    member->state = state;
    member->since_ns = now_ns;
}

void membership_init(struct membership *m, const struct cluster_config *config)
{
    memset(m, 0, sizeof *m);
    m->config = config;
}

static struct member *by_name(struct membership *m, const char *name)
{
    for (int i = 0; i < m->n_members; i++)
        if (!strcmp(m->members[i].name, name))
            return &m->members[i];
    return NULL;
}

static struct member *by_peer(struct membership *m, int peer, const char *key)
{
    for (int i = 0; i < m->n_members; i++)
        if (m->members[i].peer == peer && !strcmp(m->members[i].key, key))
            return &m->members[i];
    return NULL;
}

static int is_alive(const struct member *member)
{
    return member->state != NODE_LOST && member->state != NODE_GONE && member->state != NODE_DRAINING;
}

int membership_is_present_epoch(const struct membership *m, const Hearth__Envelope *e)
{
    return m->n_stages && e->epoch && e->epoch->instance == m->config->instance && e->epoch->counter == m->epoch_counter;
}

Hearth__Envelope membership_envelope(const struct membership *m, Hearth__Epoch *epoch)
{
    Hearth__Envelope envelope = HEARTH__ENVELOPE__INIT;
    hearth__epoch__init(epoch);
    epoch->instance = m->config->instance;
    epoch->counter = m->epoch_counter;
    envelope.protocol = PROTOCOL_VERSION;
    envelope.epoch = epoch;
    return envelope;
}

void membership_broadcast(const struct membership *m, const Hearth__Envelope *envelope, struct outbox *out)
{
    for (int s = 0; s < m->n_stages; s++)
        outbox_put(out, m->members[m->by_stage[s]].peer, CHANNEL_CONTROL, envelope, NULL, 0);
}

static void refuse(struct membership *m, int peer, uint32_t code, char *sentence, struct outbox *out)
{
    Hearth__Epoch epoch;
    Hearth__Envelope e = membership_envelope(m, &epoch);
    Hearth__Refuse body = HEARTH__REFUSE__INIT;
    body.code = code;
    body.sentence = sentence;
    body.scope = HEARTH__SCOPE__SCOPE_NODE;
    e.body_case = HEARTH__ENVELOPE__BODY_REFUSE;
    e.refuse = &body;
    outbox_put(out, peer, CHANNEL_CONTROL, &e, NULL, 0);
    m->refused++;
    snprintf(m->last_refusal, sizeof m->last_refusal, "%s", sentence);
    log_line(LOG_WARNING, "refused: %s", sentence);
}

/* The map is void: its nodes wait for the next one. */
static void end_map(struct membership *m, uint64_t now_ns)
{
    for (int i = 0; i < m->n_members; i++) {
        struct member *member = &m->members[i];
        member->stage = -1;
        if (is_alive(member) && member->state != NODE_SUSPECT)
            set_state(member, NODE_JOINING, now_ns);
        else if (member->state == NODE_SUSPECT)
            member->state_before_suspect = NODE_JOINING;
    }
    m->n_stages = 0;
}

/* The member is no more (or not for now). Returns 1 when the map ended by it. */
static int member_leaves(struct membership *m, struct member *member, enum node_state state, const char *how, uint64_t now_ns, char *why)
{
    int ends = member->stage >= 0 && m->n_stages;
    snprintf(member->remark, sizeof member->remark, "%s", how);
    if (ends)
        snprintf(why, TEXT_BYTES_MAX, "node '%s' %.*s; layers %d-%d are not served until it is back", member->name,
                 membership_whole_characters(how, SENTENCE_BYTES_SHOWN), how, member->range.begin, member->range.end);
    set_state(member, state, now_ns);
    if (ends)
        end_map(m, now_ns);
    return ends;
}

static struct member *new_member(struct membership *m, const char *name)
{
    int slot = m->n_members;
    if (slot == (int)(sizeof m->members / sizeof *m->members)) { /* the longest gone makes room */
        slot = -1;
        for (int i = 0; i < m->n_members; i++)
            if (!is_alive(&m->members[i]) && (slot < 0 || m->members[i].since_ns < m->members[slot].since_ns))
                slot = i;
        if (slot < 0)
            return NULL;
    } else {
        m->n_members++;
    }
    struct member *member = &m->members[slot];
    *member = (struct member){.state = NODE_GONE, .stage = -1, .peer = -1};
    snprintf(member->name, sizeof member->name, "%s", name);
    return member;
}

static int on_hello(struct membership *m, int peer, const char *key, Hearth__Hello *hello, uint64_t now_ns, struct outbox *out, char *why)
{
    struct error err = {0};
    uint32_t code = 0;
    struct member *member = by_name(m, hello->node);
    if (member && is_alive(member) && strcmp(member->key, key)) {
        error_set(&err, STATUS_INVALID, "a node named '%s' is here already with another key: give this one another name", hello->node);
        refuse(m, peer, REFUSE_NAME, err.text, out);
        return 0;
    }
    if (handshake_check(hello, PROTOCOL_VERSION, &m->config->numeric, (uint32_t)m->config->model->n_layers, &code, &err)) {
        refuse(m, peer, code, err.text, out);
        if (member && !is_alive(member))
            snprintf(member->remark, sizeof member->remark, "%s", err.text);
        return 0;
    }
    if (!member)
        member = new_member(m, hello->node);
    if (!member) {
        error_set(&err, STATUS_INVALID, "there is no room for node '%s': %d others are here", hello->node, m->n_members);
        refuse(m, peer, REFUSE_RANGE, err.text, out);
        return 0;
    }
    /* A Hello from a node that has a range: it has restarted, or had lost us and waits; either way it needs a new epoch. */
    int ended = member->stage >= 0 && member_leaves(m, member, NODE_LOST, member->boot != hello->boot ? "restarted" : "lost the coordinator", now_ns, why);
    snprintf(member->key, sizeof member->key, "%s", key);
    snprintf(member->row_key, sizeof member->row_key, "%s", hello->row_key);
    snprintf(member->row_endpoint, sizeof member->row_endpoint, "%s", hello->row_endpoint);
    member->peer = peer;
    if (member->boot != hello->boot)
        member->unit_ms = 0; /* what hung before its restart is gone */
    member->boot = hello->boot;
    member->heard_ns = now_ns;
    member->rows = member->rows_before = member->rows_before_ns = 0; /* the next heartbeat begins a new measurement */
    member->rows_per_second = 0;
    if (!is_alive(member) && member->unit_ms > UNIT_MS_MAX)
        return ended; /* it lives, but still hangs: its Hellos go on, and one of them comes after the unit's end */
    member->remark[0] = 0;
    if (member->state == NODE_SUSPECT || !is_alive(member))
        set_state(member, NODE_JOINING, now_ns);
    return ended;
}

static void on_heartbeat(struct member *member, const Hearth__Heartbeat *beat, uint64_t now_ns)
{
    if (beat->progress != member->progress)
        member->progress_ns = now_ns;
    member->progress = beat->progress;
    member->unit_ms = beat->unit_ms;
    member->rows = beat->rows;
    member->busy_ms = beat->busy_ms;
    member->queue_ms = beat->queue_ms;
    member->experts.hits = beat->expert_hits;
    member->experts.misses = beat->expert_misses;
    member->experts.read_bytes = beat->expert_read_bytes;
    member->experts.wait_ms = beat->expert_wait_ms;
    member->experts.slots_used = beat->expert_slots_used;
    member->experts.slots = beat->expert_slots;
    if (now_ns - member->rows_before_ns > 2 * SECOND_NS) { /* a rate over about two seconds */
        if (member->rows_before_ns && beat->rows >= member->rows_before)
            member->rows_per_second = (double)(beat->rows - member->rows_before) * 1e9 / (double)(now_ns - member->rows_before_ns);
        member->rows_before = beat->rows;
        member->rows_before_ns = now_ns;
    }
    if (member->state == NODE_ASSIGNED && !strcmp(beat->state, "loading"))
        set_state(member, NODE_LOADING, now_ns);
}

int membership_stage_of(const struct membership *m, int peer, const Hearth__Envelope *envelope)
{
    if (!membership_is_present_epoch(m, envelope))
        return -1;
    for (int s = 0; s < m->n_stages; s++)
        if (m->members[m->by_stage[s]].peer == peer)
            return s;
    return -1;
}

int membership_on_message(struct membership *m, int peer, const char *key, const Hearth__Envelope *e, uint64_t now_ns, struct outbox *out, char *why)
{
    if (e->body_case == HEARTH__ENVELOPE__BODY_HELLO)
        return on_hello(m, peer, key, e->hello, now_ns, out, why);
    struct member *member = by_peer(m, peer, key);
    if (!member || !is_alive(member)) {
        m->stale++;
        if (member && e->body_case == HEARTH__ENVELOPE__BODY_HEARTBEAT && e->heartbeat->boot == member->boot)
            member->unit_ms = e->heartbeat->unit_ms; /* whether it still hangs, for when it says Hello */
        return 0;
    }
    member->heard_ns = now_ns;
    if (member->state == NODE_SUSPECT)
        set_state(member, member->state_before_suspect, now_ns);
    switch (e->body_case) {
    case HEARTH__ENVELOPE__BODY_HEARTBEAT:
        if (e->heartbeat->boot == member->boot)
            on_heartbeat(member, e->heartbeat, now_ns);
        return 0;
    case HEARTH__ENVELOPE__BODY_READY:
        if (membership_stage_of(m, peer, e) < 0 || (int)e->ready->layer_begin != member->range.begin || (int)e->ready->layer_end != member->range.end)
            m->stale++;
        else if (member->state == NODE_ASSIGNED || member->state == NODE_LOADING) {
            member->chunk_rows = (int)e->ready->chunk_rows;
            set_state(member, NODE_READY, now_ns);
        }
        return 0;
    case HEARTH__ENVELOPE__BODY_DRAIN:
        return member_leaves(m, member, NODE_GONE, "is shutting down", now_ns, why);
    case HEARTH__ENVELOPE__BODY_REFUSE:
        if (e->refuse->scope != HEARTH__SCOPE__SCOPE_NODE || (member->stage >= 0 && !membership_is_present_epoch(m, e)))
            return 0;
        log_line(LOG_ERROR, "node %s: %s", member->name, e->refuse->sentence);
        return member_leaves(m, member, NODE_LOST, e->refuse->sentence, now_ns, why);
    default:
        return 0;
    }
}

static void send_heartbeats(struct membership *m, uint64_t now_ns, struct outbox *out)
{
    if (now_ns - m->heartbeat_ns < HEARTBEAT_MS * UINT64_C(1000000))
        return;
    m->heartbeat_ns = now_ns;
    Hearth__Epoch epoch;
    Hearth__Envelope e = membership_envelope(m, &epoch);
    Hearth__Heartbeat body = HEARTH__HEARTBEAT__INIT;
    body.state = m->n_stages ? "ready" : "waiting";
    e.body_case = HEARTH__ENVELOPE__BODY_HEARTBEAT;
    e.heartbeat = &body;
    for (int i = 0; i < m->n_members; i++)
        if (is_alive(&m->members[i]))
            outbox_put(out, m->members[i].peer, CHANNEL_CONTROL, &e, NULL, 0);
}

static int by_member_name(const void *a, const void *b)
{
    return strcmp((*(struct member *const *)a)->name, (*(struct member *const *)b)->name);
}

/* The members that the next map would have, in pipeline order, and their ranges; 0 while it cannot be made. */
static int choose_map(struct membership *m, struct member **chosen, struct layer_range *ranges)
{
    const struct cluster_config *c = m->config;
    struct error err;
    int n = 0;
    if (c->layers) {
        const char *names[CLUSTER_NODES_MAX];
        char *storage;
        if (placement_parse(c->model, c->layers, CLUSTER_NODES_MAX, names, ranges, &n, &storage, &err))
            return 0; /* was checked at start */
        for (int i = 0; i < n; i++) {
            chosen[i] = by_name(m, names[i]);
            if (!chosen[i] || chosen[i]->state != NODE_JOINING)
                n = 0;
        }
        free(storage);
        return n;
    }
    for (int i = 0; i < m->n_members && n < CLUSTER_NODES_MAX; i++)
        if (m->members[i].state == NODE_JOINING)
            chosen[n++] = &m->members[i];
    if (n < c->n_nodes)
        return 0;
    qsort(chosen, (size_t)n, sizeof *chosen, by_member_name); /* the same nodes get the same layers again, and need not load anew */
    n = c->n_nodes;
    if (placement_split(c->model, c->layer_bytes, n, ranges, &err)) {
        log_line(LOG_ERROR, "%s", err.text);
        return 0;
    }
    return n;
}

int membership_chunk_rows(const struct membership *m)
{
    enum { CHUNK_ROWS_DEFAULT = 64 }; /* short ones keep a pipeline of resident stages full */
    int rows = CHUNK_ROWS_DEFAULT;
    if (m->config->chunk_rows)
        return m->config->chunk_rows;
    for (int stage = 0; stage < m->n_stages; stage++)
        if (m->by_stage[stage] >= 0 && m->members[m->by_stage[stage]].chunk_rows > rows)
            rows = m->members[m->by_stage[stage]].chunk_rows;
    return rows;
}

static void assign(struct membership *m, struct member **chosen, int stage, uint64_t now_ns, struct outbox *out)
{
    const struct cluster_config *c = m->config;
    struct member *member = chosen[stage];
    int is_last = stage == m->n_stages - 1;
    Hearth__Epoch epoch;
    Hearth__Envelope e = membership_envelope(m, &epoch);
    Hearth__Assign body = HEARTH__ASSIGN__INIT;
    body.layer_begin = (uint32_t)member->range.begin;
    body.layer_end = (uint32_t)member->range.end;
    body.stage = (uint32_t)stage;
    body.n_stages = (uint32_t)m->n_stages;
    body.next_endpoint = is_last ? (char *)c->row_endpoint : chosen[stage + 1]->row_endpoint;
    body.next_key = is_last ? (char *)c->row_key : chosen[stage + 1]->row_key;
    body.previous_key = stage ? chosen[stage - 1]->row_key : (char *)c->row_key;
    body.max_positions = (uint32_t)c->max_positions;
    body.max_sequences = (uint32_t)c->max_sequences;
    body.max_rows_in_flight = (uint32_t)c->max_rows_in_flight;
    body.chunk_rows_max = (uint32_t)(c->chunk_rows ? c->chunk_rows : STEP_ROWS_MAX);
    member->chunk_rows = 0;
    e.body_case = HEARTH__ENVELOPE__BODY_ASSIGN;
    e.assign = &body;
    outbox_put(out, member->peer, CHANNEL_CONTROL, &e, NULL, 0);
    set_state(member, NODE_ASSIGNED, now_ns);
}

static void make_map(struct membership *m, uint64_t now_ns, struct outbox *out)
{
    struct member *chosen[CLUSTER_NODES_MAX + 4];
    struct layer_range ranges[CLUSTER_NODES_MAX];
    int n = choose_map(m, chosen, ranges);
    if (!n)
        return;
    m->epoch_counter++;
    m->n_stages = n;
    for (int s = 0; s < n; s++) {
        m->by_stage[s] = (int)(chosen[s] - m->members);
        chosen[s]->stage = s;
        chosen[s]->range = ranges[s];
    }
    log_line(LOG_INFO, "epoch %u: %d stages", m->epoch_counter, n);
    for (int s = 0; s < n; s++)
        assign(m, chosen, s, now_ns, out);
}

int membership_tick(struct membership *m, uint64_t now_ns, struct outbox *out, char *why)
{
    int ended = 0;
    char how[200];
    if (membership_is_ready(m) || !m->incomplete_since_ns)
        m->incomplete_since_ns = now_ns;
    for (int i = 0; i < m->n_members; i++) {
        struct member *member = &m->members[i];
        if (!is_alive(member))
            continue;
        uint64_t silence = now_ns - member->heard_ns;
        if (silence >= m->config->lost_ns) {
            snprintf(how, sizeof how, "was lost (silent for %.1f s)", (double)silence / 1e9);
            ended |= member_leaves(m, member, NODE_LOST, how, now_ns, why);
        } else if (member->unit_ms > UNIT_MS_MAX) {
            snprintf(how, sizeof how, "hangs (one unit of work has run for %u s)", member->unit_ms / 1000);
            ended |= member_leaves(m, member, NODE_LOST, how, now_ns, why);
        } else if (silence >= m->config->suspect_ns && member->state != NODE_SUSPECT) {
            member->state_before_suspect = member->state;
            set_state(member, NODE_SUSPECT, now_ns);
        }
    }
    if (!m->n_stages)
        make_map(m, now_ns, out);
    send_heartbeats(m, now_ns, out);
    return ended;
}

int membership_is_ready(const struct membership *m)
{
    for (int s = 0; s < m->n_stages; s++) {
        const struct member *member = &m->members[m->by_stage[s]];
        if (member->state != NODE_READY && !(member->state == NODE_SUSPECT && member->state_before_suspect == NODE_READY))
            return 0;
    }
    return m->n_stages > 0;
}

int membership_is_idle(const struct membership *m, uint64_t now_ns, uint64_t ns)
{
    for (int s = 0; s < m->n_stages; s++) {
        const struct member *member = &m->members[m->by_stage[s]];
        if (member->unit_ms || now_ns - member->progress_ns < ns || now_ns - member->heard_ns > ns)
            return 0;
    }
    return 1;
}

static json_t *experts_status(const struct member *n)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "hits", (json_int_t)n->experts.hits, "misses", (json_int_t)n->experts.misses, "read_bytes",
                     (json_int_t)n->experts.read_bytes, "wait_ms", (json_int_t)n->experts.wait_ms, "slots_used", (json_int_t)n->experts.slots_used, "slots",
                     (json_int_t)n->experts.slots);
}

json_t *membership_status(const struct membership *m, uint64_t now_ns)
{
    json_t *nodes = json_array();
    for (int i = 0; i < m->n_stages + m->n_members; i++) { /* the pipeline in its order, then the others */
        const struct member *n = &m->members[i < m->n_stages ? m->by_stage[i] : i - m->n_stages];
        if (i >= m->n_stages && n->stage >= 0)
            continue;
        json_t *node = json_pack("{s:s, s:s, s:f, s:f, s:I, s:f, s:I, s:I, s:o}", "name", n->name, "state", states[n->state].name, "since_s",
                                 (double)(now_ns - n->since_ns) / 1e9, "silent_s", (double)(now_ns - n->heard_ns) / 1e9, "rows", (json_int_t)n->rows,
                                 "rows_per_second", n->rows_per_second, "busy_ms", (json_int_t)n->busy_ms, "queue_ms", (json_int_t)n->queue_ms, "remark",
                                 json_sentence(n->remark));
        if (n->experts.slots)
            json_object_set_new(node, "experts", experts_status(n));
        if (n->stage >= 0) {
            json_object_set_new(node, "stage", json_integer(n->stage));
            json_object_set_new(node, "layers", json_pack("[i, i]", n->range.begin, n->range.end));
        }
        json_array_append_new(nodes, node);
    }
    return nodes;
}

int membership_whole_characters(const char *text, int max)
{
    int n = (int)strnlen(text, (size_t)max);
    while (n && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    return n;
}

void membership_missing(const struct membership *m, uint64_t now_ns, char out[TEXT_BYTES_MAX])
{
    size_t used = 0;
    out[0] = 0;
    if (membership_is_ready(m))
        return;
    int here = 0;
    for (int i = 0; i < m->n_members && used + 300 < TEXT_BYTES_MAX; i++) {
        const struct member *n = &m->members[i];
        here += is_alive(n);
        if (n->state == NODE_READY || (n->state == NODE_JOINING && !m->n_stages))
            continue;
        used += (size_t)snprintf(out + used, TEXT_BYTES_MAX - used, "%snode '%s'", used ? "; " : "", n->name);
        if (n->range.end)
            used += (size_t)snprintf(out + used, TEXT_BYTES_MAX - used, " (layers %d-%d)", n->range.begin, n->range.end);
        used += (size_t)snprintf(out + used, TEXT_BYTES_MAX - used, " %s for %.0f s%s%.*s", states[n->state].name, (double)(now_ns - n->since_ns) / 1e9,
                                 n->remark[0] ? ": " : "", membership_whole_characters(n->remark, REMARK_BYTES_SHOWN), n->remark);
    }
    if (!m->n_stages && here < m->config->n_nodes)
        snprintf(out + used, TEXT_BYTES_MAX - used, "%s%d of %d nodes are here", used ? "; " : "", here, m->config->n_nodes);
    else if (!used)
        snprintf(out, TEXT_BYTES_MAX, "the nodes are being assigned");
}
