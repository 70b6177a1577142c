#include "model/layer.h"

#include <math.h>

#include "common/check.h"
#include "model/attention_mla.h"
#include "model/moe.h"
#include "model/swiglu.h"

struct activations layer_norm_rows(const struct layer_context *ctx, struct row **rows, int n_rows, const float *weight)
{
    struct workspace *work = ctx->work;
    int hidden = ctx->config->hidden_size;
    for (int i = 0; i < n_rows; i++)
        ctx->kernels->rms_norm(work->normed + (size_t)i * (size_t)hidden, rows[i]->residual, weight, hidden, ctx->config->rms_norm_eps);
    return activations_of(work->normed, (size_t)hidden, n_rows, hidden, work->normed_q);
}

static void add_to_residual(const struct layer_context *ctx, struct row *row, const float *out)
{
    for (int j = 0; j < ctx->config->hidden_size; j++)
        row->residual[j] += out[j];
}

/* x * 0 is NaN for NaN and infinity and 0 for the rest. */
static int all_finite(const float *x, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * 0.0f;
    return sum == 0.0f;
}

static void leave_layer(const struct layer_context *ctx, int layer, struct row *row)
{
    const struct layer_observer *observer = ctx->observer;
    row->next_layer = layer + 1;
    if (row->only_cache)
        return;
    row->is_finite = all_finite(row->residual, ctx->config->hidden_size);
    if (observer && observer->on_selection && ctx->config->has_indexer[layer])
        observer->on_selection(observer->ctx, layer, row);
    if (observer && observer->on_residual)
        observer->on_residual(observer->ctx, layer, row);
}

void layer_leave(const struct layer_context *ctx, int layer, struct row *row, const float *out)
{
    add_to_residual(ctx, row, out);
    leave_layer(ctx, layer, row);
}

static void check_rows(const struct layer_context *ctx, int layer, struct row **rows, int n_rows)
{
    CHECK(n_rows > 0 && n_rows <= ctx->work->max_rows);
    CHECK(layer >= ctx->weights->layer_begin && layer < ctx->weights->layer_end);
    for (int i = 0; i < n_rows; i++) {
        CHECK(rows[i]->next_layer == layer && rows[i]->is_finite);
        CHECK(rows[i]->position < ctx->work->max_positions);
        CHECK(ctx->config->has_indexer[layer] || rows[i]->selection.n > 0); /* cuts fall only before layers that run an indexer */
        CHECK(i == 0 || rows[i]->sequence != rows[i - 1]->sequence || rows[i]->position == rows[i - 1]->position + 1);
    }
}

void layer_attention(const struct layer_context *ctx, int layer, struct row **rows, int n_rows)
{
    check_rows(ctx, layer, rows, n_rows);
    struct activations normed = layer_norm_rows(ctx, rows, n_rows, ctx->weights->layers[layer].input_norm);
    attention_forward(ctx, layer, rows, n_rows, &normed);
    for (int i = 0; i < n_rows && !rows[0]->only_cache; i++)
        add_to_residual(ctx, rows[i], ctx->work->out + (size_t)i * (size_t)ctx->config->hidden_size);
}

enum status layer_forward(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct error *err)
{
    const struct layer_weights *w = &ctx->weights->layers[layer];
    struct workspace *work = ctx->work;
    size_t hidden = (size_t)ctx->config->hidden_size;
    layer_attention(ctx, layer, rows, n_rows);
    if (rows[0]->only_cache) {
        for (int i = 0; i < n_rows; i++)
            leave_layer(ctx, layer, rows[i]);
        return STATUS_OK;
    }
    struct activations normed = layer_norm_rows(ctx, rows, n_rows, w->post_attention_norm);
    if (ctx->config->is_sparse[layer]) {
        enum status status = moe_forward(ctx, layer, rows, n_rows, &normed, err);
        if (status)
            return error_wrap(err, "layer %d", layer);
    } else {
        swiglu_forward(ctx, &w->mlp.gate, &w->mlp.up, &w->mlp.down, &normed, work->out, hidden);
    }
    for (int i = 0; i < n_rows; i++)
        layer_leave(ctx, layer, rows[i], work->out + (size_t)i * hidden);
    return STATUS_OK;
}
