/* hearth bench kernels: how near the matmul kernels come to what this machine can do. For every format, shape and number of x rows it
 * alternates four measurements until the time is up, so that all four see the same noise, and prints medians:
 * - read: plain reading of the same memory (kernels/probe.h);
 * - stream: the kernel over matrices that come from memory, scales included;
 * - cache: the same kernel over a matrix that stays in the second cache;
 * - peak: the widest dot instruction, registers only.
 * Work is split by parallel_for as the engine does. Rates count each thread's own CPU time, which other programs disturb least; the wall
 * clock's rate stands beside it. */
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "cli/commands.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/memory.h"
#include "kernels/parallel.h"
#include "kernels/probe.h"
#include "kernels/registry.h"

struct bench_options {
    const char *isa, *format, *shape;
    int64_t threads, rows, memory;
    double seconds;
};

static const struct option_row rows[] = {
    {"isa", OPTION_CHOICE, offsetof(struct bench_options, isa), "auto", 0, 0, "auto|scalar|avx2|avx512|all", "ISA",
     "what auto chooses, the best of one instruction set, or every variant that runs here"},
    {"format", OPTION_CHOICE, offsetof(struct bench_options, format), "all", 0, 0, "all|f32|bf16|int8|int4", "FORMAT",
     "only this weight format"},
    {"shape", OPTION_CHOICE, offsetof(struct bench_options, shape), "all", 0, 0, "all|gate|down", "SHAPE",
     "only an expert's gate (2048x6144) or down matrix (6144x2048)"},
    {"threads", OPTION_INT, offsetof(struct bench_options, threads), "0", 0, 256, NULL, "N",
     "only this number of threads; 0: first 1, then 2"},
    {"rows", OPTION_INT, offsetof(struct bench_options, rows), "0", 0, 64, NULL, "S", "only this number of x rows; 0: 1, 2, 4, 8 and 32"},
    {"memory", OPTION_SIZE, offsetof(struct bench_options, memory), "768M", 128 << 20, 1e12, NULL, "SIZE", "weights to stream through"},
    {"seconds", OPTION_NUMBER, offsetof(struct bench_options, seconds), "0.3", 0.01, 60, NULL, "T", "time for each line"},
};

static const struct shape {
    const char *name;
    int rows, cols;
} shapes[] = {{"gate", 2048, 6144}, {"down", 6144, 2048}};

enum {
    X_ROWS_MAX = 64,
    GRAIN = 16,               /* rows, as the engine splits */
    CACHED_BYTES = 256 << 10, /* of weights a thread in the cache measurement: they and 64 quantised rows fit in a second cache of 1 MiB */
    PASSES_MAX = 201,
    PASSES_MIN = 5,
    PASS_NS = 10000000,
};

/* ---- weights and inputs ---- */

struct weights {
    enum weight_format format;
    char *base;
    size_t bytes, matrix_bytes; /* one matrix and its scales, both shapes alike */
    int n_matrices, next;
};

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

static void weights_fill(struct weights *w, enum weight_format format)
{
    size_t data = (size_t)shapes[0].rows * format_row_bytes(format, shapes[0].cols);
    size_t scales = (size_t)shapes[0].rows * format_scale_row_bytes(format, shapes[0].cols);
    w->format = format;
    w->matrix_bytes = data + scales;
    w->n_matrices = (int)(w->bytes / w->matrix_bytes);
    w->next = 0;
    for (int i = 0; i < w->n_matrices; i++) {
        char *at = w->base + (size_t)i * w->matrix_bytes;
        fill_matrix(format, at, data, at + data, scales, (uint64_t)i + 88172645463325252u);
    }
}

