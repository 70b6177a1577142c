/* hearth convert: from a vendor folder to a pack (docs/FORMATS.md, "Conversion"), part by part, in memory bounded by one expert matrix or
 * one kv_b. Every file is written under a temporary name, synced and renamed, the manifest last; a journal in the target says which files
 * are finished. */
#ifndef HEARTH_MODEL_CONVERT_H
#define HEARTH_MODEL_CONVERT_H

#include <signal.h>
#include <stdint.h>

#include "common/error.h"
#include "model/weights_source.h"

/* What a conversion tells while it runs. part_file: "dense-03", or "" at the end. */
struct convert_progress {
    const char *part_file;
    uint64_t done_bytes, total_bytes; /* of the finished pack; kept files count as done */
    int is_part_done, is_kept, is_comparing;
};

struct convert_options {
    enum precision precision;
    void (*report)(void *ctx, const struct convert_progress *progress); /* may be NULL */
    void *ctx;
    const volatile sig_atomic_t *stop; /* may be NULL; not zero: stop soon with STATUS_CANCELLED, leaving what is finished */
};

struct convert_result {
    char identity[33];
    uint64_t pack_bytes;
    int was_complete; /* dst already held exactly this pack */
};

/* Uses parallel_for's threads. dst: not there, empty, an unfinished conversion of the same source and precision (goes on after verifying
 * what is there), or the finished pack (is compared with the source, nothing is written). Anything else is refused. The bytes written
 * depend on the source and the precision only. */
enum status convert_model(const char *src, const char *dst, const struct convert_options *options, struct convert_result *result,
                          struct error *err);

#endif
