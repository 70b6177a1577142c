/* Matrix times rows, whatever the matrix is stored as: rows of activations are quantised once, when the first integer matrix reads them, and
 * handed down. Several matrices can share one parallel region. */
#ifndef HEARTH_MODEL_LINEAR_H
#define HEARTH_MODEL_LINEAR_H

#include <stddef.h>

#include "kernels/kernels.h"

/* n rows of `cols` f32, `stride` floats apart; owns nothing. */
struct activations {
    const float *x;
    size_t stride;
    int n, cols;
    int is_quantized;
    struct quantized_rows q;
    void *q_memory; /* quantized_rows_bytes(n, cols), 64-byte aligned */
};

static inline struct activations activations_of(const float *x, size_t stride, int n, int cols, void *q_memory)
{
    return (struct activations){.x = x, .stride = stride, .n = n, .cols = cols, .q_memory = q_memory};
}

/* Quantises now, on the calling thread only (for use inside a parallel region). */
void activations_quantize_here(struct activations *a, const struct kernels *kernels);

/* Copies the chosen rows of `from` into to's memory (x_memory [n][cols], q_memory), only the form that `format` reads. The rows of `from` are
 * quantised first where that form is wanted. */
void activations_gather(struct activations *to, float *x_memory, void *q_memory, struct activations *from, const int *rows, int n,
                        enum weight_format format, const struct kernels *kernels);

/* out[s * out_stride + r] for every row s of x and every row r of m. */
struct linear {
    const struct matrix *m;
    struct activations *x;
    float *out;
    size_t out_stride;
};

/* Runs the tasks, split over their outputs. At most LINEAR_TASKS_MAX. */
enum { LINEAR_TASKS_MAX = 8 };
void linear_run(const struct kernels *kernels, const struct linear *tasks, int n_tasks);

/* The same on the calling thread only. */
void linear_run_here(const struct kernels *kernels, const struct linear *task);

#endif