static enum status weights_open(struct weights *w, size_t bytes, struct error *err)
{
    enum { HUGE_PAGE = 2 << 20 };
    char *all = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return error_errno(err, STATUS_NO_MEMORY, "cannot map %zu MiB of weights; try a smaller --memory", bytes >> 20);
    w->base = (char *)(((uintptr_t)all + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    w->bytes = bytes;
    madvise(w->base, bytes, MADV_HUGEPAGE); /* a wish: without huge pages the rates are lower, not wrong */
    return STATUS_OK;
}

static struct matrix weights_matrix(const struct weights *w, int index, const struct shape *shape)
{
    const char *data = w->base + (size_t)index * w->matrix_bytes;
    return (struct matrix){w->format, shape->rows, shape->cols, data, data + (size_t)shape->rows * format_row_bytes(w->format, shape->cols),
                           1.0f};
}

/* x rows of either shape, plain and quantised, and the outputs; one for the whole run. */
struct inputs {
    float *x, *out;
    void *quantized;
};

static void inputs_init(struct inputs *in)
{
    in->x = xcalloc((size_t)X_ROWS_MAX * 6144, sizeof *in->x);
    in->out = xcalloc((size_t)X_ROWS_MAX * 6144, sizeof *in->out);
    CHECK(!posix_memalign(&in->quantized, 64, quantized_rows_bytes(X_ROWS_MAX, 6144)));
    for (int i = 0; i < X_ROWS_MAX * 6144; i++)
        in->x[i] = (float)(i % 1009 * 7919 % 1009 - 504) * 0.001f;
}

static void inputs_release(struct inputs *in)
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

/* Each thread to a core of its own: left to the scheduler of a busy machine, a team can take turns on one. Any thread may claim any part, so each
 * waits in its part until all are there; a thread that cannot be had is waited for a second. */
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

static void pin_team(int threads)
{
    static struct pinning p;
    if (!CPU_COUNT(&p.allowed)) /* before the first thread was pinned */
        sched_getaffinity(0, sizeof p.allowed, &p.allowed);
    sched_setaffinity(0, sizeof p.allowed, &p.allowed); /* threads that start now inherit it */
    p.threads = threads;
    p.n_here = 0;
    parallel_for(threads, 1, pin_thread, &p);
}

/* What a line of the table measures. */
struct point {
    matmul_fn *fn;
    const char *name;
    const struct shape *shape;
    int n_x, threads;
};

enum series { READ, READ_WALL, STREAM, STREAM_WALL, CACHE, PEAK, N_SERIES }; /* GB/s; CACHE and PEAK GMAC/s */

/* The same measurements again and again; PASSES_MAX at most. */
struct passes {
    double value[N_SERIES][PASSES_MAX];
    int n;
};

struct rates {
    double median[N_SERIES];
    int is_disturbed; /* hardly a pass had the cores to itself: the medians are of all of them */
};

/* The next n matrices of the weights, in turn, so that none is left in a cache; GB/s by CPU time, and by the wall clock where asked. */
static double measure_stream(struct weights *w, const struct point *p, matmul_fn *fn, const struct matmul_args *args, int n, double *wall)
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
static double measure_cache(const struct weights *w, const struct point *p, const struct matmul_args *args, int repeat)
{
    struct matrix m = weights_matrix(w, 0, p->shape);
    m.rows = CACHED_BYTES / (int)format_row_bytes(m.format, m.cols) / GRAIN * GRAIN;
    m.rows = (m.rows ? m.rows : GRAIN) * p->threads;
    struct job job = {.fn = p->fn, .args = *args, .repeat = repeat};
    job.args.m = &m;
    parallel_for(m.rows, GRAIN, run_rows, &job); /* fetches the rows */
    job.cpu_ns = 0;
    parallel_for(m.rows, GRAIN, run_rows, &job);
    return (double)m.rows * m.cols * p->n_x * repeat * p->threads / (double)job.cpu_ns;
}

static double measure_peak(const struct point *p)
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

static struct rates measure(struct weights *w, const struct inputs *in, const struct kernels *best, const struct point *p, double seconds)
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

/* ---- the table ---- */

static void print_head(void)
{
    printf("read: plain reading of the same memory; peak: %s in registers; GB/s count scale bytes; medians\n"
           "*: other programs were using the cores, and rates of several threads are too high\n\n",
           probe_dot_name());
    printf("%-21s %-9s %2s %7s | %6s %6s %6s %7s | %7s %7s | %7s %7s %9s | %6s\n", "kernel", "matrix", "S", "threads", "GB/s", "wall",
           "read", "of read", "GMAC/s", "of peak", "cache", "of peak", "of cache", "peak");
}

static void print_rates(const struct weights *w, const struct point *p, const struct rates *r)
{
    const double *m = r->median;
    char shape[24];
    snprintf(shape, sizeof shape, "%dx%d", p->shape->rows, p->shape->cols);
    double macs = m[STREAM] * (double)p->shape->rows * p->shape->cols * p->n_x / (double)w->matrix_bytes; /* GMAC/s */
    double peak = m[PEAK] > 0 ? m[PEAK] : 1e30; /* no dot instruction to compare with: shares print as 0 */
    printf("%-21s %-9s %2d %6d%s | %6.1f %6.1f %6.1f %7.2f | %7.1f %7.2f | %7.1f %7.2f %9.2f | %6.0f\n", p->name, shape, p->n_x, p->threads,
           r->is_disturbed ? "*" : " ", m[STREAM], m[STREAM_WALL], m[READ], m[STREAM] / m[READ], macs, macs / peak, m[CACHE],
           m[CACHE] / peak, macs / m[CACHE], m[PEAK]);
    fflush(stdout);
}

/* Every S and thread count asked for, of one variant and shape. */
static void bench_variant(struct weights *w, const struct inputs *in, const struct kernels *best, const struct bench_options *o,
                          struct point p)
{
    static const int n_xs[] = {1, 2, 4, 8, 32};
    for (int threads = o->threads ? (int)o->threads : 1; threads <= (o->threads ? (int)o->threads : 2); threads++)
        for (size_t i = 0; i < sizeof n_xs / sizeof *n_xs && (i == 0 || !o->rows); i++) {
            p.threads = threads;
            parallel_set_threads(threads);
            pin_team(threads);
            p.n_x = o->rows ? (int)o->rows : n_xs[i];
            struct rates r = measure(w, in, best, &p, o->seconds);
            print_rates(w, &p, &r);
        }
}

static int is_asked(const struct kernel_variant *v, enum weight_format format, const struct kernels *chosen, int all)
{
    matmul_fn *fn = kernels_matmul(chosen, format);
    return all ? !strncmp(v->operation, "matmul_", 7) && !strcmp(v->operation + 7, format_info(format)->name) && kernel_variant_runs_here(v)
               : v->function == (void (*)(void))fn;
}

static enum status run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)arguments;
    (void)n_arguments;
    const struct bench_options *o = options;
    int all = !strcmp(o->isa, "all");
    struct kernels chosen;
    struct weights w = {0};
    enum status status = kernels_select(&chosen, all ? "auto" : o->isa, err);
    if (!status)
        status = weights_open(&w, (size_t)o->memory, err);
    if (status)
        return status;
    struct inputs in;
    inputs_init(&in);
    print_head();
    for (int format = 0; format < N_WEIGHT_FORMATS; format++) {
        if (strcmp(o->format, "all") && format_by_name(o->format) != format)
            continue;
        weights_fill(&w, (enum weight_format)format);
        for (int i = 0; i < n_kernel_variants; i++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
                if (is_asked(&kernel_variants[i], (enum weight_format)format, &chosen, all) &&
                    (!strcmp(o->shape, "all") || !strcmp(o->shape, shapes[s].name)))
                    bench_variant(&w, &in, &chosen, o,
                                  (struct point){(matmul_fn *)kernel_variants[i].function, kernel_variants[i].name, &shapes[s], 0, 0});
    }
    inputs_release(&in);
    return STATUS_OK;
}

const struct command bench_kernels_command = {
    .name = "bench kernels",
    .arguments = "",
    .summary = "Measure the matrix kernels against this machine's memory and peak rates.",
    .details = "Other programs disturb the figures: run it on a quiet machine.",
    .options = rows,
    .n_options = sizeof rows / sizeof *rows,
    .options_bytes = sizeof(struct bench_options),
    .run = run,
};
