#include "node/stage_weights.h"

#include <stdio.h>
#include <string.h>

#include "common/check.h"

/* What follows from the range. */
static void describe(struct stage_weights *w, struct weights_source *source, int layer_begin, int layer_end)
{
    const struct model_config *c = weights_source_config(source);
    memset(w, 0, sizeof *w);
    w->config = c;
    w->layer_begin = layer_begin;
    w->layer_end = layer_end;
    w->is_head = layer_begin == 0;
    w->is_tail = layer_end == c->n_layers;
    w->has_mtp = w->is_tail && c->n_mtp_layers > 0;
    w->layers_end = layer_end + w->has_mtp;
}

/* Head and MTP layer need one embedding row a token. */
static enum embedding_use embedding_use(const struct stage_weights *w)
{
    return w->is_head || w->has_mtp ? EMBEDDING_IN_FILE : EMBEDDING_NONE;
}

enum status stage_range_check(const struct model_config *c, int begin, int end, struct error *err)
{
    if (begin >= 0 && begin < end && end <= c->n_layers && c->has_indexer[begin] && (end == c->n_layers || c->has_indexer[end]))
        return STATUS_OK;
    char cuts[512] = "";
    size_t used = 0;
    for (int layer = 1; layer < c->n_layers && used + 8 < sizeof cuts; layer++)
        if (c->has_indexer[layer])
            used += (size_t)snprintf(cuts + used, sizeof cuts - used, "%s%d", used ? ", " : "", layer);
    return error_set(err, STATUS_INVALID, "layers %d-%d are no range of this model: it has %d layers and can be cut before %s", begin, end,
                     c->n_layers, *cuts ? cuts : "none of them");
}

uint64_t stage_weights_dense_bytes(struct weights_source *source, int layer_begin, int layer_end)
{
    struct stage_weights w;
    describe(&w, source, layer_begin, layer_end);
    return model_weights_bytes(source, layer_begin, w.layers_end, embedding_use(&w), w.is_tail);
}

enum status stage_weights_plan(struct memory_plan *plan, struct budget *budget, struct weights_source *source, int layer_begin, int layer_end,
                               const struct expert_options *options, struct error *err)
{
    struct stage_weights w;
    describe(&w, source, layer_begin, layer_end);
    return memory_plan_experts(plan, budget, source, layer_begin, w.layers_end, options, err);
}

static enum status load_experts(struct stage_weights *w, struct weights_source *source, const struct memory_plan *plan, const struct expert_options *options,
                                struct error *err)
{
    if (!plan || !plan->streams)
        return resident_experts_load(&w->experts, source, w->layer_begin, w->layers_end, err);
    struct expert_store_config config = {.source = source,
                                         .layer_begin = w->layer_begin,
                                         .layer_end = w->layers_end,
                                         .n_slots = plan->n_slots,
                                         .options = options};
    return expert_store_open(&w->store, &config, err);
}

enum status stage_weights_load(struct stage_weights *w, struct weights_source *source, int layer_begin, int layer_end, const struct memory_plan *plan,
                               const struct expert_options *options, struct error *err)
{
    describe(w, source, layer_begin, layer_end);
    CHECK(layer_begin >= 0 && layer_begin < layer_end && layer_end <= w->config->n_layers);
    enum status status = model_weights_load(&w->weights, source, layer_begin, w->layers_end, embedding_use(w), w->is_tail, err);
    if (status)
        return error_wrap(err, "load layers %d-%d", layer_begin, layer_end);
    status = load_experts(w, source, plan, options, err);
    if (status) {
        model_weights_release(&w->weights);
        return error_wrap(err, "load layers %d-%d", layer_begin, layer_end);
    }
    w->source = source;
    return STATUS_OK;
}

struct expert_source *stage_weights_experts(struct stage_weights *w)
{
    return w->store ? expert_store_source(w->store) : &w->experts.source;
}

void stage_weights_release(struct stage_weights *w)
{
    if (!w->source)
        return;
    if (w->store)
        expert_store_close(&w->store);
    else
        resident_experts_release(&w->experts);
    model_weights_release(&w->weights);
    w->source = NULL;
}
