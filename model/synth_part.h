/* Making one part of a made-up pack: its file, filled by all threads, and its checksums. */
#ifndef HEARTH_MODEL_SYNTH_PART_H
#define HEARTH_MODEL_SYNTH_PART_H

#include <pthread.h>
#include <stdatomic.h>

#include "model/pack.h"
#include "model/synth.h"

/* What the threads of one run share. */
struct synth_run {
    const struct synth_options *options;
    const char *dir;
    struct model_config config;
    uint8_t *buffer; /* of synth_buffer */

    pthread_mutex_t lock; /* for what follows */
    uint64_t done_bytes, total_bytes;
    enum status status; /* the first failure, its sentence in err; everything after it is skipped */
    struct error *err;
    atomic_int has_failed;
};

/* The memory that tensors pass through; freed with free(). */
uint8_t *synth_buffer(void);

/* Adds to what is done and reports it. */
void synth_advance(struct synth_run *run, const char *file, uint64_t bytes, int is_part_done);

/* Writes the part's file under its final name and fills its checksums. Returns run->status. */
enum status synth_part(struct synth_run *run, struct pack_part *part);

#endif
