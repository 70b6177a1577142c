/* A checkpoint as its vendor publishes it: config.json and safetensors files, one, or several with or without an index. Finds tensors by
 * name and reads them, block by block. Headers stay in memory, files are opened when something of them is read. One thread at a time.
 *
 * Where checksums are known (model/checksums.h), reading a tensor from its first to its last byte hashes what was read;
 * vendor_folder_finish says whether all of it was right. Nothing read before that may be used. */
#ifndef HEARTH_MODEL_VENDOR_FOLDER_H
#define HEARTH_MODEL_VENDOR_FOLDER_H

#include "common/error.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "model/tensor_names.h"

struct vendor_tensor {
    const struct safetensors_tensor *at;
    int shard;
    int has_checksum;
    uint64_t checksum;   /* XXH3-64 of the data as in the file */
    void *hash;          /* XXH3 state while the tensor is being read in order, else NULL */
    uint64_t hash_bytes; /* how far */
};

struct vendor_folder {
    char *dir;
    int n_shards;
    struct safetensors **shards; /* ascending names */
    int *fds;                    /* [n_shards], -1: not open */
    int n_tensors;
    struct vendor_tensor *tensors; /* ascending names */
    int *touched, n_touched;       /* tensors with a hash state */
};

/* Reads and checks every header. Refused, naming file and tensor: what safetensors_open refuses, a tensor in two shards, an index that
 * names a file outside the folder or a tensor that its shard does not have. */
enum status vendor_folder_open(struct vendor_folder **out, const char *dir, struct error *err);
void vendor_folder_close(struct vendor_folder **folder);

/* NULL: no such tensor. */
struct vendor_tensor *vendor_folder_find(struct vendor_folder *folder, const char *name);

/* Bytes [begin, begin + n) of a tensor's data. */
enum status vendor_folder_read(struct vendor_folder *folder, struct vendor_tensor *tensor, uint64_t begin, uint64_t n, void *out,
                               struct error *err);

/* Ends a round of reads: reads what is missing of every tensor that was begun and compares the checksums; closes the files. */
enum status vendor_folder_finish(struct vendor_folder *folder, struct error *err);
/* The same after a failure: forgets. */
void vendor_folder_abandon(struct vendor_folder *folder);

/* The matrix of a spec where the checkpoint has it: a tensor, or for an expert of a fused tensor some rows of it. */
struct vendor_matrix {
    struct vendor_tensor *tensor;
    struct vendor_tensor *scale; /* f32 per 128x128 block; NULL unless FP8 */
    int rows, cols;              /* as in the checkpoint; a vector is one row */
    uint64_t first_row;          /* in the tensor */
    int block_row;               /* row within the block grid where the matrix begins: the up half of a fused gate_up_proj */
    uint64_t first_scale_row;    /* in the scale tensor, of that grid */
};

/* Fails naming the tensor: missing (both names are told), another shape, another dtype than F32, BF16, F16 and F8_E4M3, FP8 without or with
 * a wrong scale. expert: of PART_EXPERTS, else ignored. */
enum status vendor_matrix_find(struct vendor_matrix *matrix, struct vendor_folder *folder, const struct model_config *config,
                               const struct tensor_spec *spec, enum part_kind part, int layer, int expert, struct error *err);

/* Rows [begin, begin + n) as the checkpoint has them: n * cols elements. */
enum status vendor_matrix_read(struct vendor_folder *folder, const struct vendor_matrix *matrix, int begin, int n, void *out,
                               struct error *err);

/* Scale rows of the whole matrix: [vendor_matrix_scale_rows][ceil(cols / 128)]; row r of the matrix uses scale row (block_row + r) / 128 of
 * its grid, and out begins with scale row block_row / 128. All finite, or an error. */
int vendor_matrix_scale_rows(const struct vendor_matrix *matrix);
enum status vendor_matrix_read_scales(struct vendor_folder *folder, const struct vendor_matrix *matrix, float *out, struct error *err);

#endif
