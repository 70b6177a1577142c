/* The weights of a range of layers, as views into loaded parts. */
#ifndef HEARTH_MODEL_WEIGHTS_H
#define HEARTH_MODEL_WEIGHTS_H

#include "model/embedding.h"
#include "model/weights_source.h"

struct mlp_weights {
    struct matrix gate, up, down;
};

struct indexer_weights {
    struct matrix wq_b, wk, weights_proj;
    const float *k_norm, *k_norm_bias;
};

struct layer_weights {
    const float *input_norm, *post_attention_norm;
    struct matrix q_a_proj, q_b_proj, kv_a_proj, kv_b_keys, kv_b_values, o_proj;
    const float *q_a_norm, *kv_a_norm;
    struct indexer_weights indexer; /* where the layer has one */
    struct mlp_weights mlp;         /* dense layers: the MLP; sparse layers: the shared expert (rows 0: none) */
    struct matrix router;           /* sparse layers */
    const float *router_bias;
    /* MTP layer only */
    const float *enorm, *hnorm, *shared_head_norm;
    struct matrix eh_proj;
};

struct model_weights {
    const struct model_config *config;
    int layer_begin, layer_end;               /* layers loaded; layer n_layers is the MTP layer */
    struct layer_weights layers[LAYERS_MAX + 1];
    struct weights_part dense[LAYERS_MAX + 1]; /* what `layers` points into */
    struct embedding embedding; /* table.rows 0 when not loaded */
    struct weights_part head;
    const float *norm;          /* NULL when not loaded */
    struct matrix lm_head;
};

/* What of the embedding a process wants. */
enum embedding_use { EMBEDDING_NONE, EMBEDDING_IN_RAM, EMBEDDING_IN_FILE };

/* Bytes that loading takes, experts not counted. */
uint64_t model_weights_bytes(const struct weights_source *source, int layer_begin, int layer_end, enum embedding_use embedding, int with_head);

/* Loads and verifies dense parts of [layer_begin, layer_end), and embedding and head where wanted. On failure everything is released. */
enum status model_weights_load(struct model_weights *weights, struct weights_source *source, int layer_begin, int layer_end, enum embedding_use embedding,
                               int with_head, struct error *err);
void model_weights_release(struct model_weights *weights);

#endif
