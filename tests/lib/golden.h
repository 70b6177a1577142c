/* Reference results for tests: arrays of a safetensors file by name, and folders to put packs in. Everything here stops the test on failure. */
#ifndef HEARTH_TESTS_GOLDEN_H
#define HEARTH_TESTS_GOLDEN_H

#include <stddef.h>
#include <stdint.h>

#include "model/model.h"

/* Sanitizers make arithmetic some 50 times slower: the large golden tests take every n-th case then. The release build takes them all. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CASE_STRIDE = 10 };
#else
enum { CASE_STRIDE = 1 };
#endif

extern const char *const tiny_names[]; /* "tiny-share", ...; ends with NULL */

/* "SOURCE/tests/golden/NAME/FILE", in a buffer of the caller's. */
char *golden_path(char path[512], const char *folder, const char *file);
/* "SOURCE/models/kindling" */
const char *kindling_dir(void);

struct arrays;
struct arrays *arrays_open(const char *path);
void arrays_close(struct arrays **arrays);

/* The data of an array, converted to nothing: f32, i32 or u8 as stored. NULL when there is none of that name. shape [2] gets rows and columns (1 column for
 * a vector); owned by arrays. */
const void *arrays_find(struct arrays *arrays, size_t shape[2], const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A copy of a checkpoint folder that the test may write into (side files), under a new temporary directory; free with temporary_remove. */
char *temporary_folder(void);
char *temporary_copy(const char *folder);
void temporary_remove(char **folder);
/* A file with this text in the folder; the folders on the way to it are made. */
void temporary_write(const char *folder, const char *path, const char *text);

struct model *open_or_fail(const char *dir, const struct model_options *options);

#endif
