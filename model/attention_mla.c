#include "model/attention_mla.h"

#include <math.h>
#include <string.h>

#include "common/check.h"
#include "kernels/double_math.h"
#include "kernels/parallel.h"
#include "model/indexer.h"

struct attention {
    const struct layer_context *ctx;
    const struct layer_weights *w;
    int layer;
    struct row **rows;
    int n_rows;
    int n_parts; /* threads that share the work below; each has its own scratch */
};

/* Item numbers [*begin, *end) of part `part` out of n_parts. */
static void share(int n, int n_parts, int part, int *begin, int *end)
{
    *begin = (int)((int64_t)n * part / n_parts);
    *end = (int)((int64_t)n * (part + 1) / n_parts);
}

/* c = rms(u[0 : kv_lora]) and the rotated k_pe go to the sequence's cache at the row's position. */
static void append_latents(const struct attention *a)
{
    const struct model_config *c = a->ctx->config;
    const struct workspace *work = a->ctx->work;
    size_t width = (size_t)(c->kv_lora_rank + c->rope_dim), half = (size_t)c->rope_dim / 2;
    for (int i = 0; i < a->n_rows; i++) {
        float *latent = sequence_state_latent(a->rows[i]->sequence, a->layer, a->rows[i]->position);
        const float *u = work->kv + (size_t)i * width;
        a->ctx->kernels->rms_norm(latent, u, a->w->kv_a_norm, c->kv_lora_rank, c->rms_norm_eps);
        memcpy(latent + c->kv_lora_rank, u + c->kv_lora_rank, (size_t)c->rope_dim * sizeof(float));
        rope_rotate(latent + c->kv_lora_rank, 1, 0, c->rope_dim, work->rope_cos + (size_t)i * half, work->rope_sin + (size_t)i * half);
    }
}

/* Absorbed queries: [K_h^T q_nope | rotated q_pe] per head and row. */
static void absorb_heads(void *ctx, int part, int part_end)
{
    (void)part_end;
    const struct attention *a = ctx;
    const struct model_config *c = a->ctx->config;
    const struct workspace *work = a->ctx->work;
    int qk = config_qk_dim(c), width = c->kv_lora_rank + c->rope_dim, begin, end;
    share(c->n_heads, a->n_parts, part, &begin, &end);
    for (int h = begin; h < end; h++) {
        struct matrix keys = matrix_rows(&a->w->kv_b_keys, h * c->kv_lora_rank, c->kv_lora_rank);
        struct activations nope =
            activations_of(work->query + (size_t)h * (size_t)qk, (size_t)c->n_heads * (size_t)qk, a->n_rows, c->nope_dim, work->threads[part].head_q);
        linear_run_here(a->ctx->kernels,
                        &(struct linear){&keys, &nope, work->absorbed + (size_t)h * (size_t)width, (size_t)c->n_heads * (size_t)width});
        for (int i = 0; i < a->n_rows; i++)
            memcpy(work->absorbed + ((size_t)i * (size_t)c->n_heads + (size_t)h) * (size_t)width + c->kv_lora_rank,
                   work->query + ((size_t)i * (size_t)c->n_heads + (size_t)h) * (size_t)qk + c->nope_dim, (size_t)c->rope_dim * sizeof(float));
    }
}

static void rotate_queries(const struct attention *a)
{
    const struct model_config *c = a->ctx->config;
    const struct workspace *work = a->ctx->work;
    int qk = config_qk_dim(c), half = c->rope_dim / 2;
    for (int i = 0; i < a->n_rows; i++)
        rope_rotate(work->query + (size_t)i * (size_t)c->n_heads * (size_t)qk + c->nope_dim, c->n_heads, qk, c->rope_dim,
                    work->rope_cos + (size_t)i * (size_t)half, work->rope_sin + (size_t)i * (size_t)half);
}

/* The j-th position that the row sees, and how many from there on follow one another inside one cache block. */
static int run_of_positions(const struct row *row, int j, int *position)
{
    const struct selection *s = &row->selection;
    *position = s->is_all ? j : s->positions[j];
    int room = CACHE_BLOCK_POSITIONS - *position % CACHE_BLOCK_POSITIONS, length = 1;
    while (length < room && j + length < s->n && (s->is_all || s->positions[j + length] == *position + length))
        length++;
    return length;
}

/* Scores, softmax and latent mix of heads [head, head + n_heads) of row i. */
static void attend(const struct attention *a, int i, int head, int n_heads, const struct thread_scratch *scratch)
{
    const struct model_config *c = a->ctx->config;
    const struct kernels *kernels = a->ctx->kernels;
    const struct row *row = a->rows[i];
    const struct workspace *work = a->ctx->work;
    int width = c->kv_lora_rank + c->rope_dim, n = row->selection.n, length, position;
    CHECK(n > 0 && n <= work->selected_max);
    size_t first_head = (size_t)i * (size_t)c->n_heads + (size_t)head;
    for (int j = 0; j < n; j += length) {
        length = run_of_positions(row, j, &position);
        const float *latents = sequence_state_latent(row->sequence, a->layer, position);
        struct matrix run = {FORMAT_F32, length, width, latents, NULL, 1.0f};
        struct matmul_args args = {.m = &run,
                                   .row_end = length,
                                   .x = work->absorbed + first_head * (size_t)width,
                                   .x_stride = (size_t)width,
                                   .n_x = n_heads,
                                   .out = scratch->scores + j,
                                   .out_stride = (size_t)n};
        kernels->matmul_f32(&args);
        for (int k = 0; k < length; k++)
            scratch->latents[j + k] = latents + (size_t)k * (size_t)width;
    }
    float scale = 1.0f / sqrtf((float)config_qk_dim(c));
    for (int h = 0; h < n_heads; h++) {
        float *scores = scratch->scores + (size_t)h * (size_t)n;
        for (int j = 0; j < n; j++)
            scores[j] *= scale;
        kernels->softmax(scores, n);
    }
    kernels->mix_rows(work->mixed + first_head * (size_t)c->kv_lora_rank, (size_t)c->kv_lora_rank, scratch->scores, (size_t)n, scratch->latents, n,
                      n_heads, c->kv_lora_rank);
}

