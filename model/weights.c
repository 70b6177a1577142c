#include "model/weights.h"

#include <string.h>

#include "common/check.h"

uint64_t model_weights_bytes(const struct weights_source *source, int layer_begin, int layer_end, enum embedding_use embedding, int with_head)
{
    uint64_t bytes = 0;
    for (int layer = layer_begin; layer < layer_end; layer++)
        bytes += weights_source_part_bytes(source, PART_DENSE, layer);
    if (embedding != EMBEDDING_NONE)
        bytes += embedding_bytes(source, embedding == EMBEDDING_IN_FILE);
    if (with_head)
        bytes += weights_source_part_bytes(source, PART_HEAD, 0);
    return bytes;
}

static const float *vector(const struct weights_part *part, const char *name)
{
    const struct matrix *m = weights_part_matrix(part, name);
    CHECK(m->format == FORMAT_F32 && m->rows == 1);
    return m->data;
}

static void bind_indexer(struct indexer_weights *indexer, const struct weights_part *part)
{
    indexer->wq_b = *weights_part_matrix(part, "indexer.wq_b");
    indexer->wk = *weights_part_matrix(part, "indexer.wk");
    indexer->weights_proj = *weights_part_matrix(part, "indexer.weights_proj");
    indexer->k_norm = vector(part, "indexer.k_norm");
    indexer->k_norm_bias = vector(part, "indexer.k_norm_bias");
}

static void bind_mlp(struct layer_weights *w, const struct weights_part *part, const struct model_config *c, int layer)
{
    if (!c->is_sparse[layer]) {
        w->mlp = (struct mlp_weights){*weights_part_matrix(part, "mlp.gate_proj"), *weights_part_matrix(part, "mlp.up_proj"),
                                      *weights_part_matrix(part, "mlp.down_proj")};
        return;
    }
    w->router = *weights_part_matrix(part, "router");
    w->router_bias = vector(part, "router_bias");
    if (c->n_shared_experts)
        w->mlp = (struct mlp_weights){*weights_part_matrix(part, "shared.gate_proj"), *weights_part_matrix(part, "shared.up_proj"),
                                      *weights_part_matrix(part, "shared.down_proj")};
}

static void bind_layer(struct layer_weights *w, const struct weights_part *part, const struct model_config *c, int layer)
{
    w->input_norm = vector(part, "input_norm");
    w->post_attention_norm = vector(part, "post_attention_norm");
    w->q_a_proj = *weights_part_matrix(part, "q_a_proj");
    w->q_b_proj = *weights_part_matrix(part, "q_b_proj");
    w->kv_a_proj = *weights_part_matrix(part, "kv_a_proj");
    w->kv_b_keys = *weights_part_matrix(part, "kv_b_keys");
    w->kv_b_values = *weights_part_matrix(part, "kv_b_values");
    w->o_proj = *weights_part_matrix(part, "o_proj");
    w->q_a_norm = vector(part, "q_a_norm");
    w->kv_a_norm = vector(part, "kv_a_norm");
    if (c->has_indexer[layer])
        bind_indexer(&w->indexer, part);
    bind_mlp(w, part, c, layer);
    if (layer < c->n_layers)
        return;
    w->enorm = vector(part, "enorm");
    w->hnorm = vector(part, "hnorm");
    w->eh_proj = *weights_part_matrix(part, "eh_proj");
    w->shared_head_norm = vector(part, "shared_head_norm");
}

enum status model_weights_load(struct model_weights *weights, struct weights_source *source, int layer_begin, int layer_end, enum embedding_use embedding,
                               int with_head, struct error *err)
{
    const struct model_config *c = weights_source_config(source);
    enum status status = STATUS_OK;
    memset(weights, 0, sizeof *weights); /* too large for a compound literal's temporary */
    weights->config = c;
    weights->layer_begin = weights->layer_end = layer_begin;
    for (int layer = layer_begin; layer < layer_end && !status; layer++) {
        status = weights_source_load(source, PART_DENSE, layer, &weights->dense[layer], err);
        if (status)
            break;
        bind_layer(&weights->layers[layer], &weights->dense[layer], c, layer);
        weights->layer_end = layer + 1;
    }
    if (!status && embedding != EMBEDDING_NONE)
        status = (embedding == EMBEDDING_IN_FILE ? embedding_open : embedding_load)(&weights->embedding, source, err);
    if (!status && with_head)
        status = weights_source_load(source, PART_HEAD, 0, &weights->head, err);
    if (!status && with_head) {
        weights->norm = vector(&weights->head, "norm");
        weights->lm_head = *weights_part_matrix(&weights->head, "lm_head");
    }
    if (status)
        model_weights_release(weights);
    return status;
}

void model_weights_release(struct model_weights *weights)
{
    for (int layer = weights->layer_begin; layer < weights->layer_end; layer++)
        weights_part_release(&weights->dense[layer]);
    embedding_release(&weights->embedding);
    weights_part_release(&weights->head);
    weights->layer_end = weights->layer_begin;
}
