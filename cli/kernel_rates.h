/* How near the matmul kernels come to what this machine can do: the measuring behind `hearth bench kernels` and `hearth probe`. For one
 * format, shape and number of x rows it alternates four measurements until the time is up, so that all four see the same noise, and gives
 * medians:
 * - read: plain reading of the same memory (kernels/probe.h);
 * - stream: the kernel over matrices that come from memory, scales included;
 * - cache: the same kernel over a matrix that stays in the second cache;
 * - peak: the widest dot instruction, registers only.
 * Work is split by parallel_for as the engine does. Rates count each thread's own CPU time, which other programs disturb least; the wall
 * clock's rate stands beside it. One thread at a time. */
#ifndef HEARTH_CLI_KERNEL_RATES_H
#define HEARTH_CLI_KERNEL_RATES_H

#include <stddef.h>

#include "common/error.h"
#include "kernels/kernels.h"

struct rates_shape {
    const char *name;
    int rows, cols;
};
enum { N_RATES_SHAPES = 2, RATES_X_ROWS_MAX = 64 };
extern const struct rates_shape rates_shapes[N_RATES_SHAPES]; /* an expert's gate and down matrix */

/* Matrices of one format, as many as fit in the memory. */
struct rates_weights {
    enum weight_format format;
    char *base;
    size_t bytes, matrix_bytes; /* one matrix and its scales, both shapes alike */
    int n_matrices, next;
};

enum status rates_weights_open(struct rates_weights *weights, size_t bytes, struct error *err);
void rates_weights_release(struct rates_weights *weights);
void rates_weights_fill(struct rates_weights *weights, enum weight_format format);

/* x rows of either shape, plain and quantised, and the outputs; one for the whole run. */
struct rates_inputs {
    float *x, *out;
    void *quantized;
};
void rates_inputs_init(struct rates_inputs *inputs);
void rates_inputs_release(struct rates_inputs *inputs);

/* Sets the number of threads and gives each a core of its own: left to the scheduler of a busy machine, a team can take turns on one. */
void rates_set_threads(int threads);

/* What is measured. */
struct rates_point {
    matmul_fn *fn;
    const char *name;
    const struct rates_shape *shape;
    int n_x, threads;
};

enum rates_series { READ, READ_WALL, STREAM, STREAM_WALL, CACHE, PEAK, N_SERIES }; /* GB/s; CACHE and PEAK GMAC/s */

struct rates {
    double median[N_SERIES];
    int is_disturbed; /* hardly a pass had the cores to itself: the medians are of all of them */
};

/* best: for quantising x. */
struct rates rates_measure(struct rates_weights *weights, const struct rates_inputs *inputs, const struct kernels *best,
                           const struct rates_point *point, double seconds);

/* What the engine gets, in bytes a second, scales included. */
struct rates_usual {
    double kernel, read; /* the best kernel of the format; plain reading of the same memory */
    int is_disturbed;
};

/* Of an expert's gate matrix in the format that the weights were filled with; by the wall clock, or where other programs were on the cores
 * by the threads' own time, which says more then. Sets no threads. */
struct rates_usual rates_measure_usual(struct rates_weights *weights, const struct rates_inputs *inputs, const struct kernels *best,
                                       int n_x, int threads, double seconds);

#endif
