/* A model on disk, opened: a Hearth pack or a vendor folder of safetensors. Parts are loaded one by one into memory that the caller owns; every byte
 * is verified against its checksum before it is handed out. A vendor folder gives the same bytes as an `exact` pack of it would.
 * Thread: any, one at a time. */
#ifndef HEARTH_MODEL_WEIGHTS_SOURCE_H
#define HEARTH_MODEL_WEIGHTS_SOURCE_H

#include <stdint.h>

#include "common/error.h"
#include "kernels/formats.h"
#include "model/config.h"
#include "model/expert_source.h"
#include "model/tensor_names.h"

enum precision { PRECISION_EXACT, PRECISION_INT8, PRECISION_INT4, N_PRECISIONS };
const char *precision_name(enum precision precision);
int precision_by_name(const char *name); /* -1: unknown */

struct weights_source;

/* dir: a pack (manifest.json) or a vendor folder (config.json and *.safetensors). Reads headers and manifest, checks every file's size; reads no weights,
 * except when a vendor folder is opened for the first time: then its checksums are made (docs/FORMATS.md, "Side file"). Fails naming file and thing. */
enum status weights_source_open(struct weights_source **out, const char *dir, struct error *err);
void weights_source_close(struct weights_source **source);

const struct model_config *weights_source_config(const struct weights_source *source);
const char *weights_source_dir(const struct weights_source *source);
enum precision weights_source_precision(const struct weights_source *source);
/* Model identity: 32 hex digits (docs/FORMATS.md); of a vendor folder, of the exact pack's manifest it would give or of its side file of checksums. */
const char *weights_source_identity(const struct weights_source *source);

/* Memory that weights_source_load will take for a part; exact, known without reading weights. */
uint64_t weights_source_part_bytes(const struct weights_source *source, enum part_kind part, int layer);

/* A loaded part. bytes is 4096-byte aligned; matrices point into it. */
struct weights_part {
    enum part_kind kind;
    int layer;
    uint8_t *bytes;
    uint64_t n_bytes;
    int n_tensors;                                  /* embedding, dense, head */
    char names[PART_TENSORS_MAX][48];
    struct matrix tensors[PART_TENSORS_MAX];
    int n_experts;                                  /* experts */
    struct expert_view *experts;                    /* [n_experts] */
};

/* Loads and verifies. On failure *part is empty. */
enum status weights_source_load(struct weights_source *source, enum part_kind part, int layer, struct weights_part *out, struct error *err);
void weights_part_release(struct weights_part *part);

/* Reads a part and compares its checksums, in a few MB of memory. Fails naming file and tensor or record. */
enum status weights_source_verify(struct weights_source *source, enum part_kind part, int layer, struct error *err);

/* Where everything of a part lies (model/part_layout.h). The layer must have the part. */
struct part_layout;
void weights_source_layout(const struct weights_source *source, enum part_kind part, int layer, struct part_layout *layout);

/* The opened pack, NULL when it is a vendor folder: for those who read records themselves (model/pack.h). */
struct pack;
const struct pack *weights_source_pack(const struct weights_source *source);

/* The matrix of a name that part_tensor_specs lists; CHECKs that it is there. */
const struct matrix *weights_part_matrix(const struct weights_part *part, const char *name);

#endif
