#include "cli/kernel_rates.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/check.h"
#include "common/huge_pages.h"
#include "common/clock.h"
#include "common/memory.h"
#include "kernels/parallel.h"
#include "kernels/probe.h"

const struct rates_shape rates_shapes[N_RATES_SHAPES] = {{"gate", 2048, 6144}, {"down", 6144, 2048}};

enum {
    GRAIN = 16,               /* rows, as the engine splits */
    CACHED_BYTES = 256 << 10, /* of weights a thread in the cache measurement: they and 64 quantised rows fit in a second cache of 1 MiB */
    PASSES_MAX = 201,
    PASSES_MIN = 5,
    PASS_NS = 10000000,
};

/* ---- weights and inputs ---- */

/* Any values will do that are finite and no int8 -128. */
static void fill_matrix(enum weight_format format, char *data, size_t data_bytes, char *scales, size_t scales_bytes, uint64_t random)
{
    for (size_t i = 0; i < data_bytes; i += 8) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        uint64_t word = format == FORMAT_F32    ? (random & 0x807fffff807fffffu) | 0x3f0000003f000000u
                        : format == FORMAT_BF16 ? (random & 0x807f807f807f807fu) | 0x3f003f003f003f00u
                        : format == FORMAT_INT8 ? random | 0x0101010101010101u
                                                : random;
        memcpy(data + i, &word, 8);
    }
    for (size_t i = 0; i < scales_bytes; i += 4) {
        uint32_t word = format == FORMAT_INT8 ? 0x3c000000u + (uint32_t)i : 0x20012000u + (uint32_t)(i & 0xff);
        memcpy(scales + i, &word, 4);
    }
}

void rates_weights_fill(struct rates_weights *w, enum weight_format format)
{
    size_t data = (size_t)rates_shapes[0].rows * format_row_bytes(format, rates_shapes[0].cols);
    size_t scales = (size_t)rates_shapes[0].rows * format_scale_row_bytes(format, rates_shapes[0].cols);
    w->format = format;
    w->matrix_bytes = data + scales;
    w->n_matrices = (int)(w->bytes / w->matrix_bytes);
    w->next = 0;
    for (int i = 0; i < w->n_matrices; i++) {
        char *at = w->base + (size_t)i * w->matrix_bytes;
        fill_matrix(format, at, data, at + data, scales, (uint64_t)i + 88172645463325252u);
    }
}

enum status rates_weights_open(struct rates_weights *w, size_t bytes, struct error *err)
{
    w->bytes = bytes;
    w->base = huge_pages_map(bytes, 1);
    if (!w->base)
        return error_errno(err, STATUS_NO_MEMORY, "cannot map %zu MiB of weights", bytes >> 20);
    return STATUS_OK;
}

void rates_weights_release(struct rates_weights *w)
{
    huge_pages_unmap(w->base, w->bytes);
}

static struct matrix weights_matrix(const struct rates_weights *w, int index, const struct rates_shape *shape)
{
    const char *data = w->base + (size_t)index * w->matrix_bytes;
    return (struct matrix){w->format, shape->rows, shape->cols, data, data + (size_t)shape->rows * format_row_bytes(w->format, shape->cols),
                           1.0f};
}

void rates_inputs_init(struct rates_inputs *in)
{
    in->x = xcalloc((size_t)RATES_X_ROWS_MAX * 6144, sizeof *in->x);
    in->out = xcalloc((size_t)RATES_X_ROWS_MAX * 6144, sizeof *in->out);
    CHECK(!posix_memalign(&in->quantized, 64, quantized_rows_bytes(RATES_X_ROWS_MAX, 6144)));
    for (int i = 0; i < RATES_X_ROWS_MAX * 6144; i++)
        in->x[i] = (float)(i % 1009 * 7919 % 1009 - 504) * 0.001f;
}

void rates_inputs_release(struct rates_inputs *in)
{
    free(in->x);
    free(in->out);
    free(in->quantized);
}

/* ---- one measurement ---- */

/* Work for parallel_for over the rows of a matrix; fn NULL: plain reading. */
struct job {
    matmul_fn *fn;
    struct matmul_args args;
    int repeat;
    uint64_t cpu_ns, sink; /* summed over threads */
};

