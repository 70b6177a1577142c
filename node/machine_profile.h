/* What was measured once about a machine (`hearth probe`) and is believed until it is measured again: `hearth plan` predicts from it, a
 * node may tell it. */
#ifndef HEARTH_NODE_MACHINE_PROFILE_H
#define HEARTH_NODE_MACHINE_PROFILE_H

#include <stdint.h>

#include "common/error.h"
#include "node/block_reader.h"

enum { PROFILE_VERSION = 1, PROFILE_DEPTHS = 5, PROFILE_MATMULS_MAX = 8, PROFILE_TEXT_BYTES = 128, PROFILE_PATH_BYTES = 1024 };

#define PROFILE_FILE "profile.json"

/* Depths at which drives are measured. */
extern const int profile_depths[PROFILE_DEPTHS]; /* 1, 2, 4, 8, 16 */

/* A matrix kernel over weights that come from memory. */
struct profile_matmul {
    char format[8];          /* "int4", "int8" */
    int n_rows;              /* x rows at once */
    double bytes_per_second; /* of weights and scales, all threads together */
};

struct profile_store {
    char dir[PROFILE_PATH_BYTES];
    int is_temporary; /* not a model's files: a temporary file was read */
    int is_direct;    /* with O_DIRECT; else the page cache is in the figures */
    uint32_t piece_bytes;
    double bytes_per_second[PROFILE_DEPTHS]; /* with profile_depths[i] pieces in flight */
    uint64_t latency_p50_ns;                 /* of one read of 4096 bytes, nothing else in flight */
};

struct machine_profile {
    char version[32]; /* of Hearth */
    char date[32];    /* "2026-01-31T12:00:00Z" */
    char cpu[PROFILE_TEXT_BYTES];
    char reader[PROFILE_TEXT_BYTES]; /* struct block_reader's name */
    int n_cores;                     /* that the process could use; as many threads measured */
    int is_disturbed;                /* other programs used the cores meanwhile: rates of kernels are less sure */
    uint64_t memory_bytes;
    double memory_bytes_per_second; /* plain reading, all threads */
    int n_matmuls;
    struct profile_matmul matmuls[PROFILE_MATMULS_MAX];
    int n_stores;
    struct profile_store stores[BLOCK_STORES_MAX];
};

/* Fills version, date, cpu, n_cores and memory_bytes. */
void machine_profile_init(struct machine_profile *profile);

/* 1 when cpu, n_cores and memory_bytes are those of this machine: a home directory may be shared. */
int machine_profile_is_of_this_machine(const struct machine_profile *profile);

/* NULL: not measured. */
const struct profile_matmul *machine_profile_matmul(const struct machine_profile *profile, const char *format, int n_rows);

/* Bytes per second of all stores together with `depth` pieces in flight on each, or as many as were measured that come next. */
double machine_profile_drives_rate(const struct machine_profile *profile, int depth);

/* JSON text, malloc'ed, with a newline at the end. */
char *machine_profile_text(const struct machine_profile *profile);

/* path NULL: PROFILE_FILE in the state directory, which is created. The file is replaced whole or not at all. */
enum status machine_profile_save(const struct machine_profile *profile, const char *path, struct error *err);
/* Fails with STATUS_NOT_FOUND when nothing was measured yet, naming the file and what to do; STATUS_INVALID or _CORRUPT naming what is
 * wrong in it. */
enum status machine_profile_load(struct machine_profile *profile, const char *path, struct error *err);

#endif
