#include "node/stage_forward.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"
#include "kernels/parallel.h"
#include "model/embedding.h"
#include "model/head.h"
#include "model/layer_pass.h"
#include "model/mtp.h"
#include "node/stage.h"
#include "proto/limits.h"

/* A sequence's caches, and at the tail h of its rows at and above mtp_length (rule 12). */
struct forward_slot {
    int is_open;
    struct sequence_state sequence;
    float *hidden; /* [ring_rows][H], row of a position at position % ring_rows */
    int finished;  /* h is there below it */
};

struct stage_forward {
    struct row_engine base; /* first: the engine is the forward */
    struct stage_weights *weights;
    struct stage_forward_sizes sizes;
    struct workspace work;
    struct layer_pass pass; /* of sets */
    struct position_cache cache;
    struct layer_context context;
    struct forward_slot *slots; /* [max_sequences] */
    int ring_rows;              /* 0: no MTP layer here */
    struct row **list;          /* [the larger of unit_rows_max and set_rows_max] */
    /* tail */
    float *hidden;        /* [unit_rows_max][H] */
    float *gathered;      /* [unit_rows_max][H] */
    float *logits;        /* [unit_rows_max][vocab] */
    struct row *mtp_rows; /* [unit_rows_max] */
    float *mtp_residuals; /* [unit_rows_max][H] */
    int *mtp_selections;  /* [unit_rows_max][selection_capacity] */
};

static struct stage_forward *of(struct row_engine *base)
{
    return (struct stage_forward *)base;
}

static size_t hidden_size(const struct stage_forward *f)
{
    return (size_t)f->weights->config->hidden_size;
}

static int selection_capacity(const struct model_config *c)
{
    return c->index_topk + DRAFT_DEPTH_MAX;
}

/* A stage never has more rows above mtp_length than may be in flight, and one whose token is still awaited. */
static int ring_rows_for(const struct stage_forward_sizes *o)
{
    return o->max_rows_in_flight + 1;
}

/* ---- life ---- */

static int position_end(const struct stage_forward_sizes *o)
{
    return cache_blocks_for(o->max_positions) * CACHE_BLOCK_POSITIONS;
}

static uint64_t tail_bytes(const struct model_config *c, const struct stage_forward_sizes *o)
{
    uint64_t row = (uint64_t)c->hidden_size * sizeof(float), n = (uint64_t)o->unit_rows_max;
    uint64_t bytes = n * (2 * row + (uint64_t)c->vocab_size * sizeof(float));
    if (c->n_mtp_layers)
        bytes += n * (row + sizeof(struct row) + (uint64_t)selection_capacity(c) * sizeof(int)) +
                 (uint64_t)o->max_sequences * (uint64_t)ring_rows_for(o) * row;
    return bytes;
}

void stage_forward_budget(struct budget *budget, struct weights_source *source, int layer_begin, int layer_end,
                          const struct stage_forward_sizes *o)
{
    const struct model_config *c = weights_source_config(source);
    int is_tail = layer_end == c->n_layers, layers_end = layer_end + (is_tail && c->n_mtp_layers);
    struct stage_config stage = {.max_positions = o->max_positions,
                                 .max_sequences = o->max_sequences,
                                 .max_rows_in_flight = o->max_rows_in_flight,
                                 .unit_rows_max = o->unit_rows_max};
    budget_add(budget, "position caches",
               position_cache_block_bytes(c, layer_begin, layers_end) * (uint64_t)cache_blocks_for(o->max_positions),
               "lower the coordinator's --context");
    budget_add(budget, "rows in flight", stage_bytes(&stage, c->hidden_size, selection_capacity(c), c->vocab_size),
               "lower the coordinator's --chunk or --sequences");
    budget_add(budget, "scratch",
               workspace_bytes(c, o->unit_rows_max, position_end(o), parallel_threads()) + (is_tail ? tail_bytes(c, o) : 0),
               "lower the coordinator's --chunk or --sequences");
    if (o->set_rows_max)
        budget_add(budget, "prefill rows", layer_pass_bytes(c, o->set_rows_max), "lower the coordinator's --chunk");
}

