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
    uint64_t prefetch_useful_bytes; /* bytes read before anybody asked for them, of an expert that then was asked for */
    uint64_t prefetch_wasted_bytes; /* the same, of one that gave up its slot before anybody did */
    uint64_t wait_ns;               /* nanoseconds that computing stood still because no expert it needs had landed */
    uint64_t slots_used;            /* slots that hold an expert, or one that is landing */
    /* only in sum: layers share them */
    uint64_t read_errors;     /* pieces of records that failed, came short or did not come in time, each try counted */
    uint64_t retries;         /* records that were read again, for whatever reason */
    uint64_t checksum_errors; /* records that landed with another checksum than the pack's, each try counted */
    uint64_t read_ns;         /* nanoseconds in which a drive had something to read */
    uint64_t slots;           /* experts that fit into memory */
};

enum { EXPERT_STATS_FIGURES = sizeof(struct expert_stats) / sizeof(uint64_t) };

static inline void expert_stats_add(struct expert_stats *sum, const struct expert_stats *part)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)part;
    for (size_t i = 0; i < EXPERT_STATS_FIGURES; i++)
        to[i] += from[i];
}

/* What was counted since `before`; slots and slots_used are as they are now. */
static inline struct expert_stats expert_stats_since(const struct expert_stats *now, const struct expert_stats *before)
{
    struct expert_stats since = *now;
    uint64_t *to = (uint64_t *)&since;
    const uint64_t *from = (const uint64_t *)before;
    for (size_t i = 0; i < EXPERT_STATS_FIGURES; i++)
        to[i] -= from[i];
    since.slots = now->slots;
    since.slots_used = now->slots_used;
    return since;
}

#endif
