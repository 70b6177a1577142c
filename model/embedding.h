/* Token ids to residuals: x = E[id], not scaled. */
#ifndef HEARTH_MODEL_EMBEDDING_H
#define HEARTH_MODEL_EMBEDDING_H

#include "model/weights.h"

/* out [hidden_size]. token must lie in [0, vocab_size). */
void embedding_row(const struct model_weights *weights, int token, float *out);

#endif
