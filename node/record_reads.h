/* The I/O thread: takes whole expert records from the drives, in the order of their class, piece by piece at depth, and verifies each
 * before anyone sees it. A failed or short read, and a record that does not match its checksum, is tried once more, and where several
 * drives have the file, from each that has not failed it, alone; then the read fails with a sentence that names file and record. A read
 * that has not come back by its deadline fails too; its memory stays taken until the drive answers.
 *
 * One mutex guards all records and whatever the owner puts beside it: record_reads_lock. */
#ifndef HEARTH_NODE_RECORD_READS_H
#define HEARTH_NODE_RECORD_READS_H

#include <pthread.h>

#include "node/block_reader.h"
#include "node/expert_files.h"

/* The order of the drive's queue; a smaller class goes first. */
enum read_class { READ_COMMITTED, READ_PREFILL, READ_DRAFT, READ_PREFETCH, READ_WARM, N_READ_CLASSES };

enum record_state {
    RECORD_IDLE,    /* nothing asked for, or the result was taken */
    RECORD_QUEUED,  /* no piece was issued */
    RECORD_READING, /* some piece was issued */
    RECORD_LOST,    /* has failed by its deadline and pieces are still out */
};

enum { RECORD_PIECES_MAX = 64 };

/* One record on its way into memory. The owner's storage, zeroed before the first use. */
struct record_read {
    const struct expert_file *file;
    int expert;
    uint8_t *into;
    enum read_class class;
    /* of the I/O thread, under the lock */
    enum record_state state;
    int n_pieces, n_issued, n_hashed, n_out; /* n_out: pieces that the reader has now */
    int attempt, is_withdrawn;
    uint64_t landed;        /* bit per piece */
    unsigned stores;        /* bit per store that pieces of this attempt came from */
    unsigned failed_stores; /* bit per store that has failed it: further tries go to others that have the file */
    uint64_t order;
    struct error error;       /* status 0: none yet */
    struct record_read *next; /* of the queue */
};

struct record_reads_config {
    struct expert_files *files;  /* borrowed */
    struct block_reader *reader; /* taken over */
    int store_depth;             /* pieces in flight per store */
    uint32_t piece_bytes;        /* a multiple of 4096 */
    uint64_t timeout_ns;         /* a piece must be there this long after it was issued */
    /* Called by the I/O thread with the lock held: the record is there and verified (status 0), or has failed (read->error). When the
     * pieces of a lost or a withdrawn record have all come back, it is called with STATUS_CANCELLED. */
    void (*on_end)(void *ctx, struct record_read *read, enum status status);
    /* Called with the lock held when no read is queued or in flight: may queue reads (warming); returns whether it did. */
    int (*on_idle)(void *ctx);
    void *ctx;
};

struct record_reads_counters {
    uint64_t retries, read_errors, checksum_errors, timeouts;
    uint64_t busy_ns; /* time with at least one piece in flight, up to now */
};

struct record_reads;

enum status record_reads_start(struct record_reads **out, const struct record_reads_config *config, struct error *err);

/* Ends the thread: queued reads are dropped (without on_end), those in flight are waited for, at most timeout_ns. 0: the drive still holds
 * some; their memory must never be freed. */
int record_reads_stop(struct record_reads **reads, uint64_t timeout_ns);

pthread_mutex_t *record_reads_lock(struct record_reads *reads);

/* With the lock held. file, expert, into and class are set by the owner and the state is IDLE. record_reads_kick afterwards, once for
 * several. */
void record_reads_queue(struct record_reads *reads, struct record_read *read);
void record_reads_set_class(struct record_reads *reads, struct record_read *read, enum read_class class);
void record_reads_kick(struct record_reads *reads); /* with or without the lock */
/* 1: nothing of it is in flight and it is IDLE now. 0: no more of it is issued, and when what is out has come home, on_end says
 * STATUS_CANCELLED. */
int record_reads_withdraw(struct record_reads *reads, struct record_read *read);
/* Records of a class of which some piece is not yet issued, oldest first, linked by `next`. */
struct record_read *record_reads_first(const struct record_reads *reads, enum read_class class);
struct record_reads_counters record_reads_counters(const struct record_reads *reads);

#endif
