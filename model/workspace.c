#include "model/workspace.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "kernels/kernels.h"
#include "model/attention_mla.h"
#include "model/expert_source.h"
#include "model/row.h"

/* Hands out 64-byte aligned pieces; with base NULL it only counts. */
struct bump {
    char *base;
    size_t used;
};

static void *take(struct bump *bump, size_t count, size_t bytes)
{
    void *piece = bump->base ? bump->base + bump->used : NULL;
    bump->used += (count * bytes + 63) & ~(size_t)63;
    return piece;
}

static void *take_quantized(struct bump *bump, int rows, int cols)
{
    return take(bump, 1, quantized_rows_bytes(rows, cols));
}

static int widest_mlp(const struct model_config *c)
{
    int width = c->moe_intermediate_size * (c->n_shared_experts > 1 ? c->n_shared_experts : 1);
    for (int i = 0; i < c->n_layers; i++)
        if (!c->is_sparse[i] && c->intermediate_size > width)
            width = c->intermediate_size;
    return width;
}

static void lay_out_attention(struct workspace *w, struct bump *b, const struct model_config *c)
{
    size_t n = (size_t)w->max_rows, heads = (size_t)c->n_heads, latent = (size_t)(c->kv_lora_rank + c->rope_dim), f = sizeof(float);
    w->query_low = take(b, n * (size_t)c->q_lora_rank, f);
    w->query_low_q = take_quantized(b, w->max_rows, c->q_lora_rank);
    w->kv = take(b, n * latent, f);
    w->query = take(b, n * heads * (size_t)config_qk_dim(c), f);
    w->absorbed = take(b, n * heads * latent, f);
    w->mixed = take(b, n * heads * (size_t)c->kv_lora_rank, f);
    w->values = take(b, n * heads * (size_t)c->v_dim, f);
    w->values_q = take_quantized(b, w->max_rows, c->n_heads * c->v_dim);
    w->rope_cos = take(b, n * (size_t)c->rope_dim / 2, f);
    w->rope_sin = take(b, n * (size_t)c->rope_dim / 2, f);
    w->index_query = take(b, n * (size_t)c->index_heads * (size_t)c->index_dim, f);
    w->index_key = take(b, n * (size_t)c->index_dim, f);
    w->index_weight = take(b, n * (size_t)c->index_heads, f);
    w->index_scores = take(b, (size_t)w->max_positions, f);
    int head_cols = c->nope_dim > c->kv_lora_rank ? c->nope_dim : c->kv_lora_rank;
    for (int t = 0; t < w->n_threads; t++) {
        w->threads[t].scores = take(b, (size_t)HEADS_AT_ONCE * (size_t)w->selected_max, f);
        w->threads[t].latents = take(b, (size_t)w->selected_max, sizeof(float *));
        w->threads[t].head_q = take_quantized(b, w->max_rows, head_cols);
    }
}

size_t routing_place(struct routing *r, const struct model_config *c, int max_rows, void *base)
{
    struct bump b = {base, 0};
    size_t n = (size_t)max_rows, k = (size_t)c->top_k, experts = (size_t)c->n_experts;
    r->logits = take(&b, n * experts, sizeof(float));
    r->chosen = take(&b, n * k, sizeof(int));
    r->weight = take(&b, n * k, sizeof(float));
    r->expert_rows = take(&b, n * k, sizeof(int));
    r->place = take(&b, n * k, sizeof(int));
    r->first = take(&b, experts + 1, sizeof(int));
    r->list = take(&b, experts, sizeof(int));
    r->uses = take(&b, experts, sizeof(int));
    r->views = take(&b, experts, sizeof(struct expert_view));
    r->landed = take(&b, experts, 1);
    return b.used;
}

static void lay_out_mlp(struct workspace *w, struct bump *b, const struct model_config *c)
{
    size_t n = (size_t)w->max_rows, hidden = (size_t)c->hidden_size, k = (size_t)c->top_k, f = sizeof(float);
    int width = widest_mlp(c);
    void *base = take(b, routing_place(&w->routing, c, w->max_rows, NULL), 1);
    routing_place(&w->routing, c, w->max_rows, base);
    w->gathered = take(b, n * hidden, f);
    w->gathered_q = take_quantized(b, w->max_rows, c->hidden_size);
    w->gate = take(b, n * (size_t)width, f);
    w->up = take(b, n * (size_t)width, f);
    w->gate_q = take_quantized(b, w->max_rows, width);
    size_t buffered = BUFFERED_ROWS_MAX * k;
    w->expert_out = take(b, (n > buffered ? n : buffered) * hidden, f);
}

static size_t lay_out(struct workspace *w, const struct model_config *c, char *base)
{
    struct bump b = {base, 0};
    size_t n = (size_t)w->max_rows, hidden = (size_t)c->hidden_size, f = sizeof(float);
    w->normed = take(&b, n * hidden, f);
    w->normed_q = take_quantized(&b, w->max_rows, c->hidden_size);
    w->out = take(&b, n * hidden, f);
    w->shared_out = take(&b, n * hidden, f);
    w->head_rows = take(&b, n * hidden, f);
    w->head_q = take_quantized(&b, w->max_rows, c->hidden_size);
    w->mtp_pair = take(&b, n * 2 * hidden, f);
    w->mtp_pair_q = take_quantized(&b, w->max_rows, 2 * c->hidden_size);
    lay_out_attention(w, &b, c);
    lay_out_mlp(w, &b, c);
    return b.used;
}

static void set_limits(struct workspace *w, const struct model_config *c, int max_rows, int max_positions, int n_threads)
{
    CHECK(max_rows > 0 && max_positions > 0 && n_threads > 0);
    memset(w, 0, sizeof *w);
    w->max_rows = max_rows;
    w->max_positions = max_positions;
    w->n_threads = n_threads < THREAD_SCRATCH_MAX ? n_threads : THREAD_SCRATCH_MAX;
    w->selected_max = (max_positions < c->index_topk ? max_positions : c->index_topk) + DRAFT_DEPTH_MAX;
}

size_t workspace_bytes(const struct model_config *config, int max_rows, int max_positions, int n_threads)
{
    struct workspace w;
    set_limits(&w, config, max_rows, max_positions, n_threads);
    return lay_out(&w, config, NULL);
}

enum status workspace_init(struct workspace *work, const struct model_config *config, int max_rows, int max_positions, int n_threads, struct error *err)
{
    set_limits(work, config, max_rows, max_positions, n_threads);
    size_t bytes = lay_out(work, config, NULL);
    work->memory = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!work->memory)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate %zu bytes of scratch for %d rows at once", bytes, max_rows);
    lay_out(work, config, work->memory);
    return STATUS_OK;
}

void workspace_release(struct workspace *work)
{
    free(work->memory);
    work->memory = NULL;
}
