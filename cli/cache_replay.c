#include "cli/cache_replay.h"

#include <stdlib.h>

#include "common/check.h"
#include "common/memory.h"
#include "node/expert_policy.h"

struct replay {
    const struct routing_trace *trace;
    struct replay_setup setup;
    int n_filled;
    struct policy_slot *slots; /* [n_slots] */
    int64_t *worth;            /* [n_slots] LRU, LFU, optimum: the least goes */
    int *slot_of;              /* [n_layers * n_experts] -1: not there */
    uint32_t *uses;            /* [n_layers * n_experts] */
    int **next_row;            /* [n_layers][n_rows * top_k] row of the layer that uses the same expert next; optimum only */
    struct expert_policy *policy;
    struct replay_result result;
};

static size_t key_of(const struct replay *r, int layer, int expert)
{
    return (size_t)layer * (size_t)r->trace->n_experts + (size_t)expert;
}

/* For every use of every row the row of the next use, INT32_MAX: never. */
static int *find_next_rows(const struct trace_layer *layer, int n_experts, int top_k)
{
    int *next = xcalloc((size_t)layer->n_rows * (size_t)top_k + 1, sizeof *next), *seen = xcalloc((size_t)n_experts, sizeof *seen);
    for (int e = 0; e < n_experts; e++)
        seen[e] = INT32_MAX;
    for (int row = layer->n_rows - 1; row >= 0; row--)
        for (int n = 0; n < top_k; n++) {
            size_t at = (size_t)row * (size_t)top_k + (size_t)n;
            next[at] = seen[layer->ids[at]];
            seen[layer->ids[at]] = row;
        }
    free(seen);
    return next;
}

static void replay_init(struct replay *r, const struct routing_trace *trace, const struct replay_setup *setup)
{
    size_t keys = (size_t)trace->n_layers * (size_t)trace->n_experts;
    *r = (struct replay){.trace = trace, .setup = *setup};
    r->slots = xcalloc((size_t)setup->n_slots, sizeof *r->slots);
    r->worth = xcalloc((size_t)setup->n_slots, sizeof *r->worth);
    r->slot_of = xcalloc(keys, sizeof *r->slot_of);
    r->uses = xcalloc(keys, sizeof *r->uses);
    for (size_t i = 0; i < keys; i++)
        r->slot_of[i] = -1;
    if (setup->kind == REPLAY_POLICY)
        r->policy = expert_policy_new(&(struct expert_policy_config){trace->n_layers, trace->n_experts, trace->top_k});
    if (setup->kind == REPLAY_OPTIMUM) {
        r->next_row = xcalloc((size_t)trace->n_layers, sizeof *r->next_row);
        for (int layer = 0; layer < trace->n_layers; layer++)
            r->next_row[layer] = find_next_rows(&trace->layers[layer], trace->n_experts, trace->top_k);
    }
}

static void replay_release(struct replay *r)
{
    for (int layer = 0; r->next_row && layer < r->trace->n_layers; layer++)
        free(r->next_row[layer]);
    free(r->next_row);
    free(r->slots);
    free(r->worth);
    free(r->slot_of);
    free(r->uses);
    if (r->policy)
        expert_policy_free(&r->policy);
}

static int find_victim(const struct replay *r)
{
    if (r->setup.kind == REPLAY_POLICY)
        return expert_policy_victim(r->policy, r->slots, r->setup.n_slots);
    int victim = -1;
    for (int i = 0; i < r->setup.n_slots; i++)
        if (r->slots[i].may_go && (victim < 0 || r->worth[i] < r->worth[victim]))
            victim = i;
    return victim;
}

/* A slot for a miss: -1 when even those that the request released, of ids below `expert`, are none. */
static int take_slot(struct replay *r, int layer, int expert)
{
    if (r->n_filled < r->setup.n_slots)
        return r->n_filled++;
    int victim = find_victim(r);
    for (int i = 0; victim < 0 && i < r->setup.n_slots; i++)
        if (r->slots[i].layer == layer && r->slots[i].expert < expert)
            victim = i;
    if (victim >= 0)
        r->slot_of[key_of(r, r->slots[victim].layer, r->slots[victim].expert)] = -1;
    return victim;
}

