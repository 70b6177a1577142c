#include "model/layer.h"

#include <math.h>

#include "common/check.h"
#include "model/attention_mla.h"
#include "model/moe.h"
#include "model/swiglu.h"

/* Normed rows into work->normed, as activations that the next matrices share. */
static struct activations norm_rows(const struct layer_context *ctx, struct row **rows, int n_rows, const float *weight)
{
    struct workspace *work = ctx->work;
    int hidden = ctx->config->hidden_size;
    for (int i = 0; i < n_rows; i++)
        ctx->kernels->rms_norm(work->normed + (size_t)i * (size_t)hidden, rows[i]->residual, weight, hidden, ctx->config->rms_norm_eps);
    return activations_of(work->normed, (size_t)hidden, n_rows, hidden, work->normed_q);
}

static void add_to_residuals(const struct layer_context *ctx, struct row **rows, int n_rows)
{
    int hidden = ctx->config->hidden_size;
    for (int i = 0; i < n_rows; i++) {
        const float *out = ctx->work->out + (size_t)i * (size_t)hidden;
        for (int j = 0; j < hidden; j++)
            rows[i]->residual[j] += out[j];
    }
}

/* x * 0 is NaN for NaN and infinity and 0 for the rest. */
static int all_finite(const float *x, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * 0.0f;
    return sum == 0.0f;
}

static void leave_layer(const struct layer_context *ctx, int layer, struct row **rows, int n_rows)
{
    const struct layer_observer *observer = ctx->observer;
    for (int i = 0; i < n_rows; i++) {
        struct row *row = rows[i];
        row->next_layer = layer + 1;
        if (row->only_cache)
            continue;
        row->is_finite = all_finite(row->residual, ctx->config->hidden_size);
        if (observer && observer->on_selection && ctx->config->has_indexer[layer])
            observer->on_selection(observer->ctx, layer, row);
        if (observer && observer->on_residual)
            observer->on_residual(observer->ctx, layer, row);
    }
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

enum status layer_forward(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct error *err)
{
    check_rows(ctx, layer, rows, n_rows);
    const struct layer_weights *w = &ctx->weights->layers[layer];
    struct workspace *work = ctx->work;

    struct activations normed = norm_rows(ctx, rows, n_rows, w->input_norm);
    attention_forward(ctx, layer, rows, n_rows, &normed);
    if (rows[0]->only_cache) {
        leave_layer(ctx, layer, rows, n_rows);
        return STATUS_OK;
    }
    add_to_residuals(ctx, rows, n_rows);

    normed = norm_rows(ctx, rows, n_rows, w->post_attention_norm);
    if (ctx->config->is_sparse[layer]) {
        enum status status = moe_forward(ctx, layer, rows, n_rows, &normed, err);
        if (status)
            return error_wrap(err, "layer %d", layer);
    } else {
        swiglu_forward(ctx, &w->mlp.gate, &w->mlp.up, &w->mlp.down, &normed, work->out, (size_t)ctx->config->hidden_size);
    }
    add_to_residuals(ctx, rows, n_rows);
    leave_layer(ctx, layer, rows, n_rows);
    return STATUS_OK;
}