static void allocate_tail(struct stage_forward *f)
{
    const struct model_config *c = f->weights->config;
    size_t n = (size_t)f->sizes.unit_rows_max, size = hidden_size(f), capacity = (size_t)selection_capacity(c);
    f->hidden = xcalloc(n * size, sizeof(float));
    f->gathered = xcalloc(n * size, sizeof(float));
    f->logits = xcalloc(n * (size_t)c->vocab_size, sizeof(float));
    if (!f->weights->has_mtp)
        return;
    f->ring_rows = ring_rows_for(&f->sizes);
    f->mtp_rows = xcalloc(n, sizeof *f->mtp_rows);
    f->mtp_residuals = xcalloc(n * size, sizeof(float));
    f->mtp_selections = xcalloc(n * capacity, sizeof(int));
    for (size_t i = 0; i < n; i++) {
        f->mtp_rows[i].residual = f->mtp_residuals + i * size;
        f->mtp_rows[i].selection.positions = f->mtp_selections + i * capacity;
    }
    for (int i = 0; i < f->sizes.max_sequences; i++)
        f->slots[i].hidden = xcalloc((size_t)f->ring_rows * size, sizeof(float));
}

/* ---- sequences ---- */

static struct forward_slot *slot_of(struct stage_forward *f, int slot)
{
    CHECK(slot >= 0 && slot < f->sizes.max_sequences && f->slots[slot].is_open);
    return &f->slots[slot];
}

static enum status forward_open(struct row_engine *base, int slot, int positions, struct error *err)
{
    struct stage_forward *f = of(base);
    CHECK(slot >= 0 && slot < f->sizes.max_sequences && !f->slots[slot].is_open);
    enum status status = sequence_state_init(&f->slots[slot].sequence, &f->cache, positions, err);
    if (status)
        return error_wrap(err, "%d positions asked for, %d are free", positions, f->cache.n_free * CACHE_BLOCK_POSITIONS);
    f->slots[slot].is_open = 1;
    f->slots[slot].finished = 0;
    return STATUS_OK;
}

static void forward_drop(struct row_engine *base, int slot)
{
    struct forward_slot *s = slot_of(of(base), slot);
    sequence_state_release(&s->sequence);
    s->is_open = 0;
}

static void forward_truncate(struct row_engine *base, int slot, int length)
{
    struct forward_slot *s = slot_of(of(base), slot);
    sequence_state_truncate(&s->sequence, length);
    s->finished = s->finished < length ? s->finished : length;
    if (of(base)->weights->store)
        expert_store_withdraw(of(base)->weights->store); /* what was guessed for the rows that are void now */
}

static int forward_mtp_length(struct row_engine *base, int slot)
{
    return slot_of(of(base), slot)->sequence.mtp_length;
}

/* ---- rows ---- */

static enum status forward_enter(struct row_engine *base, struct stage_row *row, struct error *err)
{
    struct stage_forward *f = of(base);
    struct forward_slot *s = slot_of(f, row->slot);
    enum status status = sequence_state_prepare(&s->sequence, row->row.position, row->row.position + 1, err);
    if (status)
        return status;
    row->row.sequence = &s->sequence;
    if (s->sequence.length < row->row.position + 1)
        s->sequence.length = row->row.position + 1;
    if (base->is_head)
        return embedding_row(&f->weights->weights.embedding, row->token, row->row.residual, err);
    return STATUS_OK;
}

static void set_class(struct stage_forward *f, enum row_kind kind)
{
    static const enum read_class classes[] = {[ROW_PREFILL] = READ_PREFILL, [ROW_DECODE] = READ_COMMITTED, [ROW_DRAFT] = READ_DRAFT};
    if (f->weights->store)
        expert_store_set_class(f->weights->store, classes[kind]);
}

