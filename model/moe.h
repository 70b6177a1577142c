/* The mixture of experts (docs/MODEL.md, "MLP and experts"; spec section 4): router, routed experts, shared expert. */
#ifndef HEARTH_MODEL_MOE_H
#define HEARTH_MODEL_MOE_H

#include "model/layer.h"
#include "model/linear.h"

/* Chooses experts from router logits [n_experts]: ids [top_k] ascending, weights [top_k] in the same order. Pure. */
void moe_choose(const struct model_config *config, const float *logits, const float *bias, int *ids, float *weights);

/* What the MoE adds to the residual, into work->out [n_rows][H]. */
enum status moe_forward(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct activations *normed, struct error *err);

#endif
