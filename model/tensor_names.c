#include "model/tensor_names.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/check.h"

struct list {
    struct tensor_spec *specs;
    int n;
    int layer; /* -1: names are complete */
};

/* One tensor that is stored as the checkpoint has it; source_rows 0 makes it a vector. */
static struct tensor_spec *add(struct list *list, const char *name, const char *source, int rows, int cols, enum tensor_class class)
{
    CHECK(list->n < PART_TENSORS_MAX);
    struct tensor_spec *spec = &list->specs[list->n++];
    *spec = (struct tensor_spec){.rows = rows ? rows : 1, .cols = cols, .source_rows = rows, .source_cols = cols, .class = class};
    snprintf(spec->name, sizeof spec->name, "%s", name);
    if (list->layer < 0)
        snprintf(spec->source, sizeof spec->source, "%s", source);
    else
        snprintf(spec->source, sizeof spec->source, "model.layers.%d.%s", list->layer, source);
    return spec;
}

static void add_attention(struct list *list, const struct model_config *c)
{
    int kv_b_rows = c->n_heads * (c->nope_dim + c->v_dim);
    add(list, "q_a_proj", "self_attn.q_a_proj.weight", c->q_lora_rank, c->hidden_size, TENSOR_DENSE);
    add(list, "q_a_norm", "self_attn.q_a_layernorm.weight", 0, c->q_lora_rank, TENSOR_FLOAT);
    add(list, "q_b_proj", "self_attn.q_b_proj.weight", c->n_heads * config_qk_dim(c), c->q_lora_rank, TENSOR_DENSE);
    add(list, "kv_a_proj", "self_attn.kv_a_proj_with_mqa.weight", c->kv_lora_rank + c->rope_dim, c->hidden_size, TENSOR_DENSE);
    add(list, "kv_a_norm", "self_attn.kv_a_layernorm.weight", 0, c->kv_lora_rank, TENSOR_FLOAT);
    struct tensor_spec *keys = add(list, "kv_b_keys", "self_attn.kv_b_proj.weight", kv_b_rows, c->kv_lora_rank, TENSOR_DENSE);
    keys->rows = c->n_heads * c->kv_lora_rank;
    keys->cols = c->nope_dim;
    keys->transform = TRANSFORM_KV_B_KEYS;
    struct tensor_spec *values = add(list, "kv_b_values", "self_attn.kv_b_proj.weight", kv_b_rows, c->kv_lora_rank, TENSOR_DENSE);
    values->rows = c->n_heads * c->v_dim;
    values->transform = TRANSFORM_KV_B_VALUES;
    add(list, "o_proj", "self_attn.o_proj.weight", c->hidden_size, c->n_heads * c->v_dim, TENSOR_DENSE);
}

static void add_indexer(struct list *list, const struct model_config *c)
{
    add(list, "indexer.wq_b", "self_attn.indexer.wq_b.weight", c->index_heads * c->index_dim, c->q_lora_rank, TENSOR_DENSE);
    add(list, "indexer.wk", "self_attn.indexer.wk.weight", c->index_dim, c->hidden_size, TENSOR_DENSE);
    add(list, "indexer.k_norm", "self_attn.indexer.k_norm.weight", 0, c->index_dim, TENSOR_FLOAT);
    add(list, "indexer.k_norm_bias", "self_attn.indexer.k_norm.bias", 0, c->index_dim, TENSOR_FLOAT);
    add(list, "indexer.weights_proj", "self_attn.indexer.weights_proj.weight", c->index_heads, c->hidden_size, TENSOR_FLOAT);
}

static void add_mlp(struct list *list, const struct model_config *c, int layer)
{
    if (!c->is_sparse[layer]) {
        add(list, "mlp.gate_proj", "mlp.gate_proj.weight", c->intermediate_size, c->hidden_size, TENSOR_DENSE);
        add(list, "mlp.up_proj", "mlp.up_proj.weight", c->intermediate_size, c->hidden_size, TENSOR_DENSE);
        add(list, "mlp.down_proj", "mlp.down_proj.weight", c->hidden_size, c->intermediate_size, TENSOR_DENSE);
        return;
    }
    int shared = c->moe_intermediate_size * c->n_shared_experts;
    add(list, "router", "mlp.gate.weight", c->n_experts, c->hidden_size, TENSOR_FLOAT);
    add(list, "router_bias", "mlp.gate.e_score_correction_bias", 0, c->n_experts, TENSOR_FLOAT);
    if (shared) {
        add(list, "shared.gate_proj", "mlp.shared_experts.gate_proj.weight", shared, c->hidden_size, TENSOR_DENSE);
        add(list, "shared.up_proj", "mlp.shared_experts.up_proj.weight", shared, c->hidden_size, TENSOR_DENSE);
        add(list, "shared.down_proj", "mlp.shared_experts.down_proj.weight", c->hidden_size, shared, TENSOR_DENSE);
    }
}

static void add_mtp(struct list *list, const struct model_config *c)
{
    add(list, "enorm", "enorm.weight", 0, c->hidden_size, TENSOR_FLOAT);
    add(list, "hnorm", "hnorm.weight", 0, c->hidden_size, TENSOR_FLOAT);
    add(list, "eh_proj", "eh_proj.weight", c->hidden_size, 2 * c->hidden_size, TENSOR_DENSE);
    add(list, "shared_head_norm", "shared_head.norm.weight", 0, c->hidden_size, TENSOR_FLOAT);
}

static void add_expert(struct list *list, const struct model_config *c, int expert)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    for (int i = 0; i < 3; i++) {
        char source[80];
        snprintf(source, sizeof source, "mlp.experts.%d.%s.weight", expert, names[i]);
        int down = i == 2;
        add(list, names[i], source, down ? c->hidden_size : c->moe_intermediate_size, down ? c->moe_intermediate_size : c->hidden_size, TENSOR_EXPERT);
    }
}

int part_tensor_specs(const struct model_config *c, enum part_kind part, int layer, int expert, struct tensor_spec *specs)
{
    struct list list = {specs, 0, part == PART_DENSE || part == PART_EXPERTS ? layer : -1};
    switch (part) {
    case PART_EMBEDDING:
        add(&list, "embed_tokens", "model.embed_tokens.weight", c->vocab_size, c->hidden_size, TENSOR_DENSE);
        break;
    case PART_HEAD:
        add(&list, "norm", "model.norm.weight", 0, c->hidden_size, TENSOR_FLOAT);
        add(&list, "lm_head", "lm_head.weight", c->vocab_size, c->hidden_size, TENSOR_DENSE);
        break;
    case PART_EXPERTS:
        CHECK(c->is_sparse[layer] && expert >= 0 && expert < c->n_experts);
        add_expert(&list, c, expert);
        break;
    case PART_DENSE:
        CHECK(layer >= 0 && layer < config_layers_with_mtp(c));
        if (layer >= c->n_layers)
            add_mtp(&list, c);
        add(&list, "input_norm", "input_layernorm.weight", 0, c->hidden_size, TENSOR_FLOAT);
        add_attention(&list, c);
        if (c->has_indexer[layer])
            add_indexer(&list, c);
        add(&list, "post_attention_norm", "post_attention_layernorm.weight", 0, c->hidden_size, TENSOR_FLOAT);
        add_mlp(&list, c, layer);
        break;
    default:
        CHECK(0);
    }
    return list.n;
}

void fused_expert_names(int layer, char gate_up[112], char down[112])
{
    snprintf(gate_up, 112, "model.layers.%d.mlp.experts.gate_up_proj", layer);
    snprintf(down, 112, "model.layers.%d.mlp.experts.down_proj", layer);
}
