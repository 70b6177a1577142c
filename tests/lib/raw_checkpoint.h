/* A checkpoint in memory that a test changes and writes anew: other names, shapes, dtypes, bytes. Everything here stops the test on
 * failure. */
#ifndef HEARTH_TESTS_RAW_CHECKPOINT_H
#define HEARTH_TESTS_RAW_CHECKPOINT_H

#include <stdint.h>

struct raw_tensor {
    char name[257], dtype[16];
    int n_dims;
    uint64_t shape[8];
    uint8_t *bytes;
    uint64_t n_bytes;
};

struct raw_checkpoint {
    int n;
    struct raw_tensor *tensors;
};

/* All tensors of all *.safetensors in a folder. */
struct raw_checkpoint raw_read(const char *folder);
void raw_release(struct raw_checkpoint *c);

/* NULL: none of that name. */
struct raw_tensor *raw_find(struct raw_checkpoint *c, const char *name);
/* Takes bytes (malloc'ed). */
struct raw_tensor *raw_add(struct raw_checkpoint *c, const char *name, const char *dtype, int n_dims, const uint64_t *shape, uint8_t *bytes,
                           uint64_t n_bytes);
void raw_drop(struct raw_checkpoint *c, const char *name);

/* Writes FOLDER/FILE with the tensors [begin, end). */
void raw_write(const struct raw_checkpoint *c, int begin, int end, const char *folder, const char *file);

/* A checkpoint of random weights, BF16, or with is_fp8 the matrices that the vendor quantises in FP8 with random scales. sizes: keys of
 * config.json to change against those of tiny-groups, ending with a NULL; config.json is written to the folder, the tensors are left to the
 * caller. */
struct raw_size {
    const char *key;
    int value;
};
struct raw_checkpoint raw_synthetic(const char *folder, const struct raw_size *sizes, int is_fp8);

/* Small files. */
void write_file(const char *folder, const char *file, const void *bytes, uint64_t n);
uint8_t *read_file(const char *folder, const char *file, uint64_t *n); /* malloc'ed, a zero after the end */
/* An empty temporary folder with the config.json of another. */
char *folder_with_config_of(const char *folder);

/* Deterministic noise for tests: the next value of a seed. */
uint64_t noise(uint64_t *seed);

#endif