static int64_t worth_of(const struct replay *r, int layer, int row, int n, size_t key)
{
    int64_t layers = r->trace->n_layers;
    switch (r->setup.kind) {
    case REPLAY_LRU:
        return row * layers + layer;
    case REPLAY_LFU:
        return r->uses[key];
    case REPLAY_OPTIMUM:
        return -(r->next_row[layer][(size_t)row * (size_t)r->trace->top_k + (size_t)n] * layers + layer);
    default:
        return 0;
    }
}

/* One row's request of one layer. */
struct request {
    int layer, ids[TOP_K_MAX], is_hit[TOP_K_MAX];
};

/* Pins what is there and counts. */
static void open_request(struct replay *r, struct request *q, int layer, int row)
{
    int top_k = r->trace->top_k, ones[TOP_K_MAX], counts = row >= r->setup.first_row;
    q->layer = layer;
    for (int n = 0; n < top_k; n++) {
        q->ids[n] = r->trace->layers[layer].ids[(size_t)row * (size_t)top_k + (size_t)n];
        ones[n] = 1;
        size_t key = key_of(r, layer, q->ids[n]);
        q->is_hit[n] = r->slot_of[key] >= 0;
        if (q->is_hit[n])
            r->slots[r->slot_of[key]].may_go = 0;
        r->uses[key]++;
        r->result.hits += (uint64_t)(counts && q->is_hit[n]);
        r->result.uses += (uint64_t)counts;
    }
    if (r->policy)
        expert_policy_observe(r->policy, layer, q->ids, ones, top_k, 1);
}

/* Releases what has been used when the miss at n starts: all up to the in_flight-th miss before it. */
static void release_used(struct replay *r, const struct request *q, int n)
{
    int used = n - 1;
    for (int left = r->setup.in_flight; used >= 0 && (left -= !q->is_hit[used]) > 0; used--)
        ;
    for (; used >= 0; used--) {
        int slot = r->slot_of[key_of(r, q->layer, q->ids[used])];
        if (slot >= 0)
            r->slots[slot].may_go = 1;
    }
}

static void replay_row(struct replay *r, int layer, int row)
{
    struct request q;
    open_request(r, &q, layer, row);
    for (int n = 0; n < r->trace->top_k; n++) {
        size_t key = key_of(r, layer, q.ids[n]);
        if (!q.is_hit[n] && r->setup.in_flight)
            release_used(r, &q, n);
        int slot = q.is_hit[n] ? r->slot_of[key] : take_slot(r, layer, q.ids[n]);
        if (slot < 0) /* released already and taken by another, or read past the cache */
            continue;
        r->slots[slot] = (struct policy_slot){.layer = layer, .expert = q.ids[n]};
        r->slot_of[key] = slot;
        r->worth[slot] = worth_of(r, layer, row, n, key);
    }
    for (int n = 0; n < r->trace->top_k; n++) {
        int slot = r->slot_of[key_of(r, layer, q.ids[n])];
        if (slot >= 0)
            r->slots[slot].may_go = 1;
    }
}

static int compare_counts(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

static struct replay_result replay_static(const struct routing_trace *trace, int n_slots, int first_row)
{
    size_t keys = (size_t)trace->n_layers * (size_t)trace->n_experts, top_k = (size_t)trace->top_k;
    uint32_t *uses = xcalloc(keys, sizeof *uses);
    struct replay_result result = {0};
    for (int layer = 0; layer < trace->n_layers; layer++)
        for (size_t i = (size_t)first_row * top_k; i < (size_t)trace->layers[layer].n_rows * top_k; i++, result.uses++)
            uses[(size_t)layer * (size_t)trace->n_experts + trace->layers[layer].ids[i]]++;
    qsort(uses, keys, sizeof *uses, compare_counts);
    for (size_t i = 0; i < keys && i < (size_t)n_slots; i++)
        result.hits += uses[i];
    free(uses);
    return result;
}

struct replay_result cache_replay(const struct routing_trace *trace, const struct replay_setup *setup)
{
    CHECK(setup->n_slots >= 1 && setup->first_row >= 0 && setup->in_flight >= 0);
    if (setup->kind == REPLAY_STATIC)
        return replay_static(trace, setup->n_slots, setup->first_row);
    struct replay r;
    replay_init(&r, trace, setup);
    for (int row = 0; row < routing_trace_rows(trace); row++)
        for (int layer = 0; layer < trace->n_layers; layer++)
            if (row < trace->layers[layer].n_rows)
                replay_row(&r, layer, row);
    struct replay_result result = r.result;
    replay_release(&r);
    return result;
}
