#include "model/part_layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"

#define PART_MAX_BYTES (UINT64_C(1) << 48)

static uint64_t align(uint64_t bytes, uint64_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Takes n bytes at *at; 0 when the sum leaves the limit, whatever the factors were. */
static int take(uint64_t *at, uint64_t rows, uint64_t row_bytes, uint64_t *offset, uint64_t *bytes)
{
    if (__builtin_mul_overflow(rows, row_bytes, bytes) || *bytes > PART_MAX_BYTES)
        return 0;
    *offset = *at;
    *at = align(*at + *bytes, TENSOR_ALIGN_BYTES);
    return *at <= PART_MAX_BYTES;
}

static int take_data(struct tensor_place *t, uint64_t *at)
{
    return take(at, (uint64_t)t->rows, format_row_bytes(t->format, t->cols), &t->offset, &t->data_bytes);
}

static int take_scales(struct tensor_place *t, uint64_t *at)
{
    return !format_info(t->format)->scale_bytes ||
           take(at, (uint64_t)t->rows, format_scale_row_bytes(t->format, t->cols), &t->scales_offset, &t->scales_bytes);
}

static int place_record(struct part_layout *layout)
{
    uint64_t at = 0;
    for (int i = 0; i < 3; i++)
        if (!take_data(&layout->tensors[i], &at))
            return 0;
    for (int i = 0; i < 3; i++)
        if (!take_scales(&layout->tensors[i], &at))
            return 0;
    if (layout->tensors[0].format == FORMAT_INT4) {
        layout->exponents_offset = at;
        at += 3 * sizeof(int32_t);
    }
    layout->record_bytes = align(at, PART_ALIGN_BYTES);
    uint64_t offset;
    at = 0;
    return take(&at, (uint64_t)layout->n_records, layout->record_bytes, &offset, &layout->bytes);
}

static int place_tensors(struct part_layout *layout)
{
    uint64_t at = 0;
    for (int i = 0; i < layout->n_tensors; i++) {
        struct tensor_place *t = &layout->tensors[i];
        if (!take_data(t, &at) || !take_scales(t, &at))
            return 0;
        t->extent_bytes = at - t->offset;
    }
    layout->bytes = align(at, PART_ALIGN_BYTES);
    return 1;
}

enum status part_layout_init(struct part_layout *layout, const struct model_config *config, enum part_kind part, int layer,
                             const enum weight_format *formats, struct error *err)
{
    CHECK(config_has_part(config, part, layer));
    struct tensor_spec specs[PART_TENSORS_MAX];
    *layout = (struct part_layout){.kind = part, .layer = layer};
    layout->n_tensors = part_tensor_specs(config, part, layer, 0, specs);
    layout->n_records = part == PART_EXPERTS ? config->n_experts : 0;
    for (int i = 0; i < layout->n_tensors; i++) {
        struct tensor_place *t = &layout->tensors[i];
        memcpy(t->name, specs[i].name, sizeof t->name);
        t->format = formats[i];
        t->rows = specs[i].rows;
        t->cols = specs[i].cols;
    }
    if (part == PART_EXPERTS ? place_record(layout) : place_tensors(layout))
        return STATUS_OK;
    char name[32];
    part_file_name(name, part, layer);
    return error_set(err, STATUS_INVALID, "config.json: %s would take more than 2^48 bytes", name);
}

static struct matrix view(const struct tensor_place *t, const uint8_t *base)
{
    return (struct matrix){.format = t->format,
                           .rows = t->rows,
                           .cols = t->cols,
                           .data = base + t->offset,
                           .scales = t->scales_bytes ? base + t->scales_offset : NULL,
                           .factor = 1.0f};
}

enum status part_layout_record_view(const struct part_layout *layout, const uint8_t *record, int expert, struct expert_view *out, struct error *err)
{
    struct matrix *matrices[3] = {&out->gate, &out->up, &out->down};
    out->place = EXPERT_IN_RAM;
    for (int i = 0; i < 3; i++) {
        *matrices[i] = view(&layout->tensors[i], record);
        if (layout->tensors[i].format != FORMAT_INT4)
            continue;
        int32_t exponent;
        memcpy(&exponent, record + layout->exponents_offset + 4 * i, 4);
        if (exponent < -126 || exponent > 127)
            return error_set(err, STATUS_CORRUPT, "experts-%02d: record %d: exponent %d of %s, allowed are -126 to 127", layout->layer,
                             expert, exponent, layout->tensors[i].name);
        matrices[i]->factor = ldexpf(1.0f, exponent);
    }
    return STATUS_OK;
}

enum status part_layout_views(const struct part_layout *layout, struct weights_part *part, struct error *err)
{
    CHECK(part->bytes && part->n_bytes == layout->bytes);
    part->kind = layout->kind;
    part->layer = layout->layer;
    if (layout->kind == PART_EXPERTS) {
        part->n_experts = layout->n_records;
        part->experts = xcalloc((size_t)layout->n_records, sizeof *part->experts);
        for (int i = 0; i < layout->n_records; i++) {
            enum status status = part_layout_record_view(layout, part->bytes + (uint64_t)i * layout->record_bytes, i, &part->experts[i], err);
            if (status)
                return status;
        }
        return STATUS_OK;
    }
    part->n_tensors = layout->n_tensors;
    for (int i = 0; i < layout->n_tensors; i++) {
        memcpy(part->names[i], layout->tensors[i].name, sizeof part->names[i]);
        part->tensors[i] = view(&layout->tensors[i], part->bytes);
    }
    return STATUS_OK;
}

int config_has_part(const struct model_config *config, enum part_kind part, int layer)
{
    if (part == PART_EMBEDDING || part == PART_HEAD)
        return 1;
    if (layer < 0 || layer >= config_layers_with_mtp(config))
        return 0;
    return part == PART_DENSE || (part == PART_EXPERTS && config->is_sparse[layer]);
}

void part_file_name(char name[32], enum part_kind part, int layer)
{
    static const char *const names[N_PART_KINDS] = {"embedding", "dense", "experts", "head"};
    CHECK(part < N_PART_KINDS);
    if (part == PART_DENSE || part == PART_EXPERTS)
        snprintf(name, 32, "%s-%02d", names[part], layer);
    else
        snprintf(name, 32, "%s", names[part]);
}

int part_next(const struct model_config *config, enum part_kind *part, int *layer)
{
    switch (*part) {
    case PART_EMBEDDING:
        *part = PART_DENSE;
        *layer = 0;
        return 1;
    case PART_DENSE:
        if (config->is_sparse[*layer]) {
            *part = PART_EXPERTS;
            return 1;
        }
        /* fall through */
    case PART_EXPERTS:
        if (*layer + 1 < config_layers_with_mtp(config)) {
            *part = PART_DENSE;
            ++*layer;
        } else {
            *part = PART_HEAD;
            *layer = 0;
        }
        return 1;
    default:
        return 0;
    }
}
