#include "tests/sim/hash_engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"

/* What a position left in a layer: a digest of itself and all below. [position] for each layer of the range. */
struct hash_slot {
    int is_open, positions;
    uint64_t *digest; /* [layers][positions] */
    int *length;      /* [layers] rows that have passed the layer and are valid */
    int entered;
    uint64_t *hidden; /* [positions], tail */
    int finished;
    uint64_t *mtp_digest; /* [positions], tail */
    int mtp_length;
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t h = (a ^ (b + UINT64_C(0x9e3779b97f4a7c15) + (a << 6) + (a >> 2))) * UINT64_C(0xbf58476d1ce4e5b9);
    h ^= h >> 29;
    h *= UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 32;
}

enum { SALT_EMBED = 1, SALT_LAYER, SALT_LOGITS, SALT_MTP };

static uint64_t embed(int token)
{
    return mix(SALT_EMBED, (uint64_t)token);
}

static uint64_t next_digest(uint64_t below, uint64_t row)
{
    return mix(below, row);
}

static uint64_t pass_layer(uint64_t row, int layer, uint64_t digest)
{
    return mix(mix(mix(SALT_LAYER, (uint64_t)layer), row), digest);
}

static void logits_of(uint64_t hash, int vocab, float *out)
{
    for (int id = 0; id < vocab; id++)
        out[id] = (float)(int)(mix(mix(SALT_LOGITS, hash), (uint64_t)id) % 8192) / 512.0f - 8.0f;
}

/* 16 bits a float: whole numbers are exact. */
static void hash_to_row(uint64_t hash, float *row)
{
    for (int i = 0; i < HASH_ROW_WIDTH; i++)
        row[i] = (float)(hash >> 16 * i & 0xffff);
}

static uint64_t row_to_hash(const float *row)
{
    uint64_t hash = 0;
    for (int i = 0; i < HASH_ROW_WIDTH; i++)
        hash |= (uint64_t)row[i] << 16 * i;
    return hash;
}

/* ---- the engine ---- */

static struct hash_engine *of(struct row_engine *base)
{
    return (struct hash_engine *)base;
}

static void expect(struct hash_engine *e, int holds, const char *promise)
{
    if (holds)
        return;
    if (!e->n_violations++)
        e->violation = promise;
}

static struct hash_slot *open_slot(struct hash_engine *e, int slot)
{
    CHECK(slot >= 0 && slot < e->options.max_sequences && e->slots[slot].is_open);
    return &e->slots[slot];
}

static int layers_of(const struct hash_engine *e)
{
    return e->options.layer_end - e->options.layer_begin;
}

static enum status engine_open(struct row_engine *base, int slot, int positions, struct error *err)
{
    struct hash_engine *e = of(base);
    CHECK(slot >= 0 && slot < e->options.max_sequences && !e->slots[slot].is_open);
    int cost = cache_blocks_for(positions) * CACHE_BLOCK_POSITIONS;
    if (cost > e->free_positions)
        return error_set(err, STATUS_BUSY, "%d positions asked for, %d are free", positions, e->free_positions);
    e->free_positions -= cost;
    size_t layers = (size_t)layers_of(e), n = (size_t)positions;
    e->slots[slot] = (struct hash_slot){.is_open = 1,
                                        .positions = positions,
                                        .digest = xcalloc(layers * n, sizeof(uint64_t)),
                                        .length = xcalloc(layers, sizeof(int)),
                                        .hidden = xcalloc(n, sizeof(uint64_t)),
                                        .mtp_digest = xcalloc(n, sizeof(uint64_t))};
    return STATUS_OK;
}

static void release_slot(struct hash_slot *slot)
{
    free(slot->digest);
    free(slot->length);
    free(slot->hidden);
    free(slot->mtp_digest);
    *slot = (struct hash_slot){0};
}

static void engine_drop(struct row_engine *base, int slot)
{
    struct hash_engine *e = of(base);
    struct hash_slot *s = open_slot(e, slot);
    e->free_positions += cache_blocks_for(s->positions) * CACHE_BLOCK_POSITIONS;
    release_slot(s);
}

static void lower(int *length, int to)
{
    *length = *length < to ? *length : to;
}

static void engine_truncate(struct row_engine *base, int slot, int length)
{
    struct hash_engine *e = of(base);
    struct hash_slot *s = open_slot(e, slot);
    for (int i = 0; i < layers_of(e); i++)
        lower(&s->length[i], length);
    lower(&s->entered, length);
    lower(&s->finished, length);
    lower(&s->mtp_length, length > 0 ? length - 1 : 0);
}