static uint64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void run_rows(void *ctx, int begin, int end)
{
    struct job *job = ctx;
    const struct matrix part = matrix_rows(job->args.m, begin, end - begin);
    uint64_t start = thread_cpu_ns(), sink = 0;
    if (job->fn) {
        struct matmul_args args = job->args;
        args.row_begin = begin;
        args.row_end = end;
        for (int i = 0; i < job->repeat; i++)
            job->fn(&args);
    } else {
        sink = probe_read(part.data, (size_t)part.rows * format_row_bytes(part.format, part.cols)) +
               probe_read(part.scales, (size_t)part.rows * format_scale_row_bytes(part.format, part.cols));
    }
    __atomic_fetch_add(&job->cpu_ns, thread_cpu_ns() - start, __ATOMIC_RELAXED);
    __atomic_fetch_add(&job->sink, sink, __ATOMIC_RELAXED);
}

static void run_dot(void *ctx, int begin, int end)
{
    struct job *job = ctx;
    uint64_t start = thread_cpu_ns(), macs = 0;
    for (int i = begin; i < end; i++)
        macs += probe_dot(100000);
    __atomic_fetch_add(&job->cpu_ns, thread_cpu_ns() - start, __ATOMIC_RELAXED);
    __atomic_fetch_add(&job->sink, macs, __ATOMIC_RELAXED);
}

struct pinning {
    cpu_set_t allowed;
    int threads, n_here;
};

/* Any thread may claim any part, so each waits in its part until all are there; a thread that cannot be had is waited for a second. */
static void pin_thread(void *ctx, int begin, int end)
{
    struct pinning *p = ctx;
    CHECK(end - begin == 1);
    __atomic_fetch_add(&p->n_here, 1, __ATOMIC_RELAXED);
    uint64_t start = clock_now_ns(clock_monotonic());
    while (__atomic_load_n(&p->n_here, __ATOMIC_RELAXED) < p->threads && clock_now_ns(clock_monotonic()) - start < 1000000000)
        sched_yield();
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &p->allowed) && seen++ == begin)
            CPU_SET(cpu, &one);
    if (CPU_COUNT(&one) == 1)
        sched_setaffinity(0, sizeof one, &one); /* a wish, like huge pages */
}

void rates_set_threads(int threads)
{
    parallel_set_threads(threads);
    static struct pinning p;
    if (!CPU_COUNT(&p.allowed)) /* before the first thread was pinned */
        sched_getaffinity(0, sizeof p.allowed, &p.allowed);
    sched_setaffinity(0, sizeof p.allowed, &p.allowed); /* threads that start now inherit it */
    p.threads = threads;
    p.n_here = 0;
    parallel_for(threads, 1, pin_thread, &p);
}

/* The same measurements again and again; PASSES_MAX at most. */
struct passes {
    double value[N_SERIES][PASSES_MAX];
    int n;
};

/* The next n matrices of the weights, in turn, so that none is left in a cache; GB/s by CPU time, and by the wall clock where asked. */
static double measure_stream(struct rates_weights *w, const struct rates_point *p, matmul_fn *fn, const struct matmul_args *args, int n,
                             double *wall)
{
    struct job job = {.fn = fn, .args = *args, .repeat = 1};
    uint64_t start = clock_now_ns(clock_monotonic());
    for (int i = 0; i < n; i++) {
        struct matrix m = weights_matrix(w, w->next, p->shape);
        w->next = (w->next + 1) % w->n_matrices;
        job.args.m = &m;
        parallel_for(m.rows, GRAIN, run_rows, &job);
    }
    double bytes = (double)n * (double)w->matrix_bytes;
    if (wall)
        *wall = bytes / (double)(clock_now_ns(clock_monotonic()) - start);
    return bytes * p->threads / (double)job.cpu_ns;
}

