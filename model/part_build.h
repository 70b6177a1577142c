/* From a vendor's tensors to the stored form of a part: decodes, transforms kv_b, quantises, block by block. The loader of vendor folders
 * and the converter both go through here, so an exact pack and a directly opened folder hold the same bytes. */
#ifndef HEARTH_MODEL_PART_BUILD_H
#define HEARTH_MODEL_PART_BUILD_H

#include "model/part_layout.h"
#include "model/vendor_folder.h"

struct part_builder {
    struct vendor_folder *folder;      /* borrowed */
    const struct model_config *config; /* borrowed */
    enum precision precision;
    /* scratch, grown as needed, at most one expert matrix or one kv_b: */
    uint8_t *raw;
    size_t raw_bytes;
    float *values; /* decoded rows */
    size_t values_n;
    float *scales; /* of an FP8 matrix */
    size_t scales_n;
    float *kv_b; /* the whole kv_b_proj of kv_b_layer */
    size_t kv_b_n;
    int kv_b_layer; /* -1: none */
};

void part_builder_init(struct part_builder *builder, struct vendor_folder *folder, const struct model_config *config,
                       enum precision precision);
void part_builder_release(struct part_builder *builder);

/* Layout of a part at the builder's precision: looks every tensor of it up, so missing tensors and wrong shapes are found here, without
 * reading weights. */
enum status part_build_layout(struct part_builder *builder, struct part_layout *layout, enum part_kind part, int layer, struct error *err);

/* Rows that part_build_rows should be asked for at once, so that scratch stays at a few MB. */
int part_build_block_rows(const struct tensor_place *place);

/* Rows [begin, begin + rows) of a tensor of embedding, dense or head. data and scales point to the first of these rows; scales may be NULL
 * when the format has none. */
enum status part_build_rows(struct part_builder *builder, const struct part_layout *layout, int tensor, int begin, int rows, uint8_t *data,
                            uint8_t *scales, struct error *err);

/* One expert: fills all record_bytes of record, gaps with zeros. */
enum status part_build_record(struct part_builder *builder, const struct part_layout *layout, int expert, uint8_t *record,
                              struct error *err);

#endif
