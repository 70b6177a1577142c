#include "model/indexer.h"

#include <math.h>
#include <string.h>

#include "common/check.h"
#include "kernels/double_math.h"
#include "kernels/parallel.h"

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

/* Larger scores have larger keys. */
static uint32_t order_key(float score)
{
    if (score != score)
        return 0;
    score += 0.0f; /* -0 becomes +0 */
    uint32_t bits;
    memcpy(&bits, &score, 4);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

void select_top_k(const float *scores, int n, int k, int *positions)
{
    CHECK(k >= 0 && k <= n);
    /* Radix selection: fix the k-th best key digit by digit, from the top. `left` of the keys with the known prefix are still to be taken. */
    uint32_t prefix = 0, mask = 0;
    int left = k;
    static const int shifts[] = {21, 10, 0};
    for (int d = 0; d < 3; d++) {
        int bits = shifts[d] ? DIGIT_BITS : 10, count[DIGITS] = {0};
        for (int i = 0; i < n; i++) {
            uint32_t key = order_key(scores[i]);
            if ((key & mask) == prefix)
                count[key >> shifts[d] & ((1u << bits) - 1)]++;
        }
        int digit = (1 << bits) - 1;
        while (digit > 0 && count[digit] < left)
            left -= count[digit--];
        prefix |= (uint32_t)digit << shifts[d];
        mask |= ((1u << bits) - 1) << shifts[d];
    }
    int taken = 0;
    for (int i = 0; i < n && taken < k; i++) { /* of equal keys the lowest positions */
        uint32_t key = order_key(scores[i]);
        if (key > prefix || (key == prefix && left-- > 0))
            positions[taken++] = i;
    }
    CHECK(taken == k);
}

struct scoring {
    const struct layer_context *ctx;
    int layer, i;
    const struct row *row;
};

/* I[t] = sum over heads, in order, of fmaf(w_h, max(0, q_h . k_t), I), for the keys of cache blocks [begin, end). */
static void score_blocks(void *ctx, int begin, int end)
{
    enum { HEADS_TILE = 16 };
    const struct scoring *s = ctx;
    const struct model_config *c = s->ctx->config;
    const struct workspace *work = s->ctx->work;
    const float *weight = work->index_weight + (size_t)s->i * (size_t)c->index_heads;
    const float *query = work->index_query + (size_t)s->i * (size_t)c->index_heads * (size_t)c->index_dim;
    float dots[HEADS_TILE * CACHE_BLOCK_POSITIONS];
    for (int block = begin; block < end; block++) {
        int first = block * CACHE_BLOCK_POSITIONS, n = s->row->position + 1 - first;
        n = n < CACHE_BLOCK_POSITIONS ? n : CACHE_BLOCK_POSITIONS;
        float *score = work->index_scores + first;
        memset(score, 0, (size_t)n * sizeof(float));
        struct matrix keys = {FORMAT_F32, n, c->index_dim, sequence_state_index_key(s->row->sequence, s->layer, first), NULL, 1.0f};
        for (int head = 0; head < c->index_heads; head += HEADS_TILE) {
            int n_heads = c->index_heads - head < HEADS_TILE ? c->index_heads - head : HEADS_TILE;
            struct matmul_args args = {.m = &keys,
                                       .row_end = n,
                                       .x = query + (size_t)head * (size_t)c->index_dim,
                                       .x_stride = (size_t)c->index_dim,
                                       .n_x = n_heads,
                                       .out = dots,
                                       .out_stride = CACHE_BLOCK_POSITIONS};
            s->ctx->kernels->matmul_f32(&args);
            for (int h = 0; h < n_heads; h++)
                for (int t = 0; t < n; t++) {
                    float dot = dots[h * CACHE_BLOCK_POSITIONS + t];
                    score[t] = fmaf(weight[head + h], dot > 0 ? dot : 0.0f, score[t]);
                }
        }
    }
}

static void choose(const struct layer_context *ctx, int layer, int i, struct row *row)
{
    int visible = row->position + 1, k = ctx->config->index_topk;
    if (visible <= k) {
        row->selection.is_all = 1;
        row->selection.n = visible;
        return;
    }
    struct scoring s = {ctx, layer, i, row};
    parallel_for(cache_blocks_for(visible), 4, score_blocks, &s);
    select_top_k(ctx->work->index_scores, visible, k, row->selection.positions);
    row->selection.is_all = 0;
    row->selection.n = k;
}

static void store_keys(const struct layer_context *ctx, int layer, struct row **rows, int n_rows)
{
    const struct model_config *c = ctx->config;
    const struct indexer_weights *w = &ctx->weights->layers[layer].indexer;
    const struct workspace *work = ctx->work;
    size_t half = (size_t)c->rope_dim / 2;
    for (int i = 0; i < n_rows; i++) {
        float *key = sequence_state_index_key(rows[i]->sequence, layer, rows[i]->position);
        /* An ordinary LayerNorm with bias and its own epsilon (spec 3.6): not RMS, not rms_norm_eps. */
        ctx->kernels->layer_norm(key, work->index_key + (size_t)i * (size_t)c->index_dim, w->k_norm, w->k_norm_bias, c->index_dim, 1e-6f);
        rope_rotate(key, 1, 0, c->rope_dim, work->rope_cos + (size_t)i * half, work->rope_sin + (size_t)i * half);
    }
}

void indexer_forward(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct activations *normed, struct activations *low)
{
    const struct model_config *c = ctx->config;
    const struct indexer_weights *w = &ctx->weights->layers[layer].indexer;
    const struct workspace *work = ctx->work;
    size_t half = (size_t)c->rope_dim / 2, width = (size_t)c->index_heads * (size_t)c->index_dim;
    linear_run(ctx->kernels, &(struct linear){&w->wk, normed, work->index_key, (size_t)c->index_dim}, 1);
    store_keys(ctx, layer, rows, n_rows);
    int n_choosing = 0, n_scoring = 0;
    for (int i = 0; i < n_rows; i++) {
        int chooses = !rows[i]->selection_is_given && !rows[i]->only_cache;
        n_choosing += chooses;
        n_scoring += chooses && rows[i]->position + 1 > c->index_topk;
    }
    if (n_scoring) {
        struct linear tasks[] = {{&w->wq_b, low, work->index_query, width}, {&w->weights_proj, normed, work->index_weight, (size_t)c->index_heads}};
        linear_run(ctx->kernels, tasks, 2);
        /* Both factors of the reference, index_heads^-1/2 and index_dim^-1/2, as one on the head weights. */
        float scale = 1.0f / sqrtf((float)(c->index_heads * c->index_dim));
        for (int i = 0; i < n_rows; i++) {
            float *query = work->index_query + (size_t)i * width;
            rope_rotate(query, c->index_heads, c->index_dim, c->rope_dim, work->rope_cos + (size_t)i * half, work->rope_sin + (size_t)i * half);
            for (int h = 0; h < c->index_heads; h++)
                work->index_weight[(size_t)i * (size_t)c->index_heads + (size_t)h] *= scale;
        }
    }
    for (int i = 0; i < n_rows && n_choosing; i++)
        if (!rows[i]->selection_is_given && !rows[i]->only_cache)
            choose(ctx, layer, i, rows[i]);
}
