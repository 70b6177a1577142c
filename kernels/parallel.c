#include "kernels/parallel.h"

#include "common/check.h"

#ifdef HEARTH_PTHREAD_TEAM
#include <pthread.h>
#else
#include <omp.h>
#endif

enum { THREADS_MAX = 256 };

static int team_size = 1;

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

#ifdef HEARTH_PTHREAD_TEAM

/* A team that the thread sanitizer understands (libgomp's barriers look like races to it). Threads are started per call: only tests use it. */
struct worker {
    const struct split *split;
    int part;
};

static void *work(void *argument)
{
    struct worker *w = argument;
    run_part(w->split, w->part);
    return NULL;
}

static void run_team(const struct split *s)
{
    pthread_t threads[THREADS_MAX];
    struct worker workers[THREADS_MAX];
    for (int i = 1; i < s->parts; i++) {
        workers[i] = (struct worker){s, i};
        CHECK(!pthread_create(&threads[i], NULL, work, &workers[i]));
    }
    run_part(s, 0);
    for (int i = 1; i < s->parts; i++)
        pthread_join(threads[i], NULL);
}

#else

static void run_team(const struct split *s)
{
#pragma omp parallel for schedule(static, 1) num_threads(s->parts)
    for (int i = 0; i < s->parts; i++)
        run_part(s, i);
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
