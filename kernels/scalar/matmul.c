/* The dot products as the contract states them: written for reading, this file is the specification. */
#include "kernels/scalar/scalar.h"

#include <math.h>
#include <string.h>

#include "kernels/float_math.h"

/* One step of the 16 lanes. */
static void add_products(float lanes[LANES], const float w[LANES], const float x[LANES])
{
    for (int l = 0; l < LANES; l++)
        lanes[l] = fmaf(w[l], x[l], lanes[l]);
}

static float dot_f32(const float *w, const float *x, int n)
{
    float lanes[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        add_products(lanes, w + i, x + i);
    if (i < n) {
        float w_tail[LANES] = {0}, x_tail[LANES] = {0};
        memcpy(w_tail, w + i, (size_t)(n - i) * sizeof *w);
        memcpy(x_tail, x + i, (size_t)(n - i) * sizeof *x);
        add_products(lanes, w_tail, x_tail);
    }
    return f32_tree(lanes);
}

static void widen(float out[LANES], const uint16_t *w, int n)
{
    for (int l = 0; l < n; l++)
        out[l] = bf16_to_f32(w[l]);
}

static float dot_bf16(const uint16_t *w, const float *x, int n)
{
    float lanes[LANES] = {0}, wide[LANES];
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        widen(wide, w + i, LANES);
        add_products(lanes, wide, x + i);
    }
    if (i < n) {
        float w_tail[LANES] = {0}, x_tail[LANES] = {0};
        widen(w_tail, w + i, n - i);
        memcpy(x_tail, x + i, (size_t)(n - i) * sizeof *x);
        add_products(lanes, w_tail, x_tail);
    }
    return f32_tree(lanes);
}

void matmul_f32_scalar(const struct matmul_args *a)
{
    for (int r = a->row_begin; r < a->row_end; r++)
        for (int s = 0; s < a->n_x; s++)
            a->out[(size_t)s * a->out_stride + (size_t)r] =
                dot_f32((const float *)a->m->data + (size_t)r * (size_t)a->m->cols, a->x + (size_t)s * a->x_stride, a->m->cols);
}

void matmul_bf16_scalar(const struct matmul_args *a)
{
    for (int r = a->row_begin; r < a->row_end; r++)
        for (int s = 0; s < a->n_x; s++)
            a->out[(size_t)s * a->out_stride + (size_t)r] =
                dot_bf16((const uint16_t *)a->m->data + (size_t)r * (size_t)a->m->cols, a->x + (size_t)s * a->x_stride, a->m->cols);
}

/* One block: weights as 64 even then 64 odd signed values; adds the block's 16 lane sums into lanes. */
static void add_block(float lanes[LANES], const int8_t w[BLOCK_ELEMENTS], const float w_scale[2], const int8_t *x, const float *x_scale)
{
    int32_t pairs[GROUP_ELEMENTS]; /* even + odd product */
    for (int j = 0; j < GROUP_ELEMENTS; j++)
        pairs[j] = w[j] * x[j] + w[GROUP_ELEMENTS + j] * x[GROUP_ELEMENTS + j];
    for (int l = 0; l < LANES; l++) {
        int32_t sum = pairs[4 * l] + pairs[4 * l + 1] + pairs[4 * l + 2] + pairs[4 * l + 3];
        int group = l / 8;
        lanes[l] = fmaf((float)sum, w_scale[group] * x_scale[group], lanes[l]);
    }
}

void matmul_int8_scalar(const struct matmul_args *a)
{
    int n_blocks = blocks_of(a->m->cols);
    for (int r = a->row_begin; r < a->row_end; r++) {
        const int8_t *w = (const int8_t *)a->m->data + (size_t)r * (size_t)n_blocks * BLOCK_ELEMENTS;
        const float *scales = (const float *)a->m->scales + (size_t)r * (size_t)n_blocks * 2;
        for (int s = 0; s < a->n_x; s++) {
            const int8_t *x = a->q->values + (size_t)s * (size_t)n_blocks * BLOCK_ELEMENTS;
            const float *x_scales = a->q->scales + (size_t)s * (size_t)n_blocks * 2;
            float lanes[LANES] = {0};
            for (int b = 0; b < n_blocks; b++)
                add_block(lanes, w + b * BLOCK_ELEMENTS, scales + 2 * b, x + b * BLOCK_ELEMENTS, x_scales + 2 * b);
            a->out[(size_t)s * a->out_stride + (size_t)r] = f32_tree(lanes) * a->m->factor;
        }
    }
}

void matmul_int4_scalar(const struct matmul_args *a)
{
    int n_blocks = blocks_of(a->m->cols);
    for (int r = a->row_begin; r < a->row_end; r++) {
        const uint8_t *w = (const uint8_t *)a->m->data + (size_t)r * (size_t)n_blocks * GROUP_ELEMENTS;
        const uint16_t *scales = (const uint16_t *)a->m->scales + (size_t)r * (size_t)n_blocks * 2;
        for (int s = 0; s < a->n_x; s++) {
            const int8_t *x = a->q->values + (size_t)s * (size_t)n_blocks * BLOCK_ELEMENTS;
            const float *x_scales = a->q->scales + (size_t)s * (size_t)n_blocks * 2;
            float lanes[LANES] = {0};
            for (int b = 0; b < n_blocks; b++) {
                int8_t block[BLOCK_ELEMENTS];
                for (int j = 0; j < GROUP_ELEMENTS; j++) {
                    block[j] = (int8_t)((w[b * GROUP_ELEMENTS + j] & 15) - 8);
                    block[GROUP_ELEMENTS + j] = (int8_t)((w[b * GROUP_ELEMENTS + j] >> 4) - 8);
                }
                const float w_scale[2] = {f16_to_f32(scales[2 * b]), f16_to_f32(scales[2 * b + 1])};
                add_block(lanes, block, w_scale, x + b * BLOCK_ELEMENTS, x_scales + 2 * b);
            }
            a->out[(size_t)s * a->out_stride + (size_t)r] = f32_tree(lanes) * a->m->factor;
        }
    }
}
