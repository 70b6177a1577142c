/* config.json of a glm_moe_dsa checkpoint, validated (docs/MODEL.md, "Configuration"; spec section 1). Sizes only: no weights, no files kept open. */
#ifndef HEARTH_MODEL_CONFIG_H
#define HEARTH_MODEL_CONFIG_H

#include <stddef.h>

#include "common/error.h"

/* Limits that every reader may rely on: nothing derived from a config overflows an int, and tables fit on the heap. */
enum { LAYERS_MAX = 512, EXPERTS_MAX = 4096, TOP_K_MAX = 64, EOS_IDS_MAX = 16, FILE_NAME_MAX_BYTES = 256 };

struct model_config {
    const struct model_family *family;

    int vocab_size;        /* rows of embedding and head, padding included */
    int hidden_size;       /* H */
    int n_layers;          /* decoder layers, the MTP layer not counted */
    int n_mtp_layers;      /* 0 or 1; the MTP layer is layer n_layers */
    int n_heads;
    int q_lora_rank, kv_lora_rank;
    int nope_dim, rope_dim, v_dim; /* per head: qk_nope_head_dim, qk_rope_head_dim, v_head_dim */
    double rope_theta;
    float rms_norm_eps;

    int intermediate_size; /* dense MLP */
    int moe_intermediate_size;
    int n_experts, top_k, n_shared_experts;
    int n_group, topk_group;
    int norm_topk_prob;
    float routed_scaling_factor;

    int index_heads, index_dim, index_topk;
    int index_share_for_mtp;

    int max_positions;
    int eos_ids[EOS_IDS_MAX], n_eos_ids;

    unsigned char is_sparse[LAYERS_MAX + 1];    /* MoE layer; the MTP layer is one */
    unsigned char has_indexer[LAYERS_MAX + 1];  /* runs its own indexer ("full"); the MTP layer does */
};

/* Reads and validates DIR/config.json. A missing key gets the default of spec section 1.3; an inconsistent value is refused by name. */
enum status model_config_read(struct model_config *config, const char *dir, struct error *err);

/* The same from text, `file` only names it in errors. */
enum status model_config_parse(struct model_config *config, const char *text, size_t length, const char *file, struct error *err);

/* Layers that have weights: decoder layers and the MTP layer. */
static inline int config_layers_with_mtp(const struct model_config *c)
{
    return c->n_layers + c->n_mtp_layers;
}

/* Width of one head's query and key; softmax scale is its inverse square root. */
static inline int config_qk_dim(const struct model_config *c)
{
    return c->nope_dim + c->rope_dim;
}

#endif
