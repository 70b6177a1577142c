/* How fast a drive gives what this house reads from it: random extents (records of experts), each split into pieces, some pieces in flight.
 */
#ifndef HEARTH_NODE_DRIVE_RATE_H
#define HEARTH_NODE_DRIVE_RATE_H

#include <stdint.h>

#include "common/error.h"
#include "node/block_reader.h"

/* Something to read. path is for sentences; borrowed. offset and bytes are multiples of BLOCK_ALIGN_BYTES. */
struct drive_extent {
    int fd;
    int store;
    uint64_t offset, bytes;
    const char *path;
};

/* What to measure. Extents are read whole and chosen at random with the seed. */
struct drive_load {
    const struct drive_extent *extents; /* [n_extents], ascending by store; borrowed */
    int n_extents;
    uint32_t piece_bytes; /* a multiple of BLOCK_ALIGN_BYTES */
    int depth;            /* pieces in flight per store; times the number of stores at most reader->depth */
    uint64_t time_ns;     /* no read starts later */
    uint64_t seed;
    int has_small_pages; /* in the memory that is read into; 0: huge ones, as in the store's arena */
};

struct drive_rate {
    double bytes_per_second; /* all stores together, from the first submit to the last end */
    uint64_t p50_ns, p99_ns; /* of one piece, submit to end */
    uint64_t bytes, elapsed_ns;
    uint64_t n_reads;
    uint64_t cpu_ns; /* of all threads of this process meanwhile */
};

/* Reads for time_ns and waits for what is in flight; at least one piece per store is read. Takes depth times stores times piece_bytes of
 * memory for that time. Fails naming the file: an error of the drive, a file that ends early, or STATUS_TIMEOUT when a read does not end in
 * 10 s (the memory it points at then stays allocated, and the reader's close will say 0). */
enum status drive_rate_measure(struct drive_rate *out, struct block_reader *reader, const struct drive_load *load, struct error *err);

/* Latency (p50) of reads of BLOCK_ALIGN_BYTES somewhere in the extents (as in struct drive_load), nothing else in flight on their store.
 * Fails as drive_rate_measure. */
enum status drive_latency_measure(uint64_t *p50_ns, struct block_reader *reader, const struct drive_extent *extents, int n_extents,
                                  uint64_t time_ns, struct error *err);

#endif
