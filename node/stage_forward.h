/* The row engine over the real model: rows through the layers that this node owns. What it computes is what model/model.c computes, byte
 * for byte. Compute thread. */
#ifndef HEARTH_NODE_STAGE_FORWARD_H
#define HEARTH_NODE_STAGE_FORWARD_H

#include "common/budget.h"
#include "kernels/kernels.h"
#include "node/row_engine.h"
#include "node/stage_weights.h"

/* Of one epoch. */
struct stage_forward_sizes {
    int max_positions; /* of all sequences together */
    int max_sequences;
    int max_rows_in_flight;
    int unit_rows_max;
    int set_rows_max; /* prefill rows that go through a layer together where experts stream; 0: no sets */
};

struct stage_forward;

/* Adds to a budget what stage_forward_new and a stage above it will allocate, for a legal range whose weights need not be there yet. */
void stage_forward_budget(struct budget *budget, struct weights_source *source, int layer_begin, int layer_end,
                          const struct stage_forward_sizes *sizes);

/* weights (loaded) and kernels are borrowed. Allocates everything; the caller has checked the budget. */
enum status stage_forward_new(struct stage_forward **out, struct stage_weights *weights, const struct kernels *kernels,
                              const struct stage_forward_sizes *sizes, struct error *err);
/* Every sequence must have been dropped: stage_free does that. */
void stage_forward_free(struct stage_forward **forward);

struct row_engine *stage_forward_engine(struct stage_forward *forward);

#endif
