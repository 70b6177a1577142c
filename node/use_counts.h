/* How often each expert was used, kept from run to run to warm the memory at the next start. One small file per model and layer range,
 * written whole or not at all; a damaged or foreign one is passed over with a line in the log, never believed. */
#ifndef HEARTH_NODE_USE_COUNTS_H
#define HEARTH_NODE_USE_COUNTS_H

#include "node/expert_files.h"

struct use_counts {
    char *dir; /* NULL: not kept */
    char *name;
    char identity[33];
};

/* dir: as in expert_options.use_counts. Makes the folder; if that cannot be done, counts are not kept and the log says so. */
void use_counts_init(struct use_counts *counts, const char *dir, const char *identity, int layer_begin, int layer_end);
void use_counts_release(struct use_counts *counts);

/* uses [files->n_files][files->n_experts], uses per row. Reads every file of this model whose layers overlap, so that another cut of the
 * layers starts warm too. Returns how many layers were found. */
int use_counts_load(const struct use_counts *counts, const struct expert_files *files, float *uses);

/* Fails with the reason (disk full, read-only); the file of before stays. */
enum status use_counts_save(const struct use_counts *counts, const struct expert_files *files, const float *uses, struct error *err);

#endif
