#include "model/resident_experts.h"

#include <string.h>

#include "common/check.h"

uint64_t resident_experts_bytes(const struct weights_source *source, int layer_begin, int layer_end)
{
    uint64_t bytes = 0;
    for (int layer = layer_begin; layer < layer_end; layer++)
        if (weights_source_config(source)->is_sparse[layer])
            bytes += weights_source_part_bytes(source, PART_EXPERTS, layer);
    return bytes;
}

static enum status start(struct expert_source *source, const struct expert_request *request, struct error *err)
{
    (void)err;
    struct resident_experts *experts = (struct resident_experts *)source;
    CHECK(experts->n_left == 0);
    CHECK(request->layer >= experts->layer_begin && request->layer < experts->layer_end && request->n <= EXPERTS_MAX);
    memcpy(experts->wanted, request->experts, (size_t)request->n * sizeof *experts->wanted);
    experts->n_wanted = experts->n_left = request->n;
    experts->n_returned = 0;
    return STATUS_OK;
}

static enum status wait_any(struct expert_source *source, int layer, int *expert, struct expert_view *view, struct error *err)
{
    (void)err;
    struct resident_experts *experts = (struct resident_experts *)source;
    CHECK(experts->n_returned < experts->n_wanted);
    *expert = experts->wanted[experts->n_returned++];
    CHECK(*expert < experts->parts[layer].n_experts);
    *view = experts->parts[layer].experts[*expert];
    return STATUS_OK;
}

static void release(struct expert_source *source, int layer, int expert)
{
    (void)layer, (void)expert; /* nothing moves */
    struct resident_experts *experts = (struct resident_experts *)source;
    CHECK(experts->n_left > 0);
    experts->n_left--;
}

enum status resident_experts_load(struct resident_experts *experts, struct weights_source *source, int layer_begin, int layer_end, struct error *err)
{
    memset(experts, 0, sizeof *experts);
    experts->source = (struct expert_source){.request = start, .wait_any = wait_any, .release = release};
    experts->layer_begin = experts->layer_end = layer_begin;
    for (int layer = layer_begin; layer < layer_end; layer++) {
        enum status status = STATUS_OK;
        if (weights_source_config(source)->is_sparse[layer])
            status = weights_source_load(source, PART_EXPERTS, layer, &experts->parts[layer], err);
        if (status) {
            resident_experts_release(experts);
            return status;
        }
        experts->layer_end = layer + 1;
    }
    return STATUS_OK;
}

void resident_experts_release(struct resident_experts *experts)
{
    for (int layer = experts->layer_begin; layer < experts->layer_end; layer++)
        if (experts->parts[layer].bytes)
            weights_part_release(&experts->parts[layer]);
    experts->layer_end = experts->layer_begin;
}
