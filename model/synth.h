/* hearth synth: a pack of random weights, written as fast as the disk takes it, for performance work where the real model is not at hand. A
 * pack like any other: manifest, checksums, configuration, tokenizer. */
#ifndef HEARTH_MODEL_SYNTH_H
#define HEARTH_MODEL_SYNTH_H

#include <signal.h>
#include <stdint.h>

#include "common/error.h"
#include "model/synth_shape.h"
#include "model/weights_source.h"

struct synth_progress {
    const char *part_file; /* "experts-03", or "" at the end */
    uint64_t done_bytes, total_bytes;
    int is_part_done;
};

struct synth_options {
    struct synth_shape shape; /* its skew: the router's bias of an expert is -skew * ln(rank + 1), ranks in random order per layer */
    enum precision precision; /* int8 or int4 */
    uint64_t seed;
    void (*report)(void *ctx, const struct synth_progress *progress); /* may be NULL; called by one thread at a time */
    void *ctx;
    const volatile sig_atomic_t *stop; /* may be NULL; not zero: stop soon with STATUS_CANCELLED */
};

struct synth_result {
    char identity[33];
    uint64_t pack_bytes, expert_bytes;
};

/* Uses parallel_for's threads, which write too: a few more than cores keep the disk busy. Memory: one expert's record per thread, or 32 MB
 * and a matrix's scales. dir: not there, empty, or what a killed run left. When it fails, what was written is removed, and dir too if it
 * was made here. The bytes depend on shape, precision and seed only. */
enum status synth_pack(const char *dir, const struct synth_options *options, struct synth_result *result, struct error *err);

#endif