static enum status forward_run_unit(struct row_engine *base, int layer, struct stage_row **rows, int n_rows, uint64_t until_ns, int *is_done,
                                    struct error *err)
{
    struct stage_forward *f = of(base);
    CHECK(n_rows >= 1 && layer >= base->layer_begin && layer < base->layer_end);
    for (int i = 0; i < n_rows; i++)
        f->list[i] = &rows[i]->row;
    set_class(f, rows[0]->kind);
    *is_done = 1;
    if (rows[0]->kind != ROW_PREFILL || !base->set_rows_max)
        return layer_forward(&f->context, layer, f->list, n_rows, err);
    layer_pass_begin(&f->pass, layer, f->list, n_rows);
    return layer_pass_run(&f->context, &f->pass, until_ns, is_done, err);
}

static enum status forward_resume(struct row_engine *base, uint64_t until_ns, int *is_done, struct error *err)
{
    struct stage_forward *f = of(base);
    set_class(f, ROW_PREFILL);
    return layer_pass_run(&f->context, &f->pass, until_ns, is_done, err);
}

static void forward_forget(struct row_engine *base, struct stage_row *row)
{
    layer_pass_forget(&of(base)->pass, &row->row);
}

static float *ring_row(struct stage_forward *f, struct forward_slot *s, int position)
{
    return s->hidden + (size_t)(position % f->ring_rows) * hidden_size(f);
}

static void keep_hidden(struct stage_forward *f, struct forward_slot *s, int position, const float *hidden)
{
    CHECK(position == s->finished);
    s->finished = position + 1;
    if (!f->ring_rows)
        return;
    CHECK(s->finished - s->sequence.mtp_length <= f->ring_rows);
    memcpy(ring_row(f, s, position), hidden, hidden_size(f) * sizeof(float));
}

static enum status forward_finish(struct row_engine *base, struct stage_row **rows, int n_rows, const float **logits, struct error *err)
{
    (void)err;
    struct stage_forward *f = of(base);
    size_t size = hidden_size(f);
    int n_wanted = 0;
    CHECK(base->is_tail && n_rows >= 1 && n_rows <= f->sizes.unit_rows_max);
    for (int i = 0; i < n_rows; i++)
        f->list[i] = &rows[i]->row;
    head_norm(&f->context, f->list, n_rows, f->hidden);
    for (int i = 0; i < n_rows; i++) {
        const float *hidden = f->hidden + (size_t)i * size;
        keep_hidden(f, slot_of(f, rows[i]->slot), rows[i]->row.position, hidden);
        logits[i] = NULL;
        if (!(rows[i]->want & (WANT_CANDIDATES | WANT_LOGITS)))
            continue;
        memcpy(f->gathered + (size_t)n_wanted * size, hidden, size * sizeof(float));
        logits[i] = f->logits + (size_t)n_wanted++ * (size_t)base->vocab_size;
    }
    if (n_wanted)
        head_logits(&f->context, f->gathered, n_wanted, f->logits);
    return STATUS_OK;
}

/* ---- MTP ---- */

static void start_mtp_row(struct stage_forward *f, struct forward_slot *s, int i, int position, int only_cache)
{
    struct row *row = &f->mtp_rows[i];
    *row = (struct row){.sequence = &s->sequence,
                        .position = position,
                        .next_layer = f->weights->config->n_layers,
                        .residual = row->residual,
                        .selection.positions = row->selection.positions,
                        .only_cache = only_cache,
                        .is_finite = 1};
    f->list[i] = row;
    memcpy(f->gathered + (size_t)i * hidden_size(f), ring_row(f, s, position), hidden_size(f) * sizeof(float));
}

