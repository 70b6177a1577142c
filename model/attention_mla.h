/* Multi-head latent attention in its absorbed form (docs/MODEL.md, "Attention"; spec sections 3.2 to 3.5), the only form at every batch size. */
#ifndef HEARTH_MODEL_ATTENTION_MLA_H
#define HEARTH_MODEL_ATTENTION_MLA_H

#include "model/layer.h"
#include "model/linear.h"

/* Heads that share one pass over the cached latents: enough to use a latent row several times while it is in L1, few enough to split 64 heads over threads. */
enum { HEADS_AT_ONCE = 8 };

/* normed: the layer's normed input of rows [n_rows]. Appends latent (and index key) of every row to its sequence, chooses positions where the layer runs
 * an indexer, and writes what attention adds to the residual into work->out [n_rows][H]; rows with only_cache are left out of the latter (their lines
 * in work->out are undefined). */
void attention_forward(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct activations *normed);

#endif
