/* Block reads by pread, one thread per read in flight: for places where io_uring is not allowed. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/memory.h"
#include "node/block_reader_internal.h"

enum { STACK_BYTES = 256 << 10 };

/* Reads in the order they came. */
struct read_queue {
    struct block_read *reads[BLOCK_READS_MAX];
    int first, n;
};

struct pread_reader {
    struct block_reader base;
    char name[32];
    pthread_mutex_t mutex;
    pthread_cond_t has_work, has_ended; /* has_ended: a read, a wake, or a thread */
    struct read_queue waiting, ended;
    int n_flying; /* reads not yet returned */
    int is_woken, is_closing;
    int n_threads, n_running;
    pthread_t threads[BLOCK_READS_MAX];
};

static void queue_put(struct read_queue *q, struct block_read *read)
{
    CHECK(q->n < BLOCK_READS_MAX);
    q->reads[(q->first + q->n++) % BLOCK_READS_MAX] = read;
}

static struct block_read *queue_take(struct read_queue *q)
{
    CHECK(q->n > 0);
    struct block_read *read = q->reads[q->first];
    q->first = (q->first + 1) % BLOCK_READS_MAX;
    q->n--;
    return read;
}

/* ---- the threads ---- */

/* One call: after a short read a next one would start where O_DIRECT cannot, and a regular file is read short only at its end. */
static int32_t read_block(const struct block_read *read)
{
    ssize_t n;
    do
        n = pread(read->fd, read->into, read->bytes, (off_t)read->offset);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : (int32_t)n;
}

static void *run(void *argument)
{
    struct pread_reader *r = argument;
    pthread_mutex_lock(&r->mutex);
    for (;;) {
        while (!r->waiting.n && !r->is_closing)
            pthread_cond_wait(&r->has_work, &r->mutex);
        if (r->is_closing)
            break;
        struct block_read *read = queue_take(&r->waiting);
        pthread_mutex_unlock(&r->mutex);
        read->result = read_block(read);
        read->done_ns = block_now_ns();
        pthread_mutex_lock(&r->mutex);
        queue_put(&r->ended, read);
        pthread_cond_signal(&r->has_ended);
    }
    r->n_running--;
    pthread_cond_signal(&r->has_ended);
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

/* Signals are for the threads that know what to do with them. */
static int start_threads(struct pread_reader *r)
{
    sigset_t all, old;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_mutex_lock(&r->mutex);
    while (r->n_threads < r->base.depth && !pthread_create(&r->threads[r->n_threads], &attributes, run, r))
        r->n_running = ++r->n_threads;
    pthread_mutex_unlock(&r->mutex);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return r->n_threads == r->base.depth;
}

/* ---- the seam ---- */

static int submit(struct block_reader *base, struct block_read *read)
{
    struct pread_reader *r = (struct pread_reader *)base;
    block_read_check(read);
    pthread_mutex_lock(&r->mutex);
    CHECK(r->n_flying < base->depth);
    r->n_flying++;
    read->submitted_ns = block_now_ns();
    queue_put(&r->waiting, read);
    pthread_cond_signal(&r->has_work);
    pthread_mutex_unlock(&r->mutex);
    return 0;
}

static int reap(struct block_reader *base, struct block_read **done, int max, uint64_t timeout_ns)
{
    struct pread_reader *r = (struct pread_reader *)base;
    struct timespec deadline = block_timespec(block_deadline_ns(timeout_ns));
    int n = 0, rc = 0;
    pthread_mutex_lock(&r->mutex);
    while (timeout_ns && !r->ended.n && !r->is_woken && !rc)
        rc = pthread_cond_timedwait(&r->has_ended, &r->mutex, &deadline);
    while (n < max && r->ended.n)
        done[n++] = queue_take(&r->ended);
    r->n_flying -= n;
    r->is_woken = 0;
    pthread_mutex_unlock(&r->mutex);
    return n;
}

static void wake(struct block_reader *base)
{
    struct pread_reader *r = (struct pread_reader *)base;
    pthread_mutex_lock(&r->mutex);
    r->is_woken = 1;
    pthread_cond_signal(&r->has_ended);
    pthread_mutex_unlock(&r->mutex);
}

static int close_reader(struct block_reader *base, uint64_t timeout_ns)
{
    struct pread_reader *r = (struct pread_reader *)base;
    struct timespec deadline = block_timespec(block_deadline_ns(timeout_ns));
    int rc = 0;
    pthread_mutex_lock(&r->mutex);
    r->is_closing = 1; /* reads no thread has taken yet are dropped */
    pthread_cond_broadcast(&r->has_work);
    while (r->n_running && !rc)
        rc = pthread_cond_timedwait(&r->has_ended, &r->mutex, &deadline);
    int has_ended = !r->n_running;
    pthread_mutex_unlock(&r->mutex);
    if (!has_ended)
        return 0;
    for (int i = 0; i < r->n_threads; i++)
        pthread_join(r->threads[i], NULL);
    pthread_cond_destroy(&r->has_work);
    pthread_cond_destroy(&r->has_ended);
    pthread_mutex_destroy(&r->mutex);
    free(r);
    return 1;
}

enum status pread_reader_open(struct block_reader **out, int depth, struct error *err)
{
    CHECK(depth > 0 && depth <= BLOCK_READS_MAX);
    struct pread_reader *r = xcalloc(1, sizeof *r);
    pthread_condattr_t monotonic;
    snprintf(r->name, sizeof r->name, "pread with %d threads", depth);
    r->base = (struct block_reader){r->name, depth, submit, reap, wake, close_reader};
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->has_work, NULL);
    pthread_cond_init(&r->has_ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (!start_threads(r)) {
        int n = r->n_threads;
        close_reader(&r->base, UINT64_MAX);
        return error_set(err, STATUS_NO_MEMORY, "pread: %d threads wanted, %d to be had; raise the limit of processes (ulimit -u)", depth,
                         n);
    }
    *out = &r->base;
    return STATUS_OK;
}
