/* A team of our own: libgomp's threads spin without a bound that a program could set, and three processes on two cores then starve each other (int4
 * matvec at 2 threads, cores shared with other work: 0.6 GB/s with libgomp, 20 to 40 with this; docs/PERFORMANCE.md, "Threads").
 *
 * A call's work is cut into one part per thread. Parts are claimed, by the calling thread too: a thread that the system has put aside before it began
 * costs nothing, because the others take its part. HEARTH_OPENMP builds the OpenMP version for comparison. */
#include "kernels/parallel.h"

#include <sched.h>

#include "common/check.h"

enum { THREADS_MAX = 256 };

static int team_size = 1;

int parallel_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

void parallel_set_threads(int n_threads)
{
    CHECK(n_threads >= 1);
    team_size = n_threads < THREADS_MAX ? n_threads : THREADS_MAX;
}

int parallel_threads(void)
{
    return team_size;
}

struct split {
    int n, grain, parts;
    void (*fn)(void *ctx, int begin, int end);
    void *ctx;
};

/* Part i of parts: whole grains, the first ones get one more. */
static void run_part(const struct split *s, int part)
{
    int grains = (s->n + s->grain - 1) / s->grain, share = grains / s->parts, extra = grains % s->parts;
    int begin = part * share + (part < extra ? part : extra), end = begin + share + (part < extra);
    begin *= s->grain;
    end = end * s->grain < s->n ? end * s->grain : s->n;
    if (begin < end)
        s->fn(s->ctx, begin, end);
}

#ifdef HEARTH_OPENMP

static void run_team(const struct split *s)
{
#pragma omp parallel for schedule(static, 1) num_threads(s->parts)
    for (int i = 0; i < s->parts; i++)
        run_part(s, i);
}

#else

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "common/clock.h"

/* Longer than the serial stretches between two regions of a layer (some microseconds), short enough to be polite. Between two looks the core is
 * given away, so a spinning thread does not keep another process waiting for a whole time slice. */
enum { SPIN_NS = 100000, LOOKS_PER_YIELD = 50 };

/* What is to be claimed: call number << 32 | parts << 16 | next part. One word, so that a claim cannot reach into another call's work. */
static _Alignas(64) atomic_uint_fast64_t claims;
static _Alignas(64) atomic_int n_finished; /* parts of the present call */
static struct split team_split;            /* of the present call; stays while any claimed part runs */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER; /* claims or n_finished changed */
static atomic_int n_sleeping;
static int n_workers; /* started so far; only the calling thread reads it */
static atomic_int is_running; /* a call is under way: a second one, from another thread or from inside a part, would wait for ever */

static void wake_sleepers(void)
{
    if (atomic_load(&n_sleeping)) {
        pthread_mutex_lock(&mutex);
        pthread_cond_broadcast(&moved);
        pthread_mutex_unlock(&mutex);
    }
}

/* Looks for a while, then sleeps, until is_true(). */
static void wait_until(int (*is_true)(uint64_t), uint64_t value)
{
    struct clock *clock = clock_monotonic();
    for (uint64_t start = clock_now_ns(clock); clock_now_ns(clock) - start < SPIN_NS; sched_yield())
        for (int i = 0; i < LOOKS_PER_YIELD; i++) {
            if (is_true(value))
                return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    pthread_mutex_lock(&mutex);
    atomic_fetch_add(&n_sleeping, 1);
    while (!is_true(value))
        pthread_cond_wait(&moved, &mutex);
    atomic_fetch_sub(&n_sleeping, 1);
    pthread_mutex_unlock(&mutex);
}

static int all_finished(uint64_t parts)
{
    return (uint64_t)atomic_load(&n_finished) == parts;
}

static int is_another_call(uint64_t call)
{
    return atomic_load(&claims) >> 32 != call;
}

/* Runs parts of the present call until none is left to claim; returns the call's number. */
static uint64_t run_claimed_parts(void)
{
    uint_fast64_t seen = atomic_load(&claims);
    for (;;) {
        uint64_t parts = seen >> 16 & 0xffff, next = seen & 0xffff;
        if (next >= parts)
            return seen >> 32;
        if (!atomic_compare_exchange_weak(&claims, &seen, seen + 1))
            continue;
        run_part(&team_split, (int)next);
        if ((uint64_t)atomic_fetch_add(&n_finished, 1) + 1 == parts)
            wake_sleepers();
        seen = atomic_load(&claims);
    }
}

static void *work(void *argument)
{
    (void)argument;
    for (;;)
        wait_until(is_another_call, run_claimed_parts());
    return NULL;
}

static void start_workers(int n)
{
    for (; n_workers < n; n_workers++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL))
            return; /* no more threads to be had: the calling thread does the rest itself */
        pthread_detach(thread);
    }
}

static void run_team(const struct split *s)
{
    CHECK(!atomic_exchange(&is_running, 1));
    start_workers(s->parts - 1);
    team_split = *s;
    atomic_store(&n_finished, 0);
    uint64_t call = ((atomic_load(&claims) >> 32) + 1) & 0xffffffff;
    atomic_store(&claims, call << 32 | (uint64_t)s->parts << 16);
    wake_sleepers();
    run_claimed_parts();
    wait_until(all_finished, (uint64_t)s->parts);
    atomic_store(&is_running, 0);
}

#endif

void parallel_for(int n, int grain, void (*fn)(void *ctx, int begin, int end), void *ctx)
{
    CHECK(grain >= 1 && n >= 0);
    struct split s = {n, grain, team_size, fn, ctx};
    int grains = (n + grain - 1) / grain;
    if (s.parts > grains)
        s.parts = grains;
    if (s.parts <= 1) {
        if (n > 0)
            fn(ctx, 0, n);
        return;
    }
    run_team(&s);
}
