/* Where a layer gets its routed experts from: all in RAM (model/resident_experts.c) or from this machine's disk (node/expert_store.c).
 * All calls come from the thread that runs the layer. */
#ifndef HEARTH_MODEL_EXPERT_SOURCE_H
#define HEARTH_MODEL_EXPERT_SOURCE_H

#include "common/error.h"
#include "kernels/formats.h"

enum expert_place { EXPERT_IN_RAM, EXPERT_IN_VRAM };

/* One expert that may be used until it is released; owns nothing. */
struct expert_view {
    enum expert_place place;
    struct matrix gate, up, down; /* [moe_intermediate][H], [moe_intermediate][H], [H][moe_intermediate] */
};

/* The union of what the rows of one layer chose. */
struct expert_request {
    int layer;
    const int *experts; /* [n] ascending ids; must stay valid until all are released */
    const int *rows;    /* [n] how many of the rows chose each */
    int n;
    int n_rows; /* 0: what is left of a request that was given up for a while, and counted then */
};

struct expert_source {
    /* Starts making the experts of a request available and returns at once. One request is open at a time. */
    enum status (*request)(struct expert_source *source, const struct expert_request *request, struct error *err);

    /* Waits until one of the requested and not yet returned experts is there: *expert its id, *view valid until release. A source that reads from elsewhere
     * bounds the wait itself (STATUS_TIMEOUT, naming file and record). It may hold fewer experts at once than were requested: whoever keeps views
     * must release the lowest ids first. */
    enum status (*wait_any)(struct expert_source *source, int layer, int *expert, struct expert_view *view, struct error *err);

    /* The caller is done with an expert, or (after an error elsewhere) gives up one that was requested. */
    void (*release)(struct expert_source *source, int layer, int expert);

    /* Experts that the rows now in `layer - 1` will probably want in `layer`, likeliest first. Only a hint. Called while wants_hints is set. */
    void (*expect)(struct expert_source *source, int layer, const int *experts, int n);
    int wants_hints;
};

#endif
