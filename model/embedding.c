#include "model/embedding.h"

#include "common/check.h"

void embedding_row(const struct model_weights *weights, int token, float *out)
{
    CHECK(weights->embed_tokens.rows && token >= 0 && token < weights->embed_tokens.rows);
    matrix_row_to_f32(&weights->embed_tokens, token, out);
}