static enum status engine_enter(struct row_engine *base, struct stage_row *row, struct error *err)
{
    (void)err;
    struct hash_engine *e = of(base);
    struct hash_slot *s = open_slot(e, row->slot);
    expect(e, row->row.position == s->entered && row->row.position < s->positions, "rows enter in ascending order");
    s->entered = row->row.position + 1;
    if (base->is_head)
        hash_to_row(embed(row->token), row->row.residual);
    return STATUS_OK;
}

static void run_row(struct hash_engine *e, int layer, struct stage_row *row)
{
    struct hash_slot *s = open_slot(e, row->slot);
    int i = layer - e->options.layer_begin, position = row->row.position;
    expect(e, row->row.next_layer == layer, "rows of a unit stand before the same layer");
    expect(e, position == s->length[i] && position < s->positions, "a row enters a layer after all lower rows have left it, once");
    if (position >= s->positions)
        return;
    uint64_t *digest = s->digest + (size_t)i * (size_t)s->positions;
    uint64_t hash = row_to_hash(row->row.residual);
    digest[position] = next_digest(position ? digest[position - 1] : 0, hash);
    hash_to_row(pass_layer(hash, layer, digest[position]), row->row.residual);
    s->length[i] = position + 1;
    row->row.next_layer = layer + 1;
    row->row.is_finite = !(row->token == e->options.bad_token && layer == e->options.bad_layer);
    if (!row->row.is_finite)
        row->row.residual[0] = NAN;
    e->n_rows_run++;
}

/* A third of an interrupted unit's rows. */
static enum status engine_resume(struct row_engine *base, uint64_t until_ns, int *is_done, struct error *err)
{
    (void)until_ns, (void)err;
    struct hash_engine *e = of(base);
    expect(e, e->n_set > 0, "only an interrupted unit goes on");
    int end = e->set_done + (e->n_set + 2) / 3;
    end = end < e->n_set ? end : e->n_set;
    for (; e->set_done < end; e->set_done++)
        if (e->set[e->set_done])
            run_row(e, e->set_layer, e->set[e->set_done]);
    *is_done = e->set_done == e->n_set;
    if (*is_done)
        e->n_set = 0;
    return STATUS_OK;
}

static enum status engine_run_unit(struct row_engine *base, int layer, struct stage_row **rows, int n_rows, uint64_t until_ns, int *is_done,
                                   struct error *err)
{
    struct hash_engine *e = of(base);
    CHECK(layer >= base->layer_begin && layer < base->layer_end && n_rows >= 1);
    *is_done = 1;
    if (e->options.set_rows && rows[0]->kind == ROW_PREFILL) {
        expect(e, !e->n_set && n_rows <= base->set_rows_max, "one interrupted unit at a time");
        memcpy(e->set, rows, (size_t)n_rows * sizeof *rows);
        e->n_set = n_rows;
        e->set_done = 0;
        e->set_layer = layer;
        return engine_resume(base, until_ns, is_done, err);
    }
    for (int i = 0; i < n_rows; i++)
        run_row(e, layer, rows[i]);
    return STATUS_OK;
}

static void engine_forget(struct row_engine *base, struct stage_row *row)
{
    struct hash_engine *e = of(base);
    int alive = 0;
    for (int i = 0; i < e->n_set; i++) {
        if (e->set[i] == row)
            e->set[i] = NULL;
        alive += e->set[i] != NULL;
    }
    if (!alive)
        e->n_set = 0;
}

static enum status engine_finish(struct row_engine *base, struct stage_row **rows, int n_rows, const float **logits, struct error *err)
{
    (void)err;
    struct hash_engine *e = of(base);
    CHECK(base->is_tail && n_rows <= HASH_UNIT_ROWS_MAX);
    for (int i = 0; i < n_rows; i++) {
        struct hash_slot *s = open_slot(e, rows[i]->slot);
        int position = rows[i]->row.position;
        expect(e, rows[i]->row.next_layer == base->layer_end, "finished rows have passed every layer");
        expect(e, position == s->finished, "rows finish in ascending order");
        s->hidden[position] = row_to_hash(rows[i]->row.residual);
        s->finished = position + 1;
        float *row_logits = e->logits + (size_t)i * (size_t)base->vocab_size;
        logits_of(s->hidden[position], base->vocab_size, row_logits);
        logits[i] = rows[i]->want & 3u ? row_logits : NULL; /* candidates or logits */
    }
    return STATUS_OK;
}

