/* The weights of a layer range, loaded and verified: all that a node keeps from one epoch to the next. */
#ifndef HEARTH_NODE_STAGE_WEIGHTS_H
#define HEARTH_NODE_STAGE_WEIGHTS_H

#include "model/resident_experts.h"
#include "model/weights.h"
#include "node/expert_store.h"
#include "node/memory_plan.h"

struct stage_weights {
    struct weights_source *source; /* borrowed; NULL: nothing is loaded */
    const struct model_config *config;
    int layer_begin, layer_end; /* of the main model */
    int layers_end;             /* with the MTP layer at the tail */
    int is_head, is_tail, has_mtp;
    struct model_weights weights;
    struct resident_experts experts; /* one of the two */
    struct expert_store *store;
};

/* STATUS_INVALID, naming the cuts that there are, unless [begin, end) may be one node's: it begins and ends at a layer that runs its own
 * indexer, or at the model's ends. */
enum status stage_range_check(const struct model_config *config, int layer_begin, int layer_end, struct error *err);

/* Bytes that loading the range takes, experts not counted. */
uint64_t stage_weights_dense_bytes(struct weights_source *source, int layer_begin, int layer_end);

/* As memory_plan_experts, for the range and the layers that come with it. */
enum status stage_weights_plan(struct memory_plan *plan, struct budget *budget, struct weights_source *source, int layer_begin, int layer_end,
                               const struct expert_options *options, struct error *err);

/* Loads the parts of the range alone: embedding at the head (and for the MTP layer at the tail), head and MTP layer at the tail; experts as planned (plan NULL:
 * all in RAM). On failure nothing is held. */
enum status stage_weights_load(struct stage_weights *weights, struct weights_source *source, int layer_begin, int layer_end,
                               const struct memory_plan *plan, const struct expert_options *options, struct error *err);
/* Where its layers get their experts from. */
struct expert_source *stage_weights_experts(struct stage_weights *weights);
void stage_weights_release(struct stage_weights *weights);

#endif
