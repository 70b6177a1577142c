/* down(silu(gate x) * (up x)): the dense MLP, the shared expert and every routed expert (docs/MODEL.md, "MLP and experts"; spec section 4). */
#ifndef HEARTH_MODEL_SWIGLU_H
#define HEARTH_MODEL_SWIGLU_H

#include "model/layer.h"
#include "model/linear.h"

/* x: rows of width gate->cols; out [x->n][down->rows], out_stride apart. Uses work->gate, up, gate_q. */
void swiglu_forward(const struct layer_context *ctx, const struct matrix *gate, const struct matrix *up, const struct matrix *down,
                    struct activations *x, float *out, size_t out_stride);

#endif
