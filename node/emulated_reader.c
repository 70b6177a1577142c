/* A drive that is not there: reads happen for real, then are held until the drive of the given rate and latency would have finished them.
 * With reads in flight together a late wake-up costs no rate: a read's time follows from the clock of its store, not from when the one
 * before was returned. */
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "common/memory.h"
#include "common/splitmix64.h"
#include "node/block_reader_internal.h"

enum { TIMER_SLACK_NS = 1000 }; /* the default, 50 us, is as long as a fast drive's latency */

/* A table and not a heap: 64 at most, and looking through it is nothing against the system call that follows. */
struct held_read {
    struct block_read *read; /* NULL: free */
    uint64_t due_ns;
    int has_ended; /* for real */
};

struct emulated_reader {
    struct block_reader base;
    struct block_reader *inner;
    struct emulated_drive drive;
    uint64_t random;
    uint64_t busy_until_ns[BLOCK_STORES_MAX];
    struct held_read held[BLOCK_READS_MAX];
    atomic_int is_woken;
};

/* ---- the drive's clock ---- */

static uint64_t due_ns(struct emulated_reader *r, const struct block_read *read)
{
    uint64_t *busy_until = &r->busy_until_ns[read->store];
    uint64_t start = read->submitted_ns > *busy_until ? read->submitted_ns : *busy_until;
    *busy_until = start + (uint64_t)((double)read->bytes * 1e9 / r->drive.bytes_per_second);
    return *busy_until + r->drive.latency_ns + (r->drive.jitter_ns ? splitmix64(&r->random) % (r->drive.jitter_ns + 1) : 0);
}

/* ---- the table of reads ---- */

static struct held_read *find(struct emulated_reader *r, const struct block_read *read)
{
    for (int i = 0; i < BLOCK_READS_MAX; i++)
        if (r->held[i].read == read)
            return &r->held[i];
    return NULL;
}

/* Of those that have ended for real, the one that is due first; NULL: none has. */
static struct held_read *first_due(struct emulated_reader *r)
{
    struct held_read *first = NULL;
    for (int i = 0; i < BLOCK_READS_MAX; i++) {
        struct held_read *h = &r->held[i];
        if (h->read && h->has_ended && (!first || h->due_ns < first->due_ns))
            first = h;
    }
    return first;
}

/* Moves to done [max] what is due. *next_ns: when the next is; UINT64_MAX: not known yet. */
static int release(struct emulated_reader *r, struct block_read **done, int max, uint64_t now, uint64_t *next_ns)
{
    struct held_read *h;
    int n = 0;
    while ((h = first_due(r)) && h->due_ns <= now && n < max) {
        h->read->done_ns = now;
        done[n++] = h->read;
        *h = (struct held_read){0};
    }
    *next_ns = h ? h->due_ns : UINT64_MAX;
    return n;
}

static void collect(struct emulated_reader *r, uint64_t timeout_ns)
{
    struct block_read *ended[BLOCK_READS_MAX];
    int n = r->inner->reap(r->inner, ended, BLOCK_READS_MAX, timeout_ns);
    for (int i = 0; i < n; i++) {
        struct held_read *h = find(r, ended[i]);
        CHECK(h && !h->has_ended);
        h->has_ended = 1;
    }
}

/* ---- the seam ---- */

static int submit(struct block_reader *base, struct block_read *read)
{
    struct emulated_reader *r = (struct emulated_reader *)base;
    struct held_read *h = find(r, NULL);
    CHECK(h);
    int rc = r->inner->submit(r->inner, read);
    if (!rc)
        *h = (struct held_read){read, due_ns(r, read), 0};
    return rc;
}

static int reap(struct block_reader *base, struct block_read **done, int max, uint64_t timeout_ns)
{
    static _Thread_local int is_precise;
    struct emulated_reader *r = (struct emulated_reader *)base;
    uint64_t deadline = block_deadline_ns(timeout_ns);
    if (!is_precise)
        is_precise = !prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0); /* of this thread only */
    collect(r, 0);
    for (;;) {
        uint64_t next, now = block_now_ns();
        int is_woken = atomic_exchange(&r->is_woken, 0), n = release(r, done, max, now, &next);
        if (n || is_woken || now >= deadline)
            return n;
        next = next < deadline ? next : deadline;
        collect(r, next == UINT64_MAX ? UINT64_MAX : next - now);
    }
}

/* First the flag: whoever is ended by the inner wake sees it. An inner wake that is seen later than its flag only makes one round more. */
static void wake(struct block_reader *base)
{
    struct emulated_reader *r = (struct emulated_reader *)base;
    atomic_store(&r->is_woken, 1);
    r->inner->wake(r->inner);
}

/* Reads that ended for real touch no memory any more: nothing waits for the drive that is not there. */
static int close_reader(struct block_reader *base, uint64_t timeout_ns)
{
    struct emulated_reader *r = (struct emulated_reader *)base;
    if (!r->inner->close(r->inner, timeout_ns))
        return 0;
    free((char *)base->name);
    free(r);
    return 1;
}

struct block_reader *emulated_reader_new(struct block_reader **inner, const struct emulated_drive *drive, uint64_t seed)
{
    struct block_reader *given = *inner;
    *inner = NULL;
    CHECK(drive->bytes_per_second >= 0);
    if (drive->bytes_per_second == 0)
        return given;
    struct emulated_reader *r = xcalloc(1, sizeof *r);
    char *name = xasprintf("%s behind an emulated drive of %g GB/s and %g us", given->name, drive->bytes_per_second / 1e9,
                           (double)drive->latency_ns / 1e3);
    r->base = (struct block_reader){name, given->depth, submit, reap, wake, close_reader};
    r->inner = given;
    r->drive = *drive;
    r->random = seed;
    return &r->base;
}
