/* Where everything of a part lies in memory and on disk: one layout for packs and for vendor folders (docs/FORMATS.md, "Parts").
 *
 * A part is an image of `bytes` bytes. Embedding, dense and head: tensor after tensor, each 64-byte aligned: data, then (64-byte aligned)
 * scales. Experts: one record of record_bytes (a multiple of 4096) per expert: gate, up and down data, gate, up and down scales, each
 * 64-byte aligned, then, with int4, three i32 exponents of two; offsets are within the record. Gaps are zero. Images are padded to 4096
 * bytes. */
#ifndef HEARTH_MODEL_PART_LAYOUT_H
#define HEARTH_MODEL_PART_LAYOUT_H

#include <stdint.h>

#include "common/error.h"
#include "kernels/formats.h"
#include "model/tensor_names.h"
#include "model/weights_source.h"

enum { TENSOR_ALIGN_BYTES = 64, PART_ALIGN_BYTES = 4096 };

struct tensor_place {
    char name[48];
    enum weight_format format;
    int rows, cols;
    uint64_t offset, data_bytes;
    uint64_t scales_offset, scales_bytes; /* 0, 0 without scales */
    uint64_t extent_bytes;                /* not experts: data, gap, scales, gap up to the next tensor; what its checksum covers */
};

struct part_layout {
    enum part_kind kind;
    int layer;
    int n_tensors; /* experts: 3 */
    struct tensor_place tensors[PART_TENSORS_MAX];
    int n_records; /* experts, else 0 */
    uint64_t record_bytes, exponents_offset;
    uint64_t bytes;
};

/* formats: one per tensor of part_tensor_specs. Fails when the sizes make no sense for any machine (above 2^48 bytes). */
enum status part_layout_init(struct part_layout *layout, const struct model_config *config, enum part_kind part, int layer,
                             const enum weight_format *formats, struct error *err);

/* Fills names and matrices of a part whose bytes are complete; allocates experts. Fails when an exponent in a record is out of range. */
enum status part_layout_views(const struct part_layout *layout, struct weights_part *part, struct error *err);

/* The matrices of one complete expert record. Fails when an exponent in it is out of range. */
enum status part_layout_record_view(const struct part_layout *layout, const uint8_t *record, int expert, struct expert_view *out, struct error *err);

/* Checks that the layer has such a part. */
int config_has_part(const struct model_config *config, enum part_kind part, int layer);

/* "embedding", "dense-03", "experts-03", "head". */
void part_file_name(char name[32], enum part_kind part, int layer);

/* All parts of a model in the order of their files: embedding, dense and experts layer by layer, head. *part and *layer start at
 * PART_EMBEDDING, 0; returns 0 after the last one. */
int part_next(const struct model_config *config, enum part_kind *part, int *layer);

#endif
