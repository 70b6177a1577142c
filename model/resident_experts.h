/* The expert source that has everything in RAM: for `hearth run`, the tests and machines with enough memory. */
#ifndef HEARTH_MODEL_RESIDENT_EXPERTS_H
#define HEARTH_MODEL_RESIDENT_EXPERTS_H

#include "model/expert_source.h"
#include "model/weights_source.h"

struct resident_experts {
    struct expert_source source; /* hand out &experts->source */
    int layer_begin, layer_end;
    struct weights_part parts[LAYERS_MAX + 1];
    int wanted[EXPERTS_MAX], n_wanted, n_returned, n_left; /* the open request, served in its order; n_left: not yet released */
};

uint64_t resident_experts_bytes(const struct weights_source *source, int layer_begin, int layer_end);

/* Loads and verifies the routed experts of the sparse layers in [layer_begin, layer_end). */
enum status resident_experts_load(struct resident_experts *experts, struct weights_source *source, int layer_begin, int layer_end, struct error *err);
void resident_experts_release(struct resident_experts *experts);

#endif
