#include "model/swiglu.h"

#include "kernels/parallel.h"

struct silu_job {
    const struct layer_context *ctx;
    int width;
};

static void silu_rows(void *ctx, int begin, int end)
{
    struct silu_job *job = ctx;
    const struct workspace *work = job->ctx->work;
    size_t first = (size_t)begin * (size_t)job->width;
    for (int i = begin; i < end; i++, first += (size_t)job->width)
        job->ctx->kernels->silu_mul(work->gate + first, work->gate + first, work->up + first, job->width);
}

void swiglu_forward(const struct layer_context *ctx, const struct matrix *gate, const struct matrix *up, const struct matrix *down,
                    struct activations *x, float *out, size_t out_stride)
{
    struct workspace *work = ctx->work;
    int width = gate->rows;
    struct linear first[] = {{gate, x, work->gate, (size_t)width}, {up, x, work->up, (size_t)width}};
    linear_run(ctx->kernels, first, 2);
    struct silu_job job = {ctx, width};
    parallel_for(x->n, 8192 / width + 1, silu_rows, &job);
    struct activations inner = activations_of(work->gate, (size_t)width, x->n, width, work->gate_q);
    linear_run(ctx->kernels, &(struct linear){down, &inner, out, out_stride}, 1);
}
