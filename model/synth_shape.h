/* The sizes of a made-up model, and the small files that say them: config.json, tokenizer.json, generation_config.json. The texts depend on
 * the shape alone, byte by byte, on every machine. */
#ifndef HEARTH_MODEL_SYNTH_SHAPE_H
#define HEARTH_MODEL_SYNTH_SHAPE_H

#include <stdint.h>

struct synth_shape {
    const char *name;
    int vocab_size, n_pad_rows; /* rows of embedding and head; the last n_pad_rows of them belong to no token */
    int hidden_size, n_layers, n_dense_layers, n_mtp_layers;
    int n_heads, q_lora_rank, kv_lora_rank, nope_dim, rope_dim, v_dim;
    int intermediate_size, moe_intermediate_size, n_experts, top_k;
    int index_heads, index_dim, index_topk, index_frequency, index_offset; /* IndexShare, spec 1.3 */
    int max_positions;
    int64_t rope_theta;
    double skew; /* of the routing, see model/synth.h */
};

#define SYNTH_SHAPES "glm-5.2|bench|kindling"

/* One of SYNTH_SHAPES; NULL: no such name. */
const struct synth_shape *synth_shape_find(const char *name);

/* Rows of embedding and head that the tokenizer needs at least: every byte and the family's special tokens. */
int synth_shape_vocab_min(const struct synth_shape *shape);

/* Malloc'ed. The first is not validated (model_config_parse does that); the others need vocab_size >= synth_shape_vocab_min. */
char *synth_config_text(const struct synth_shape *shape);
char *synth_tokenizer_text(const struct synth_shape *shape);
char *synth_generation_text(const struct synth_shape *shape);

#endif
