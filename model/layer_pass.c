#include "model/layer_pass.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "model/swiglu.h"

static size_t round_up(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* Lays the arrays out at base, or with base NULL only counts. */
static size_t place(struct layer_pass *p, const struct model_config *c, char *base)
{
    size_t n = (size_t)p->max_rows, hidden = round_up(n * (size_t)c->hidden_size * sizeof(float)), at = 0;
    p->rows = (struct row **)(base + at);
    at += round_up(n * sizeof *p->rows);
    p->normed = (float *)(base + at);
    at += hidden;
    p->normed_q = base + at;
    at += round_up(quantized_rows_bytes(p->max_rows, c->hidden_size));
    p->out = (float *)(base + at);
    at += hidden;
    return at + routing_place(&p->routing, c, p->max_rows, base ? base + at : NULL);
}

size_t layer_pass_bytes(const struct model_config *config, int max_rows)
{
    struct layer_pass p = {.max_rows = max_rows};
    return place(&p, config, NULL);
}

enum status layer_pass_init(struct layer_pass *p, const struct model_config *config, int max_rows, struct error *err)
{
    CHECK(max_rows > 0);
    *p = (struct layer_pass){.max_rows = max_rows};
    size_t bytes = place(p, config, NULL);
    p->memory = aligned_alloc(64, round_up(bytes));
    if (!p->memory)
        return error_set(err, STATUS_NO_MEMORY, "cannot allocate %zu bytes for prefill of %d rows at once", bytes, max_rows);
    place(p, config, p->memory);
    return STATUS_OK;
}

void layer_pass_release(struct layer_pass *p)
{
    free(p->memory);
    *p = (struct layer_pass){0};
}

void layer_pass_begin(struct layer_pass *p, int layer, struct row **rows, int n_rows)
{
    CHECK(!p->n_rows && n_rows >= 1 && n_rows <= p->max_rows && !rows[0]->only_cache);
    memcpy(p->rows, rows, (size_t)n_rows * sizeof *rows);
    p->layer = layer;
    p->n_rows = n_rows;
    p->attended = p->left = p->is_grouped = 0;
}

void layer_pass_forget(struct layer_pass *p, const struct row *row)
{
    int alive = 0;
    for (int i = 0; i < p->n_rows; i++) {
        if (p->rows[i] == row)
            p->rows[i] = NULL;
        alive += p->rows[i] != NULL;
    }
    if (!alive)
        p->n_rows = 0;
}

static int is_late(uint64_t until_ns)
{
    return until_ns && clock_now_ns(clock_monotonic()) >= until_ns;
}

/* The rows of [begin, end) that are still alive, closed up to the front of the block; the forgotten ones go behind them, where nobody looks
 * at their numbers again. Returns how many are alive. */
static int close_up(struct layer_pass *p, int begin, int end)
{
    int alive = begin;
    for (int i = begin; i < end; i++)
        if (p->rows[i])
            p->rows[alive++] = p->rows[i];
    for (int i = alive; i < end; i++)
        p->rows[i] = NULL;
    return alive - begin;
}

/* A block of at most work->max_rows rows through attention, and in sparse layers through the router. */
static void attend(const struct layer_context *ctx, struct layer_pass *p)
{
    size_t hidden = (size_t)ctx->config->hidden_size;
    int first = p->attended, end = first + ctx->work->max_rows < p->n_rows ? first + ctx->work->max_rows : p->n_rows;
    int alive = close_up(p, first, end);
    p->attended = end;
    memset(p->normed + (size_t)first * hidden, 0, (size_t)(end - first) * hidden * sizeof(float));
    memset(p->routing.chosen + first * ctx->config->top_k, 0, (size_t)((end - first) * ctx->config->top_k) * sizeof(int));
    memset(p->routing.weight + first * ctx->config->top_k, 0, (size_t)((end - first) * ctx->config->top_k) * sizeof(float));
    if (!alive)
        return;
    layer_attention(ctx, p->layer, p->rows + first, alive);
    struct activations normed = layer_norm_rows(ctx, p->rows + first, alive, ctx->weights->layers[p->layer].post_attention_norm);
    memcpy(p->normed + (size_t)first * hidden, normed.x, (size_t)alive * hidden * sizeof(float));
    moe_route(ctx, p->layer, p->rows + first, alive, &normed, &p->routing, first);
    for (int i = first + alive; i < end; i++) /* any choice will do that brings no new expert in */
        memcpy(p->routing.chosen + i * ctx->config->top_k, p->routing.chosen + first * ctx->config->top_k,
               (size_t)ctx->config->top_k * sizeof(int));
}

/* A block of rows gets what the experts gave and leaves the layer. */
static void leave(const struct layer_context *ctx, struct layer_pass *p)
{
    size_t hidden = (size_t)ctx->config->hidden_size;
    int first = p->left, n = p->n_rows - first < ctx->work->max_rows ? p->n_rows - first : ctx->work->max_rows;
    float *out = p->out + (size_t)first * hidden;
    struct activations normed = activations_of(p->normed + (size_t)first * hidden, hidden, n, (int)hidden, ctx->work->normed_q);
    moe_shared(ctx, p->layer, &normed, ctx->work->shared_out);
    moe_add_shared(ctx, n, out, ctx->work->shared_out);
    for (int i = 0; i < n; i++)
        if (p->rows[first + i])
            layer_leave(ctx, p->layer, p->rows[first + i], out + (size_t)i * hidden);
    p->left = first + n;
}

/* Layers without routed experts need no union: blocks go through one after the other. */
static enum status run_dense(const struct layer_context *ctx, struct layer_pass *p, uint64_t until_ns, struct error *err)
{
    while (p->left < p->n_rows) {
        int end = p->left + ctx->work->max_rows < p->n_rows ? p->left + ctx->work->max_rows : p->n_rows, alive = close_up(p, p->left, end);
        enum status status = alive ? layer_forward(ctx, p->layer, p->rows + p->left, alive, err) : STATUS_OK;
        if (status)
            return status;
        p->left = end;
        if (is_late(until_ns))
            break;
    }
    return STATUS_OK;
}

static enum status run_sparse(const struct layer_context *ctx, struct layer_pass *p, uint64_t until_ns, struct error *err)
{
    size_t hidden = (size_t)ctx->config->hidden_size;
    while (p->attended < p->n_rows) {
        attend(ctx, p);
        if (is_late(until_ns))
            return STATUS_OK;
    }
    if (!p->is_grouped) {
        p->set = (struct moe_set){.layer = p->layer,
                                  .n_rows = p->n_rows,
                                  .normed = activations_of(p->normed, hidden, p->n_rows, (int)hidden, p->normed_q),
                                  .routing = &p->routing,
                                  .out = p->out};
        moe_set_begin(ctx, &p->set);
        p->is_grouped = 1;
    }
    enum status status = moe_set_run(ctx, &p->set, until_ns, err);
    while (!status && p->set.next == p->set.n_list && p->left < p->n_rows) {
        leave(ctx, p);
        if (is_late(until_ns))
            break;
    }
    return status;
}

enum status layer_pass_run(const struct layer_context *ctx, struct layer_pass *p, uint64_t until_ns, int *is_done, struct error *err)
{
    CHECK(p->n_rows);
    enum status status = (ctx->config->is_sparse[p->layer] ? run_sparse : run_dense)(ctx, p, until_ns, err);
    *is_done = status || p->left == p->n_rows;
    if (*is_done)
        p->n_rows = 0;
    return status ? error_wrap(err, "layer %d", p->layer) : STATUS_OK;
}
