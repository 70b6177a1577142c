/* One token timeline and what the layers of this process remember of it: a table of cache blocks and two logical lengths.
 * Caches are written at the absolute position; lowering a length undoes nothing (spec/pipeline_protocol.md, rule 6). */
#ifndef HEARTH_MODEL_SEQUENCE_STATE_H
#define HEARTH_MODEL_SEQUENCE_STATE_H

#include "common/error.h"
#include "model/position_cache.h"

struct sequence_state {
    struct position_cache *cache;
    int *blocks; /* [blocks_max] block numbers, [n_blocks] in use */
    int n_blocks, blocks_max;
    int positions_max; /* what it may grow to; its last block may have room for more, the scratch of the layers has not */
    int length;     /* rows of the main layers that are valid */
    int mtp_length; /* rows of the MTP layer that are true (made from committed tokens) */
};

/* A sequence that may grow to `positions`; takes its blocks at once, so that it cannot fail later, unless another is forked from it.
 * STATUS_BUSY when they are not there. */
enum status sequence_state_init(struct sequence_state *sequence, struct position_cache *cache, int positions, struct error *err);
void sequence_state_release(struct sequence_state *sequence);

/* A second sequence that begins with the first `length` positions of another and shares its blocks. Both may go on independently. The MTP row of position
 * length - 1 depends on the token after it and does not count. */
enum status sequence_state_fork(struct sequence_state *sequence, const struct sequence_state *from, int length, int positions, struct error *err);

/* Before rows [begin, end) are written: makes their blocks this sequence's own. STATUS_INVALID beyond positions_max; STATUS_BUSY when a block that
 * another sequence shares needs a copy and there is no free one. */
enum status sequence_state_prepare(struct sequence_state *sequence, int begin, int end, struct error *err);

/* Lowers the length; rows at and above it are void. */
void sequence_state_truncate(struct sequence_state *sequence, int length);

/* Where the latent row [latent_width] or index key [index_dim] of a position lies; consecutive positions of one block are consecutive rows. */
float *sequence_state_latent(const struct sequence_state *sequence, int layer, int position);
float *sequence_state_index_key(const struct sequence_state *sequence, int layer, int position);

#endif
