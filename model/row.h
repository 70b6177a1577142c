/* A row: one token position of one sequence on its way through the layers. Between two layers it is complete in itself (residual, next layer, index
 * selection), so that a stage can stop after any layer and go on later, elsewhere or with other rows. */
#ifndef HEARTH_MODEL_ROW_H
#define HEARTH_MODEL_ROW_H

#include "model/sequence_state.h"

/* A chain of drafts may add its own rows to a selection that it reuses (spec section 5.5). */
enum { DRAFT_DEPTH_MAX = 8 };

/* The positions a row attends to, chosen by the last layer that ran an indexer. */
struct selection {
    int is_all; /* every position from 0 to the row's own */
    int n;
    int *positions; /* [index_topk + DRAFT_DEPTH_MAX] ascending; meaningful when not is_all */
};

struct row {
    struct sequence_state *sequence;
    int position;
    int next_layer;
    float *residual; /* [hidden_size] */
    struct selection selection;
    int selection_is_given; /* the next indexer layer keeps the selection instead of choosing (reuse along a draft chain) */
    int only_cache;         /* leave only cache entries behind: no attention, no experts, residual undefined afterwards (protocol rule 13) */
    int is_finite;          /* cleared by the layer that produced a NaN or infinity; the row must not go on */
};

#endif
