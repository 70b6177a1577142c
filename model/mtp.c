#include "model/mtp.h"

#include <string.h>

#include "common/check.h"
#include "model/embedding.h"
#include "model/linear.h"

enum status mtp_enter(const struct layer_context *ctx, struct row **rows, int n_rows, const int *tokens, const float *hidden,
                      struct error *err)
{
    const struct model_config *c = ctx->config;
    struct workspace *work = ctx->work;
    CHECK(c->n_mtp_layers == 1 && n_rows <= work->max_rows);
    const struct layer_weights *w = &ctx->weights->layers[c->n_layers];
    size_t size = (size_t)c->hidden_size;
    for (int i = 0; i < n_rows; i++) {
        float *pair = work->mtp_pair + (size_t)i * 2 * size;
        enum status status = embedding_row(&ctx->weights->embedding, tokens[i], pair, err);
        if (status)
            return status;
        ctx->kernels->rms_norm(pair, pair, w->enorm, c->hidden_size, c->rms_norm_eps);
        ctx->kernels->rms_norm(pair + size, hidden + (size_t)i * size, w->hnorm, c->hidden_size, c->rms_norm_eps);
    }
    struct activations x = activations_of(work->mtp_pair, 2 * size, n_rows, 2 * c->hidden_size, work->mtp_pair_q);
    linear_run(ctx->kernels, &(struct linear){&w->eh_proj, &x, work->out, size}, 1);
    for (int i = 0; i < n_rows; i++) {
        memcpy(rows[i]->residual, work->out + (size_t)i * size, size * sizeof(float));
        rows[i]->next_layer = c->n_layers;
    }
    return STATUS_OK;
}

void mtp_norm(const struct layer_context *ctx, struct row **rows, int n_rows, float *g)
{
    const struct model_config *c = ctx->config;
    const float *weight = ctx->weights->layers[c->n_layers].shared_head_norm;
    for (int i = 0; i < n_rows; i++) {
        CHECK(rows[i]->next_layer == c->n_layers + 1);
        ctx->kernels->rms_norm(g + (size_t)i * (size_t)c->hidden_size, rows[i]->residual, weight, c->hidden_size, c->rms_norm_eps);
    }
}

void mtp_reuse_selection(struct row *row, const struct selection *first, int first_position, int position)
{
    CHECK(position > first_position && position - first_position <= DRAFT_DEPTH_MAX);
    row->selection_is_given = 1;
    row->selection.is_all = first->is_all;
    row->selection.n = first->n + (position - first_position);
    if (first->is_all)
        return;
    memcpy(row->selection.positions, first->positions, (size_t)first->n * sizeof *first->positions);
    for (int i = 0; i < position - first_position; i++)
        row->selection.positions[first->n + i] = first_position + 1 + i;
}
