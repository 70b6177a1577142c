/* One decoder layer for a set of rows: the unit of work (docs/MODEL.md, "Layer"). */
#ifndef HEARTH_MODEL_LAYER_H
#define HEARTH_MODEL_LAYER_H

#include "common/error.h"
#include "kernels/kernels.h"
#include "model/expert_source.h"
#include "model/linear.h"
#include "model/row.h"
#include "model/weights.h"
#include "model/workspace.h"

/* Watches what a layer decides: for the comparison with reference outputs and for routing traces. Not a seam: nothing behind it changes a result. */
struct layer_observer {
    void *ctx;
    void (*on_selection)(void *ctx, int layer, const struct row *row);
    void (*on_routing)(void *ctx, int layer, const struct row *row, const int *experts, const float *weights, int n);
    void (*on_residual)(void *ctx, int layer, const struct row *row); /* after the layer */
};

/* What every layer needs; borrowed. */
struct layer_context {
    const struct model_config *config;
    const struct kernels *kernels;
    const struct model_weights *weights;
    struct expert_source *experts;
    struct workspace *work;
    const struct layer_observer *observer; /* NULL: nobody watches; any of its members may be NULL */
};

/* Takes rows [n_rows] through layer `layer` and sets their next_layer. Rows of one sequence stand in ascending position, all lower rows of the sequence have
 * left this layer, and the caches of the positions are writable (sequence_state_prepare). A row's result depends on that row and its sequence's lower
 * rows alone: not on the other rows of the set, threads or instruction set. A row whose residual stops being finite gets is_finite = 0; the
 * others go on. Fails only when experts cannot be had. */
enum status layer_forward(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct error *err);

/* --- its steps, for model/layer_pass.c --- */

/* Attention, added to the residuals. */
void layer_attention(const struct layer_context *ctx, int layer, struct row **rows, int n_rows);
/* Normed residuals into work->normed, as activations that the next matrices share. */
struct activations layer_norm_rows(const struct layer_context *ctx, struct row **rows, int n_rows, const float *weight);
/* Adds what the MLP gave ([H]) to the residual; the row leaves the layer. */
void layer_leave(const struct layer_context *ctx, int layer, struct row *row, const float *out);

#endif