static uint64_t mtp_row(uint64_t below, uint64_t hidden, int token)
{
    return next_digest(below, mix(mix(SALT_MTP, hidden), (uint64_t)token));
}

static enum status engine_mtp_rows(struct row_engine *base, int slot, int first, const int *tokens, int n, const float **logits,
                                   struct error *err)
{
    (void)err;
    struct hash_engine *e = of(base);
    struct hash_slot *s = open_slot(e, slot);
    CHECK(base->is_tail && base->has_mtp && n >= 1 && n <= HASH_UNIT_ROWS_MAX);
    expect(e, first == s->mtp_length, "true MTP rows come in ascending order, each once");
    expect(e, first + n <= s->finished, "a true MTP row needs its h");
    for (int i = 0; i < n && first + i < s->positions; i++) {
        int position = first + i;
        s->mtp_digest[position] = mtp_row(position ? s->mtp_digest[position - 1] : 0, s->hidden[position], tokens[i]);
        float *row_logits = e->logits + (size_t)i * (size_t)base->vocab_size;
        logits_of(s->mtp_digest[position], base->vocab_size, row_logits);
        if (logits)
            logits[i] = row_logits;
    }
    s->mtp_length = first + n;
    return STATUS_OK;
}

static int engine_mtp_length(struct row_engine *base, int slot)
{
    return open_slot(of(base), slot)->mtp_length;
}

struct hash_engine *hash_engine_new(const struct hash_engine_options *options)
{
    struct hash_engine *e = xcalloc(1, sizeof *e);
    e->options = *options;
    e->slots = xcalloc((size_t)options->max_sequences, sizeof *e->slots);
    e->logits = xcalloc((size_t)HASH_UNIT_ROWS_MAX * (size_t)options->vocab_size, sizeof *e->logits);
    e->set = xcalloc((size_t)options->set_rows + 1, sizeof *e->set);
    e->free_positions = cache_blocks_for(options->max_positions) * CACHE_BLOCK_POSITIONS;
    e->base = (struct row_engine){
        .layer_begin = options->layer_begin,
        .layer_end = options->layer_end,
        .is_head = options->layer_begin == 0,
        .is_tail = options->layer_end == options->n_layers,
        .has_mtp = options->has_mtp,
        .row_width = HASH_ROW_WIDTH,
        .selection_capacity = HASH_SELECTION,
        .vocab_size = options->vocab_size,
        .open = engine_open,
        .drop = engine_drop,
        .truncate = engine_truncate,
        .enter = engine_enter,
        .set_rows_max = options->set_rows,
        .run_unit = engine_run_unit,
        .resume = engine_resume,
        .forget = engine_forget,
        .finish = engine_finish,
        .mtp_rows = engine_mtp_rows,
        .mtp_length = engine_mtp_length,
    };
    return e;
}

void hash_engine_free(struct hash_engine **engine)
{
    struct hash_engine *e = *engine;
    if (!e)
        return;
    for (int i = 0; i < e->options.max_sequences; i++)
        release_slot(&e->slots[i]);
    free(e->slots);
    free(e->set);
    free(e->logits);
    free(e);
    *engine = NULL;
}

/* ---- the reference ---- */

void hash_reference_init(struct hash_reference *r, int n_layers, int vocab_size)
{
    *r = (struct hash_reference){.n_layers = n_layers, .vocab_size = vocab_size, .digest = xcalloc((size_t)n_layers, sizeof(uint64_t))};
}

void hash_reference_release(struct hash_reference *r)
{
    free(r->digest);
    *r = (struct hash_reference){0};
}

void hash_reference_push(struct hash_reference *r, int token, float *logits, float *mtp_logits)
{
    if (r->last) /* not the first token */
        r->mtp_digest = mtp_row(r->mtp_digest, r->last, token);
    if (mtp_logits)
        logits_of(r->mtp_digest, r->vocab_size, mtp_logits);
    uint64_t hash = embed(token);
    for (int layer = 0; layer < r->n_layers; layer++) {
        r->digest[layer] = next_digest(r->digest[layer], hash);
        hash = pass_layer(hash, layer, r->digest[layer]);
    }
    r->last = hash;
    if (logits)
        logits_of(hash, r->vocab_size, logits);
}
