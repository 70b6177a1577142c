/* One safetensors file: its header, read and checked in full before anything is believed (docs/FORMATS.md, "Vendor folders").
 * Hostile files are expected: every size is checked 64-bit arithmetic against the size that the file has. Reads no weights, keeps no file
 * open. */
#ifndef HEARTH_MODEL_SAFETENSORS_H
#define HEARTH_MODEL_SAFETENSORS_H

#include <stdint.h>
#include <time.h>

#include "common/error.h"

/* The largest header of the 744B checkpoints is 0.2 MB; one file with all their 118,629 tensors would need 16 MB. */
enum { SAFETENSORS_HEADER_MAX_BYTES = 32 << 20, SAFETENSORS_NAME_MAX_BYTES = 256, SAFETENSORS_DIMS_MAX = 8 };

enum tensor_dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F8_E4M3, DTYPE_OTHER /* a known size that no weight of ours has */ };
const char *dtype_name(enum tensor_dtype dtype);
int dtype_bytes(enum tensor_dtype dtype); /* of one element; 0 for DTYPE_OTHER */

struct safetensors_tensor {
    char *name;
    enum tensor_dtype dtype;
    int n_dims;
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    uint64_t offset, bytes; /* from the start of the file */
};

struct safetensors {
    char *path;
    uint64_t file_bytes;
    uint64_t header_checksum; /* XXH3-64 of the length field and the header */
    uint64_t device, inode;
    struct timespec modified;
    int n_tensors;
    struct safetensors_tensor *tensors; /* ascending names */
};

/* Refused, naming file and tensor: not a regular file, header too long for the file or for us, not JSON, a name twice or above 256 bytes,
 * an unknown dtype, a shape whose bytes overflow or differ from the tensor's range, overlap, holes, bytes after the last tensor. */
enum status safetensors_open(struct safetensors **out, const char *path, struct error *err);
void safetensors_close(struct safetensors **file);

/* NULL when there is none of that name. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name);

/* Opens the file for reading (the caller closes *fd); fails when it is no longer the file whose header was checked. */
enum status safetensors_open_data(const struct safetensors *file, int *fd, struct error *err);

/* Shape as "[2, 3]" into out. */
void shape_text(char *out, int out_bytes, const uint64_t *shape, int n_dims);

#endif
