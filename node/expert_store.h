/* Holds the routed experts that this node can use without touching the disk, and fetches the others (docs/ARCHITECTURE.md, section 5). The facade over
 * expert_files (where they lie), record_reads (the I/O thread), expert_slots (the memory), expert_policy (who stays) and expert_prefetch (guesses).
 * One store per layer range. All calls come from the compute thread, except expert_store_stats, which any thread may call. */
#ifndef HEARTH_NODE_EXPERT_STORE_H
#define HEARTH_NODE_EXPERT_STORE_H

#include "model/expert_source.h"
#include "model/weights_source.h"
#include "node/block_reader.h"
#include "node/expert_options.h"
#include "node/expert_stats.h"
#include "node/record_reads.h"

/* Whatever the budget: one expert is computed while the next is read. */
enum { EXPERT_SLOTS_MIN = 2 };

/* How records are read: pieces, and how many a drive has at once (docs/PERFORMANCE.md, "Drives"). */
enum { EXPERT_PIECE_BYTES = 1 << 20, EXPERT_READ_DEPTH = 8 };

/* What a request reads ahead of its computing, at least two experts (docs/PERFORMANCE.md, "Few slots"). */
enum { EXPERT_AHEAD_BYTES = 16 << 20 };

/* How many experts of so many bytes that is, 2 to EXPERTS_MAX. */
int expert_reads_ahead(uint64_t record_bytes);

struct expert_store_config {
    struct weights_source *source; /* a pack; borrowed */
    int layer_begin, layer_end;    /* of the model, the MTP layer included where it is owned */
    int n_slots;                   /* at least EXPERT_SLOTS_MIN */
    const struct expert_options *options; /* borrowed while opening */
    uint64_t timeout_ns;           /* a read must be answered within; 0: 30 s */
    /* Tests: puts itself between the store and the reader. Takes over *reader, or NULL. */
    struct block_reader *(*wrap_reader)(void *ctx, struct block_reader **reader);
    void *wrap_ctx;
};

struct expert_store;

/* Opens files and reader, maps the memory, starts the I/O thread, and begins to warm up in the background from the use counts of earlier runs. */
enum status expert_store_open(struct expert_store **out, const struct expert_store_config *config, struct error *err);
void expert_store_close(struct expert_store **store);

struct expert_source *expert_store_source(struct expert_store *store);

/* For whom the following requests are: decides their place in the drive's queue. Rows of class READ_DRAFT are not committed: what they bring in is on
 * probation. */
void expert_store_set_class(struct expert_store *store, enum read_class class);

/* Now and then, when there is nothing to compute: writes the use counts if it is time to. */
void expert_store_idle(struct expert_store *store);

/* A cut: guesses that were not yet issued are withdrawn. */
void expert_store_withdraw(struct expert_store *store);

/* In sum, and of each layer from layer_begin on (layers [layer_end - layer_begin], or NULL; dense layers stay zero). */
void expert_store_stats(struct expert_store *store, struct expert_stats *sum, struct expert_stats *layers);

/* Bytes beside the arena of slots; the arena itself is expert_slots_arena_bytes. */
uint64_t expert_store_overhead_bytes(const struct weights_source *source, int layer_begin, int layer_end, int n_slots);

/* How many experts the range has, and what one takes. */
int expert_store_n_experts(const struct weights_source *source, int layer_begin, int layer_end, uint64_t *record_bytes);

#endif