static void attend_part(void *ctx, int part, int part_end)
{
    (void)part_end;
    const struct attention *a = ctx;
    int groups = (a->ctx->config->n_heads + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE, begin, end;
    share(a->n_rows * groups, a->n_parts, part, &begin, &end);
    for (int item = begin; item < end; item++) {
        int head = item % groups * HEADS_AT_ONCE, left = a->ctx->config->n_heads - head;
        attend(a, item / groups, head, left < HEADS_AT_ONCE ? left : HEADS_AT_ONCE, &a->ctx->work->threads[part]);
    }
}

/* o_h = V_h z_h. */
static void expand_heads(void *ctx, int part, int part_end)
{
    (void)part_end;
    const struct attention *a = ctx;
    const struct model_config *c = a->ctx->config;
    const struct workspace *work = a->ctx->work;
    int begin, end;
    share(c->n_heads, a->n_parts, part, &begin, &end);
    for (int h = begin; h < end; h++) {
        struct matrix values = matrix_rows(&a->w->kv_b_values, h * c->v_dim, c->v_dim);
        struct activations mixed = activations_of(work->mixed + (size_t)h * (size_t)c->kv_lora_rank, (size_t)c->n_heads * (size_t)c->kv_lora_rank,
                                                  a->n_rows, c->kv_lora_rank, work->threads[part].head_q);
        linear_run_here(a->ctx->kernels,
                        &(struct linear){&values, &mixed, work->values + (size_t)h * (size_t)c->v_dim, (size_t)c->n_heads * (size_t)c->v_dim});
    }
}

static void for_parts(struct attention *a, void (*fn)(void *ctx, int begin, int end))
{
    parallel_for(a->n_parts, 1, fn, a);
}

/* Latents and rope tables of all rows, and the low-rank queries where they attend: rows that only fill caches need no query. */
static void project(struct attention *a, struct activations *normed, struct activations *low, int attends)
{
    const struct layer_context *ctx = a->ctx;
    const struct model_config *c = ctx->config;
    struct workspace *work = ctx->work;
    int latent = c->kv_lora_rank + c->rope_dim;
    struct linear first[] = {{&a->w->kv_a_proj, normed, work->kv, (size_t)latent}, {&a->w->q_a_proj, normed, work->query_low, (size_t)c->q_lora_rank}};
    linear_run(ctx->kernels, first, attends ? 2 : 1);
    for (int i = 0; i < a->n_rows; i++) {
        size_t half = (size_t)c->rope_dim / 2;
        rope_table(work->rope_cos + (size_t)i * half, work->rope_sin + (size_t)i * half, a->rows[i]->position, c->rope_dim, c->rope_theta);
    }
    for (int i = 0; i < a->n_rows && attends; i++) {
        float *r = work->query_low + (size_t)i * (size_t)c->q_lora_rank;
        ctx->kernels->rms_norm(r, r, a->w->q_a_norm, c->q_lora_rank, c->rms_norm_eps);
    }
    *low = activations_of(work->query_low, (size_t)c->q_lora_rank, a->n_rows, c->q_lora_rank, work->query_low_q);
}

void attention_forward(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct activations *normed)
{
    const struct model_config *c = ctx->config;
    struct workspace *work = ctx->work;
    struct attention a = {ctx, &ctx->weights->layers[layer], layer, rows, n_rows, 1};
    a.n_parts = parallel_threads() < work->n_threads ? parallel_threads() : work->n_threads;
    int n_full = 0; /* either all rows attend or none does: the caller splits mixed sets */
    for (int i = 0; i < n_rows; i++)
        n_full += !rows[i]->only_cache;
    CHECK(n_full == 0 || n_full == n_rows);
    struct activations low;
    project(&a, normed, &low, n_full > 0);
    append_latents(&a);
    if (c->has_indexer[layer])
        indexer_forward(ctx, layer, rows, n_rows, normed, &low);
    if (!n_full)
        return;
    linear_run(ctx->kernels, &(struct linear){&a.w->q_b_proj, &low, work->query, (size_t)c->n_heads * (size_t)config_qk_dim(c)}, 1);
    rotate_queries(&a);
    for_parts(&a, absorb_heads);
    for_parts(&a, attend_part);
    for_parts(&a, expand_heads);
    int width = c->n_heads * c->v_dim;
    struct activations values = activations_of(work->values, (size_t)width, n_rows, width, work->values_q);
    linear_run(ctx->kernels, &(struct linear){&a.w->o_proj, &values, work->out, (size_t)c->hidden_size}, 1);
}
