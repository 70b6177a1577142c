#include "model/linear.h"

#include <string.h>

#include "common/check.h"
#include "kernels/parallel.h"

/* Below this many multiply-adds a region is not worth waking the other threads (a few microseconds each way). */
enum { REGION_MACS_MIN = 1 << 16, QUANTIZE_FLOATS_MIN = 1 << 14 };

struct quantize_job {
    struct activations *a;
    const struct kernels *kernels;
};

static void quantize_range(void *ctx, int begin, int end)
{
    struct quantize_job *job = ctx;
    struct quantized_rows *q = &job->a->q;
    for (int s = begin; s < end; s++) {
        size_t block = (size_t)s * (size_t)q->n_blocks;
        job->kernels->quantize_row(job->a->x + (size_t)s * job->a->stride, q->cols, q->values + block * BLOCK_ELEMENTS, q->scales + block * 2,
                                   q->lane_sums8 + block * LANES);
    }
}

static void prepare(struct activations *a)
{
    CHECK(a->q_memory);
    quantized_rows_place(&a->q, a->n, a->cols, a->q_memory);
    a->is_quantized = 1;
}

void activations_quantize_here(struct activations *a, const struct kernels *kernels)
{
    if (a->is_quantized)
        return;
    prepare(a);
    quantize_range(&(struct quantize_job){a, kernels}, 0, a->n);
}

static void quantize(struct activations *a, const struct kernels *kernels)
{
    if (a->is_quantized)
        return;
    prepare(a);
    struct quantize_job job = {a, kernels};
    parallel_for(a->n, QUANTIZE_FLOATS_MIN / a->cols + 1, quantize_range, &job);
}

void activations_gather(struct activations *to, float *x_memory, void *q_memory, struct activations *from, const int *rows, int n,
                        enum weight_format format, const struct kernels *kernels)
{
    *to = activations_of(x_memory, (size_t)from->cols, n, from->cols, q_memory);
    if (!format_is_integer(format)) {
        for (int i = 0; i < n; i++)
            memcpy(x_memory + (size_t)i * (size_t)from->cols, from->x + (size_t)rows[i] * from->stride, (size_t)from->cols * sizeof(float));
        return;
    }
    quantize(from, kernels);
    prepare(to);
    size_t blocks = (size_t)from->q.n_blocks;
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)i * blocks, source = (size_t)rows[i] * blocks;
        memcpy(to->q.values + at * BLOCK_ELEMENTS, from->q.values + source * BLOCK_ELEMENTS, blocks * BLOCK_ELEMENTS);
        memcpy(to->q.scales + at * 2, from->q.scales + source * 2, blocks * 2 * sizeof(float));
        memcpy(to->q.lane_sums8 + at * LANES, from->q.lane_sums8 + source * LANES, blocks * LANES * sizeof(int32_t));
    }
}

static void run_rows(const struct kernels *kernels, const struct linear *task, int begin, int end)
{
    struct matmul_args args = {
        .m = task->m,
        .row_begin = begin,
        .row_end = end,
        .x = task->x->x,
        .x_stride = task->x->stride,
        .q = &task->x->q,
        .n_x = task->x->n,
        .out = task->out,
        .out_stride = task->out_stride,
    };
    kernels_matmul(kernels, task->m->format)(&args);
}

struct linear_job {
    const struct kernels *kernels;
    const struct linear *tasks;
    int n_tasks;
};

/* The outputs of all tasks in one numbering. */
static void run_range(void *ctx, int begin, int end)
{
    struct linear_job *job = ctx;
    for (int t = 0, first = 0; t < job->n_tasks; first += job->tasks[t].m->rows, t++) {
        int from = begin > first ? begin - first : 0, to = end - first < job->tasks[t].m->rows ? end - first : job->tasks[t].m->rows;
        if (from < to)
            run_rows(job->kernels, &job->tasks[t], from, to);
    }
}

void linear_run(const struct kernels *kernels, const struct linear *tasks, int n_tasks)
{
    CHECK(n_tasks <= LINEAR_TASKS_MAX);
    int rows = 0;
    size_t macs = 0;
    for (int t = 0; t < n_tasks; t++) {
        CHECK(tasks[t].m->cols == tasks[t].x->cols);
        if (format_is_integer(tasks[t].m->format))
            quantize(tasks[t].x, kernels);
        rows += tasks[t].m->rows;
        macs += (size_t)tasks[t].m->rows * (size_t)tasks[t].m->cols * (size_t)tasks[t].x->n;
    }
    if (!rows || !tasks[0].x->n)
        return;
    int grain = (int)(REGION_MACS_MIN / (macs / (size_t)rows + 1)) & ~15; /* multiples of 16 outputs: whole cache lines of one row's results */
    struct linear_job job = {kernels, tasks, n_tasks};
    parallel_for(rows, grain < 16 ? 16 : grain, run_range, &job);
}

void linear_run_here(const struct kernels *kernels, const struct linear *task)
{
    CHECK(task->m->cols == task->x->cols);
    if (format_is_integer(task->m->format))
        activations_quantize_here(task->x, kernels);
    run_rows(kernels, task, 0, task->m->rows);
}
