#include "tests/lib/fault_reader.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/memory.h"

struct armed_fault {
    struct fault fault;
    dev_t device;
    ino_t inode;
    int n;
};

struct fault_reader {
    struct block_reader base;
    struct block_reader *inner;
    pthread_mutex_t mutex; /* faults and n_reads; the rest belongs to the I/O thread */
    int n_faults, n_reads;
    struct armed_fault faults[FAULTS_MAX];
    struct {
        struct block_read *read; /* NULL: free */
        const struct armed_fault *fault;
    } chosen[BLOCK_READS_MAX]; /* in flight and going wrong; those that hang stay */
    int n_hanging, is_abandoned;
};

/* ---- choosing ---- */

static int fits(const struct armed_fault *a, const struct block_read *read)
{
    const struct fault *f = &a->fault;
    struct stat s;
    if ((f->fd > 0 && f->fd != read->fd) || read->offset + read->bytes <= f->offset || (f->bytes && read->offset >= f->offset + f->bytes))
        return 0;
    return !f->path || (!fstat(read->fd, &s) && s.st_dev == a->device && s.st_ino == a->inode);
}

/* NULL: all goes well. */
static const struct armed_fault *choose(struct fault_reader *r, const struct block_read *read)
{
    const struct armed_fault *chosen = NULL;
    pthread_mutex_lock(&r->mutex);
    r->n_reads++;
    for (int i = 0; i < r->n_faults && !chosen; i++) {
        struct armed_fault *a = &r->faults[i];
        if (!fits(a, read))
            continue;
        if (a->fault.skip > 0) {
            a->fault.skip--;
        } else if (a->fault.times) {
            a->fault.times -= a->fault.times > 0;
            a->n++;
            chosen = a;
        }
    }
    pthread_mutex_unlock(&r->mutex);
    return chosen;
}

static int find(const struct fault_reader *r, const struct block_read *read)
{
    for (int i = 0; i < BLOCK_READS_MAX; i++)
        if (r->chosen[i].read == read)
            return i;
    return -1;
}

/* ---- going wrong ---- */

static void spoil(const struct fault *f, struct block_read *read)
{
    uint8_t *bytes = read->into;
    if (f->kind == FAULT_EIO) {
        memset(bytes, 0xa5, read->bytes);
        read->result = -EIO;
    } else if (f->kind == FAULT_SHORT && read->result > 0) {
        read->result /= 2;
        memset(bytes + read->result, 0xa5, read->bytes - (uint32_t)read->result);
    } else if (f->kind == FAULT_FLIP) {
        bytes[f->offset > read->offset ? f->offset - read->offset : 0] ^= 0x10;
    }
}

/* ---- the seam ---- */

static int submit(struct block_reader *base, struct block_read *read)
{
    struct fault_reader *r = (struct fault_reader *)base;
    const struct armed_fault *fault = choose(r, read);
    int hangs = fault && fault->fault.kind == FAULT_HANG;
    if (hangs) {
        read->submitted_ns = clock_now_ns(clock_monotonic());
        r->n_hanging++;
    } else {
        int rc = r->inner->submit(r->inner, read);
        CHECK(!rc); /* the countdown has moved already */
    }
    if (fault) {
        int i = find(r, NULL);
        CHECK(i >= 0);
        r->chosen[i].read = read;
        r->chosen[i].fault = fault;
    }
    return 0;
}

static int reap(struct block_reader *base, struct block_read **done, int max, uint64_t timeout_ns)
{
    struct fault_reader *r = (struct fault_reader *)base;
    int n = r->inner->reap(r->inner, done, max, timeout_ns);
    for (int i = 0; i < n; i++) {
        int at = find(r, done[i]);
        if (at < 0)
            continue;
        spoil(&r->chosen[at].fault->fault, done[i]);
        r->chosen[at].read = NULL;
    }
    return n;
}

static void wake(struct block_reader *base)
{
    struct fault_reader *r = (struct fault_reader *)base;
    r->inner->wake(r->inner);
}

/* What is left behind must stay reachable, or a leak checker would blame the test for what the contract asks. */
static struct fault_reader *abandoned[64];
static int n_abandoned;

static int close_reader(struct block_reader *base, uint64_t timeout_ns)
{
    struct fault_reader *r = (struct fault_reader *)base;
    uint64_t start = clock_now_ns(clock_monotonic());
    if (r->inner && r->inner->close(r->inner, timeout_ns))
        r->inner = NULL;
    if (r->inner || r->n_hanging) {
        uint64_t waited = clock_now_ns(clock_monotonic()) - start, left = waited < timeout_ns ? timeout_ns - waited : 0;
        nanosleep(&(struct timespec){(time_t)(left / 1000000000u), (long)(left % 1000000000u)}, NULL);
        if (!r->is_abandoned) {
            CHECK(n_abandoned < (int)(sizeof abandoned / sizeof *abandoned));
            abandoned[n_abandoned++] = r;
            r->is_abandoned = 1;
        }
        return 0;
    }
    pthread_mutex_destroy(&r->mutex);
    free(r);
    return 1;
}

struct block_reader *fault_reader_new(struct block_reader **inner)
{
    struct fault_reader *r = xcalloc(1, sizeof *r);
    r->base = (struct block_reader){"a reader with faults", (*inner)->depth, submit, reap, wake, close_reader};
    r->inner = *inner;
    *inner = NULL;
    pthread_mutex_init(&r->mutex, NULL);
    return &r->base;
}

int fault_reader_add(struct block_reader *base, const struct fault *fault)
{
    struct fault_reader *r = (struct fault_reader *)base;
    struct armed_fault a = {.fault = *fault};
    struct stat s;
    if (fault->path) {
        CHECK(!stat(fault->path, &s));
        a.device = s.st_dev;
        a.inode = s.st_ino;
    }
    pthread_mutex_lock(&r->mutex);
    CHECK(r->n_faults < FAULTS_MAX);
    int number = r->n_faults++;
    r->faults[number] = a;
    pthread_mutex_unlock(&r->mutex);
    return number;
}

int fault_reader_count(struct block_reader *base, int fault)
{
    struct fault_reader *r = (struct fault_reader *)base;
    pthread_mutex_lock(&r->mutex);
    CHECK(fault >= 0 && fault < r->n_faults);
    int n = r->faults[fault].n;
    pthread_mutex_unlock(&r->mutex);
    return n;
}

int fault_reader_reads(struct block_reader *base)
{
    struct fault_reader *r = (struct fault_reader *)base;
    pthread_mutex_lock(&r->mutex);
    int n = r->n_reads;
    pthread_mutex_unlock(&r->mutex);
    return n;
}