static enum status forward_mtp_rows(struct row_engine *base, int slot, int first, const int *tokens, int n, const float **logits,
                                    struct error *err)
{
    struct stage_forward *f = of(base);
    struct forward_slot *s = slot_of(f, slot);
    int layer = f->weights->config->n_layers;
    set_class(f, ROW_DECODE);
    CHECK(f->ring_rows && n >= 1 && n <= f->sizes.unit_rows_max && first == s->sequence.mtp_length && first + n <= s->finished);
    enum status status = sequence_state_prepare(&s->sequence, first, first + n, err);
    if (status)
        return status;
    for (int i = 0; i < n; i++)
        start_mtp_row(f, s, i, first + i, !logits);
    status = mtp_enter(&f->context, f->list, n, tokens, f->gathered, err);
    if (!status)
        status = layer_forward(&f->context, layer, f->list, n, err);
    for (int i = 0; i < n && !status; i++)
        if (!f->list[i]->is_finite)
            status = error_set(err, STATUS_CORRUPT, "layer %d (MTP), position %d: a value is not finite", layer, first + i);
    if (status)
        return status;
    s->sequence.mtp_length = first + n;
    if (!logits)
        return STATUS_OK;
    mtp_norm(&f->context, f->list, n, f->hidden);
    head_logits(&f->context, f->hidden, n, f->logits);
    for (int i = 0; i < n; i++)
        logits[i] = f->logits + (size_t)i * (size_t)base->vocab_size;
    return STATUS_OK;
}

/* ---- new, free ---- */

static struct row_engine base_of(const struct stage_weights *w)
{
    const struct model_config *c = w->config;
    return (struct row_engine){.layer_begin = w->layer_begin,
                               .layer_end = w->layer_end,
                               .is_head = w->is_head,
                               .is_tail = w->is_tail,
                               .has_mtp = w->has_mtp,
                               .row_width = c->hidden_size,
                               .selection_capacity = selection_capacity(c),
                               .vocab_size = c->vocab_size,
                               .open = forward_open,
                               .drop = forward_drop,
                               .truncate = forward_truncate,
                               .enter = forward_enter,
                               .run_unit = forward_run_unit,
                               .resume = forward_resume,
                               .forget = forward_forget,
                               .finish = forward_finish,
                               .mtp_rows = forward_mtp_rows,
                               .mtp_length = forward_mtp_length};
}

enum status stage_forward_new(struct stage_forward **out, struct stage_weights *w, const struct kernels *kernels,
                              const struct stage_forward_sizes *sizes, struct error *err)
{
    CHECK(w->source && sizes->unit_rows_max >= 1 && sizes->max_sequences >= 1 && sizes->max_rows_in_flight >= 1 &&
          sizes->max_positions >= 1);
    struct stage_forward *f = xcalloc(1, sizeof *f);
    f->base = base_of(w);
    f->weights = w;
    f->sizes = *sizes;
    f->slots = xcalloc((size_t)sizes->max_sequences, sizeof *f->slots);
    f->base.set_rows_max = sizes->set_rows_max;
    f->list = xcalloc((size_t)(sizes->unit_rows_max > sizes->set_rows_max ? sizes->unit_rows_max : sizes->set_rows_max), sizeof *f->list);
    enum status status = workspace_init(&f->work, w->config, sizes->unit_rows_max, position_end(sizes), parallel_threads(), err);
    if (!status && sizes->set_rows_max)
        status = layer_pass_init(&f->pass, w->config, sizes->set_rows_max, err);
    if (!status)
        status = position_cache_init(&f->cache, w->config, w->layer_begin, w->layers_end, cache_blocks_for(sizes->max_positions), err);
    if (!status) {
        f->context = (struct layer_context){w->config, kernels, &w->weights, stage_weights_experts(w), &f->work, NULL};
        if (w->is_tail)
            allocate_tail(f);
    } else {
        stage_forward_free(&f);
    }
    *out = f;
    return status;
}

void stage_forward_free(struct stage_forward **forward)
{
    struct stage_forward *f = *forward;
    if (!f)
        return;
    for (int i = 0; i < f->sizes.max_sequences; i++) {
        CHECK(!f->slots[i].is_open);
        free(f->slots[i].hidden);
    }
    workspace_release(&f->work);
    layer_pass_release(&f->pass);
    position_cache_release(&f->cache);
    free(f->slots);
    free(f->list);
    free(f->hidden);
    free(f->gathered);
    free(f->logits);
    free(f->mtp_rows);
    free(f->mtp_residuals);
    free(f->mtp_selections);
    free(f);
    *forward = NULL;
}

struct row_engine *stage_forward_engine(struct stage_forward *forward)
{
    return &forward->base;
}
