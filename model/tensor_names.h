/* Which tensors a layer has, what they are called here and in a vendor checkpoint, and how sensitive they are. One table for loader and converter. */
#ifndef HEARTH_MODEL_TENSOR_NAMES_H
#define HEARTH_MODEL_TENSOR_NAMES_H

#include "model/config.h"

/* A model is stored and loaded in parts (docs/FORMATS.md, "Parts"). */
enum part_kind {
    PART_EMBEDDING, /* model.embed_tokens */
    PART_DENSE,     /* everything of a layer but its routed experts */
    PART_EXPERTS,   /* routed experts of a sparse layer, one record each */
    PART_HEAD,      /* model.norm and lm_head */
    N_PART_KINDS,
};

/* Decides the stored precision (docs/ARCHITECTURE.md, section 7). */
enum tensor_class {
    TENSOR_FLOAT,  /* always f32: router, norms, biases, indexer.weights_proj */
    TENSOR_DENSE,  /* every token uses it: int8 in int8 and int4 packs */
    TENSOR_EXPERT, /* routed expert: int8 in int8 packs, int4 in int4 packs */
};

/* kv_b_proj holds per head nope_dim rows K_h [nope][kv_lora] and v_dim rows V_h [v][kv_lora]; absorbed attention wants K_h transposed. */
enum tensor_transform {
    TRANSFORM_NONE,
    TRANSFORM_KV_B_KEYS,   /* -> [n_heads * kv_lora_rank][nope_dim]: row h * kv_lora + i is column i of K_h */
    TRANSFORM_KV_B_VALUES, /* -> [n_heads * v_dim][kv_lora_rank]: the rows of V_h */
};

struct tensor_spec {
    char name[48];           /* ours, unique in its part: "q_a_proj", "mlp.gate_proj", "router", ... */
    char source[112];        /* vendor name, complete: "model.layers.3.self_attn.q_a_proj.weight" */
    int rows, cols;          /* as we store it, after the transform; a vector is one row */
    int source_rows, source_cols; /* as the checkpoint stores it; source_rows 0 for a one-dimensional tensor of source_cols */
    enum tensor_class class;
    enum tensor_transform transform;
};

enum { PART_TENSORS_MAX = 32 };

/* Fills specs [PART_TENSORS_MAX] in storage order with the tensors of a part; returns how many. layer is ignored for embedding and head.
 * PART_EXPERTS: the three matrices of expert `expert` (gate, up, down), per-expert vendor names. */
int part_tensor_specs(const struct model_config *config, enum part_kind part, int layer, int expert, struct tensor_spec *specs);

/* Fused expert tensors of a raw state dict: [n_experts][2 * moe][H] gate rows then up rows, and [n_experts][H][moe]. */
void fused_expert_names(int layer, char gate_up[112], char down[112]);

#endif
