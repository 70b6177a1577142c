/* Reads blocks of files into memory, several at once. A seam: uring_reader (io_uring), pread_reader (threads, where io_uring is not
 * allowed), emulated_reader (either behind a device clock), and what tests put in between. A reader knows nothing of experts: order,
 * priorities, checksums and second tries are the caller's. All calls but wake come from one thread (the I/O thread). */
#ifndef HEARTH_NODE_BLOCK_READER_H
#define HEARTH_NODE_BLOCK_READER_H

#include <stdint.h>

#include "common/error.h"

enum { BLOCK_ALIGN_BYTES = 4096, BLOCK_READS_MAX = 64, BLOCK_READ_BYTES_MAX = 1 << 30 };

/* One read. The caller's storage; must stay until reap has returned it. */
struct block_read {
    int fd;
    int store;       /* which drive, 0 .. BLOCK_STORES_MAX - 1: only an emulated reader cares */
    uint64_t offset; /* in the file; offset, bytes and into are multiples of BLOCK_ALIGN_BYTES */
    uint32_t bytes;
    void *into;
    /* filled by the reader */
    int32_t result; /* bytes read (fewer than asked: the file ends there), or -errno: a bad fd or an I/O error comes this way, not from
                       submit */
    uint64_t submitted_ns, done_ns; /* monotonic; done: when the reader saw it end */
};

enum { BLOCK_STORES_MAX = 8 };

struct block_reader {
    const char *name; /* for the log: "io_uring", "pread with 8 threads" */
    int depth;        /* reads that may be in flight together, at most BLOCK_READS_MAX */

    /* Starts a read. 0, or -errno: nothing was started. Never blocks on the drive. At most `depth` at once. */
    int (*submit)(struct block_reader *reader, struct block_read *read);

    /* Waits until a read has ended, wake was called, or timeout_ns has passed (0: only looks; UINT64_MAX: for ever). Returns how many ended
     * reads stand in done [max]; their order says nothing. What was submitted reaches the kernel here at the latest. */
    int (*reap)(struct block_reader *reader, struct block_read **done, int max, uint64_t timeout_ns);

    /* Makes the present or the next reap return at once. Any thread. */
    void (*wake)(struct block_reader *reader);

    /* Waits at most timeout_ns for reads in flight; those that end, or are called off, are returned to nobody. 1: freed. 0: some did not
     * end; the reader and the memory they point at must stay, for good or until another close returns 1. No other call may follow. */
    int (*close)(struct block_reader *reader, uint64_t timeout_ns);
};

/* io_uring. Fails with STATUS_UNSUPPORTED and the kernel's reason where it is not allowed (seccomp, kernel.io_uring_disabled, an old
 * kernel). */
enum status uring_reader_open(struct block_reader **out, int depth, struct error *err);

/* One thread per read in flight. */
enum status pread_reader_open(struct block_reader **out, int depth, struct error *err);

/* kind: "auto" (io_uring if it is allowed, else pread; the log says which and why), "io_uring", "pread". */
enum status block_reader_open(struct block_reader **out, const char *kind, int depth, struct error *err);

/* What drive an emulated reader pretends to be. */
struct emulated_drive {
    double bytes_per_second;        /* 0: no emulation */
    uint64_t latency_ns, jitter_ns; /* every read: latency plus a seeded pseudo-random part of jitter */
};

/* "GB/s,us[,jitter us]", e.g. "3.5,80" or "1,80,200"; rates are decimal. NULL or "": no emulation. */
enum status emulated_drive_parse(const char *text, struct emulated_drive *drive, struct error *err);

/* Wraps a reader: every read is done for real and then held until the drive would have finished it: start = max(submitted, busy until),
 * busy until = start + bytes / rate, done = busy until + latency + jitter. One clock per store; an idle drive saves up no credit. Takes
 * over *inner; a drive of rate 0 gives it back as it is. A read that truly ends later than the drive would have is not held at all: the
 * drive beneath must be the faster one. */
struct block_reader *emulated_reader_new(struct block_reader **inner, const struct emulated_drive *drive, uint64_t seed);

#endif
