/* What an expert store has done: of one layer, or of all together. Every count runs since the store was opened. */
#ifndef HEARTH_NODE_EXPERT_STATS_H
#define HEARTH_NODE_EXPERT_STATS_H

#include <stddef.h>
#include <stdint.h>

/* Whole numbers of 64 bits only: they are added as an array, and node_metrics.c has a row for each. */
struct expert_stats {
    uint64_t requests;              /* requests of a layer: one a unit and layer, for the union of its rows' experts */
    uint64_t hits;                  /* experts asked for that were in memory when they were asked for */
    uint64_t misses;                /* experts asked for that had to be read, or were still on their way */
    uint64_t reads;                 /* records read and verified, prefetched ones included */
    uint64_t bytes_read;            /* bytes of these */
    uint64_t evictions;             /* experts that gave up their slot to another */
    uint64_t read_errors;           /* pieces of records that failed, came short or did not come in time, each try counted */
    uint64_t retries;               /* records that were read a second time, for whatever reason */
    uint64_t checksum_errors;       /* records that landed with another checksum than the pack's, each try counted */
    uint64_t prefetch_bytes;        /* bytes read before anybody asked for them; part of bytes_read */
    uint64_t prefetch_useful_bytes; /* of these: the expert was asked for before it gave up its slot */
    uint64_t prefetch_wasted_bytes; /* of these: it gave up its slot without having been asked for; the rest is still undecided */
    uint64_t wait_ns;               /* nanoseconds that computing stood still because no expert it needs had landed */
    uint64_t read_ns;               /* nanoseconds in which a drive had something to read */
    uint64_t slots;                 /* experts that fit into memory: only in sum, layers share them */
    uint64_t slots_used;            /* of these: slots that hold an expert, or one that is landing */
};

enum { EXPERT_STATS_FIGURES = sizeof(struct expert_stats) / sizeof(uint64_t) };

static inline void expert_stats_add(struct expert_stats *sum, const struct expert_stats *part)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)part;
    for (size_t i = 0; i < EXPERT_STATS_FIGURES; i++)
        to[i] += from[i];
}

#endif
