/* The mixture of experts (docs/MODEL.md, "MLP and experts"; spec section 4): router, routed experts, shared expert. */
#ifndef HEARTH_MODEL_MOE_H
#define HEARTH_MODEL_MOE_H

#include "model/layer.h"
#include "model/linear.h"

/* Chooses experts from router logits [n_experts]: ids [top_k] ascending, weights [top_k] in the same order. Pure. */
void moe_choose(const struct model_config *config, const float *logits, const float *bias, int *ids, float *weights);

/* What the MoE adds to the residual, into work->out [n_rows][H]. */
enum status moe_forward(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct activations *normed, struct error *err);

/* --- the steps, for a set of rows that is larger than the scratch or may be interrupted (model/layer_pass.h) --- */

/* Router and choice of n_rows rows, which are rows first, first + 1, ... of the set; normed [n_rows][H]. */
void moe_route(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct activations *normed, struct routing *routing, int first);

/* The shared expert of at most work->max_rows rows, and adding it to what the routed ones gave. */
void moe_shared(const struct layer_context *ctx, int layer, struct activations *normed, float *out);
void moe_add_shared(const struct layer_context *ctx, int n_rows, float *out, const float *shared);

/* Routed experts one by one in ascending id, with one partial sum a row: each expert is fetched once for the whole set. */
struct moe_set {
    int layer, n_rows;
    struct activations normed; /* [n_rows][H] */
    struct routing *routing;   /* routed */
    float *out;                /* [n_rows][H] */
    int n_list, next;          /* routing->list[next .. n_list) are still to come */
    int was_requested;         /* has been counted */
};
void moe_set_begin(const struct layer_context *ctx, struct moe_set *set);
/* Until all are done (next == n_list) or, between two experts, until_ns (monotonic; 0: no limit) has passed. Between two calls nothing is requested. */
enum status moe_set_run(const struct layer_context *ctx, struct moe_set *set, uint64_t until_ns, struct error *err);

#endif
