/* The DSA indexer (docs/MODEL.md, "Indexer"; spec section 3.6): which positions a row attends to. */
#ifndef HEARTH_MODEL_INDEXER_H
#define HEARTH_MODEL_INDEXER_H

#include "model/layer.h"
#include "model/linear.h"

/* Stores the index key of every row (from position 0 on, also while everything is visible) and chooses each row's selection, unless it is given or the row
 * only fills caches. normed: the layer's normed input; low: rms(q_a_proj x), shared with attention, undefined when all
 * rows only fill caches; the rope tables of the rows are in the workspace. */
void indexer_forward(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct activations *normed, struct activations *low);

/* The k best of scores [n], by score descending, then position ascending (-0 equals +0, NaN is worst), as ascending positions. k <= n. Linear time. */
void select_top_k(const float *scores, int n, int k, int *positions);

#endif