/* GMAC/s over a few rows that stay in the cache. */
static double measure_cache(const struct rates_weights *w, const struct rates_point *p, const struct matmul_args *args, int repeat)
{
    struct matrix m = weights_matrix(w, 0, p->shape);
    m.rows = CACHED_BYTES / (int)format_row_bytes(m.format, m.cols) / GRAIN * GRAIN;
    m.rows = (m.rows ? m.rows : GRAIN) * p->threads;
    m.rows = m.rows < p->shape->rows ? m.rows : p->shape->rows; /* many threads: each has fewer of them */
    struct job job = {.fn = p->fn, .args = *args, .repeat = repeat};
    job.args.m = &m;
    parallel_for(m.rows, GRAIN, run_rows, &job); /* fetches the rows */
    job.cpu_ns = 0;
    parallel_for(m.rows, GRAIN, run_rows, &job);
    return (double)m.rows * m.cols * p->n_x * repeat * p->threads / (double)job.cpu_ns;
}

static double measure_peak(const struct rates_point *p)
{
    struct job job = {.repeat = 1};
    parallel_for(p->threads, 1, run_dot, &job);
    return (double)job.sink * p->threads / (double)job.cpu_ns;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct rates medians(struct passes *passes, int is_disturbed)
{
    struct rates r = {.is_disturbed = is_disturbed};
    for (int k = 0; k < N_SERIES; k++) {
        qsort(passes->value[k], (size_t)passes->n, sizeof passes->value[k][0], compare_doubles);
        r.median[k] = passes->value[k][passes->n / 2];
    }
    return r;
}

static void passes_add(struct passes *passes, const double value[N_SERIES])
{
    for (int k = 0; k < N_SERIES; k++)
        passes->value[k][passes->n] = value[k];
    passes->n++;
}

struct rates rates_measure(struct rates_weights *w, const struct rates_inputs *in, const struct kernels *best, const struct rates_point *p,
                           double seconds)
{
    struct quantized_rows q;
    quantized_rows_place(&q, p->n_x, p->shape->cols, in->quantized);
    for (int s = 0; s < p->n_x; s++) {
        size_t at = (size_t)s * (size_t)q.n_blocks;
        best->quantize_row(in->x + s * p->shape->cols, q.cols, q.values + at * BLOCK_ELEMENTS, q.scales + at * 2,
                           q.lane_sums8 + at * LANES);
    }
    struct matmul_args args = {
        .x = in->x, .x_stride = (size_t)p->shape->cols, .q = &q, .n_x = p->n_x, .out = in->out, .out_stride = (size_t)p->shape->rows};

    /* As many matrices a pass as take PASS_NS, by a first one that also wakes the team. */
    double wall;
    measure_stream(w, p, p->fn, &args, 1, &wall);
    double matrix_ns = (double)w->matrix_bytes / wall;
    int n = matrix_ns < PASS_NS ? (int)(PASS_NS / matrix_ns) : 1, repeat = n;
    n = n > w->n_matrices / 2 ? w->n_matrices / 2 : n;

    static struct passes all, quiet;
    all.n = quiet.n = 0;
    uint64_t start = clock_now_ns(clock_monotonic());
    while (all.n < PASSES_MIN || (all.n < PASSES_MAX && (double)(clock_now_ns(clock_monotonic()) - start) < seconds * 1e9)) {
        double v[N_SERIES];
        v[READ] = measure_stream(w, p, NULL, &args, n, &v[READ_WALL]);
        v[STREAM] = measure_stream(w, p, p->fn, &args, n, &v[STREAM_WALL]);
        v[CACHE] = measure_cache(w, p, &args, 4 * repeat);
        v[PEAK] = measure_peak(p);
        passes_add(&all, v);
        if (v[READ_WALL] > 0.8 * v[READ] && v[STREAM_WALL] > 0.8 * v[STREAM])
            passes_add(&quiet, v);
    }
    return quiet.n >= PASSES_MIN / 2 ? medians(&quiet, 0) : medians(&all, 1);
}

struct rates_usual rates_measure_usual(struct rates_weights *w, const struct rates_inputs *in, const struct kernels *best, int n_x,
                                       int threads, double seconds)
{
    struct rates_point point = {kernels_matmul(best, w->format), format_info(w->format)->name, &rates_shapes[0], n_x, threads};
    struct rates r = rates_measure(w, in, best, &point, seconds);
    return (struct rates_usual){.kernel = r.median[r.is_disturbed ? STREAM : STREAM_WALL] * 1e9,
                                .read = r.median[r.is_disturbed ? READ : READ_WALL] * 1e9,
                                .is_disturbed = r.is_disturbed};
}
