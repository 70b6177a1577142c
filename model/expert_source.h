/* Where a layer gets its routed experts from: all in RAM (model/resident_experts.c) or from this machine's disk (node/expert_store.c, later).
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

struct expert_source {
    /* Starts making the experts of a layer available and returns at once. experts: [n] ascending ids, no id that is already requested and not
     * released. STATUS_BUSY: nothing was started. */
    enum status (*request)(struct expert_source *source, int layer, const int *experts, int n, struct error *err);

    /* Waits until one of the requested and not yet returned experts is there: *expert its id, *view valid until release. A source that reads
     * from elsewhere bounds the wait itself (STATUS_TIMEOUT, naming file and record). */
    enum status (*wait_any)(struct expert_source *source, int layer, int *expert, struct expert_view *view, struct error *err);

    /* The caller is done with an expert, or (after an error elsewhere) gives up one that was requested. */
    void (*release)(struct expert_source *source, int layer, int expert);
};

#endif
