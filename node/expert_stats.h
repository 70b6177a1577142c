/* What an expert store has done since it was opened. */
#ifndef HEARTH_NODE_EXPERT_STATS_H
#define HEARTH_NODE_EXPERT_STATS_H

#include <stdint.h>

/* Of one layer, or of all. */
struct expert_counts {
    uint64_t requests;  /* unions asked for */
    uint64_t hits;      /* experts that were there when they were asked for */
    uint64_t misses;    /* those that were not, or were still on their way */
    uint64_t bytes_read; /* whole verified records, guesses included */
    uint64_t evictions; /* experts given up for others */
    uint64_t wait_ns;   /* computing stood still for want of an expert */
    uint64_t prefetch_bytes, prefetch_useful_bytes, prefetch_wasted_bytes; /* read on a guess; of those asked for later; given up unused */
};

struct expert_stats {
    struct expert_counts sum;
    uint64_t retries, read_errors, checksum_errors, timeouts; /* of reads */
    uint64_t read_ns;          /* time in which a drive had something to read */
    uint64_t slots, slots_used; /* experts that fit in memory; that are there */
    uint64_t experts;          /* of the layer range */
    uint64_t slot_bytes;
    int is_prefetching;
};

#endif
