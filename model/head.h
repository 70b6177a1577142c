/* The end of the main model: h = rms(residual; model.norm), logits = lm_head h. h also feeds the MTP layer. */
#ifndef HEARTH_MODEL_HEAD_H
#define HEARTH_MODEL_HEAD_H

#include "model/layer.h"

/* hidden [n_rows][H]: h of every row. rows must have passed the last layer. */
void head_norm(const struct layer_context *ctx, struct row **rows, int n_rows, float *hidden);

/* logits [n_rows][vocab] of hidden rows [n_rows][H] (n_rows <= work->max_rows). */
void head_logits(const struct layer_context *ctx, const float *hidden, int n_rows, float *logits);

/* log(sum(exp(logits))), in double, ascending ids. */
double log_sum_exp(const float *logits, int n);

/* The id of the largest of logits [n]; ties to the lower id. n >= 1. */
int largest_logit(const float *logits, int n);

#endif
