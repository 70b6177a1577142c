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

/* Drops forgotten rows from `begin` on, of which nothing has been computed yet. Returns how many rows the block at begin has; 0: none is
 * left. */
static int next_block(const struct layer_context *ctx, struct layer_pass *p, int begin)
{
    int end = begin;
    for (int i = begin; i < p->n_rows; i++)
        if (p->rows[i])
            p->rows[end++] = p->rows[i];
    p->n_rows = end;
    return end - begin < ctx->work->max_rows ? end - begin : ctx->work->max_rows;
}

/* A block of at most work->max_rows rows through attention and router. */
static void attend(const struct layer_context *ctx, struct layer_pass *p)
{
    size_t hidden = (size_t)ctx->config->hidden_size;
    int first = p->attended, n = next_block(ctx, p, first);
    if (!n)
        return;
    layer_attention(ctx, p->layer, p->rows + first, n);
    struct activations normed = layer_norm_rows(ctx, p->rows + first, n, ctx->weights->layers[p->layer].post_attention_norm);
    memcpy(p->normed + (size_t)first * hidden, normed.x, (size_t)n * hidden * sizeof(float));
    moe_route(ctx, p->layer, p->rows + first, n, &normed, &p->routing, first);
    p->attended = first + n;
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
        int n = next_block(ctx, p, p->left);
        enum status status = n ? layer_forward(ctx, p->layer, p->rows + p->left, n, err) : STATUS_OK;
        if (status)
            return status;
        p->left += n;
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
