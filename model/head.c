#include "model/head.h"

#include "common/check.h"
#include "kernels/double_math.h"
#include "model/linear.h"

void head_norm(const struct layer_context *ctx, struct row **rows, int n_rows, float *hidden)
{
    const struct model_config *c = ctx->config;
    for (int i = 0; i < n_rows; i++) {
        CHECK(rows[i]->next_layer == c->n_layers);
        ctx->kernels->rms_norm(hidden + (size_t)i * (size_t)c->hidden_size, rows[i]->residual, ctx->weights->norm, c->hidden_size, c->rms_norm_eps);
    }
}

void head_logits(const struct layer_context *ctx, const float *hidden, int n_rows, float *logits)
{
    const struct model_config *c = ctx->config;
    CHECK(n_rows <= ctx->work->max_rows && ctx->weights->lm_head.rows == c->vocab_size);
    struct activations x = activations_of(hidden, (size_t)c->hidden_size, n_rows, c->hidden_size, ctx->work->head_q);
    linear_run(ctx->kernels, &(struct linear){&ctx->weights->lm_head, &x, logits, (size_t)c->vocab_size}, 1);
}

double log_sum_exp(const float *logits, int n)
{
    double largest = (double)logits[largest_logit(logits, n)], sum = 0;
    for (int i = 0; i < n; i++)
        sum += f64_exp((double)logits[i] - largest);
    return largest + f64_log(sum);
}

int largest_logit(const float *logits, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}
