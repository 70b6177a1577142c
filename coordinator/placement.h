/* Which layers a node gets. Pure functions. */
#ifndef HEARTH_COORDINATOR_PLACEMENT_H
#define HEARTH_COORDINATOR_PLACEMENT_H

#include <stdint.h>

#include "common/error.h"
#include "model/config.h"

struct layer_range {
    int begin, end; /* [begin, end) */
};

/* 1: rows may travel between layer - 1 and layer: it runs its own indexer, so no selection has to cross the wire. */
int placement_is_legal_cut(const struct model_config *config, int layer);

/* Cuts the model's layers into n ranges at legal cuts so that the largest sum of bytes is smallest (of equals the one whose earlier cuts are lower).
 * layer_bytes [n_layers + n_mtp_layers]; the MTP layer counts to the last range. Fails when there are too few legal cuts. */
enum status placement_split(const struct model_config *config, const uint64_t *layer_bytes, int n, struct layer_range *ranges, struct error *err);

/* Reads "desktop:0-6,laptop:6-10": names and ranges in pipeline order. names point into `text`'s copy *storage (free it). Fails naming the part that
 * is wrong: a gap, an overlap, an illegal cut (with the legal ones), a name twice. */
enum status placement_parse(const struct model_config *config, const char *text, int n_max, const char **names, struct layer_range *ranges, int *n,
                            char **storage, struct error *err);

#endif
