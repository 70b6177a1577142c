/* hearth bench kernels: a table of how near the matmul kernels come to what this machine can do (cli/kernel_rates.h). */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/kernel_rates.h"
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

/* ---- the table ---- */

static void print_head(void)
{
    printf("read: plain reading of the same memory; peak: %s in registers; GB/s count scale bytes; medians\n"
           "*: other programs were using the cores, and rates of several threads are too high\n\n",
           probe_dot_name());
    printf("%-21s %-9s %2s %7s | %6s %6s %6s %7s | %7s %7s | %7s %7s %9s | %6s\n", "kernel", "matrix", "S", "threads", "GB/s", "wall",
           "read", "of read", "GMAC/s", "of peak", "cache", "of peak", "of cache", "peak");
}

static void print_rates(const struct rates_weights *w, const struct rates_point *p, const struct rates *r)
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
static void bench_variant(struct rates_weights *w, const struct rates_inputs *in, const struct kernels *best, const struct bench_options *o,
                          struct rates_point p)
{
    static const int n_xs[] = {1, 2, 4, 8, 32};
    for (int threads = o->threads ? (int)o->threads : 1; threads <= (o->threads ? (int)o->threads : 2); threads++)
        for (size_t i = 0; i < sizeof n_xs / sizeof *n_xs && (i == 0 || !o->rows); i++) {
            p.threads = threads;
            rates_set_threads(threads);
            p.n_x = o->rows ? (int)o->rows : n_xs[i];
            struct rates r = rates_measure(w, in, best, &p, o->seconds);
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
    struct rates_weights w = {0};
    enum status status = kernels_select(&chosen, all ? "auto" : o->isa, err);
    if (status)
        return status;
    if (rates_weights_open(&w, (size_t)o->memory, err))
        return error_wrap(err, "try a smaller --memory");
    struct rates_inputs in;
    rates_inputs_init(&in);
    print_head();
    for (int format = 0; format < N_WEIGHT_FORMATS; format++) {
        if (strcmp(o->format, "all") && format_by_name(o->format) != format)
            continue;
        rates_weights_fill(&w, (enum weight_format)format);
        for (int i = 0; i < n_kernel_variants; i++)
            for (size_t s = 0; s < N_RATES_SHAPES; s++)
                if (is_asked(&kernel_variants[i], (enum weight_format)format, &chosen, all) &&
                    (!strcmp(o->shape, "all") || !strcmp(o->shape, rates_shapes[s].name)))
                    bench_variant(
                        &w, &in, &chosen, o,
                        (struct rates_point){(matmul_fn *)kernel_variants[i].function, kernel_variants[i].name, &rates_shapes[s], 0, 0});
    }
    rates_inputs_release(&in);
    rates_weights_release(&w);
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
