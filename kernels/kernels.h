/* The numeric contract in C: every operation here has one scalar version that is its specification (kernels/scalar/), and every variant returns
 * the same bits (docs/ARCHITECTURE.md, section 6; tests/kernels/test_exactness.c compares them all).
 *
 * Lanes and the tree. A sum over n elements keeps 16 lanes; lane l takes elements l, l+16, ... in ascending order with fused multiply-add,
 * the tail padded with +0 (and computed). Then t[i] += t[i+8] for i < 8, then 4, 2, 1 (f32_tree). Integer formats: see matmul below.
 *
 * No function here allocates, reads a file or knows what a layer is. Inputs and outputs do not overlap unless said. Nothing outside the stated
 * arrays is read or written. Denormals are kept. */
#ifndef HEARTH_KERNELS_KERNELS_H
#define HEARTH_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "kernels/formats.h"

/* Rows of activations as int8, quantised once and handed to every matrix that reads them. For each group of 64 inputs: absmax below 2^-100
 * counts as 0 (scale 0, all values 0); else scale = absmax / 127, value = rne(x * (127 / absmax)) (both quotients rounded to f32 first), so
 * -127..127. A group that holds a NaN or an infinity has scale NaN (0x7fc00000) and all values 0: everything computed from the row is NaN
 * then, and the layer's check of its residual finds it. absmax is the largest of the bits of |x| as unsigned, which puts both above every
 * number. Blocks are laid out as int8 weights are: 64 even elements, 64 odd; padding is 0. Borrowed memory. */
struct quantized_rows {
    int n_rows, cols, n_blocks; /* n_blocks = blocks_of(cols) */
    int8_t *values;             /* [n_rows][n_blocks][128], 64-byte aligned */
    float *scales;              /* [n_rows][n_blocks][2] */
    int32_t *lane_sums8;        /* [n_rows][n_blocks][16]: -8 times the sum of the lane's 8 values (see matmul_int4), 64-byte aligned */
};

/* Bytes for n_rows, and laying the three arrays out in 64-byte aligned memory of that size. */
size_t quantized_rows_bytes(int n_rows, int cols);
void quantized_rows_place(struct quantized_rows *rows, int n_rows, int cols, void *memory);

/* One matmul: out[s * out_stride + r] = factor * (row r of m) . (row s of x), for r in [row_begin, row_end), s in [0, n_x).
 * f32 and bf16 read x; int8 and int4 read q (its rows [0, n_x)), never x.
 *
 * f32, bf16: 16 lanes over the inputs, fmaf(w, x, lane), the tree. bf16 is widened exactly, so bf16 weights give the bits of the same
 * weights as f32.
 * int8, int4: for each block of 128 inputs, lane l sums the 8 products of elements 8l .. 8l+7 exactly in int32 (that is bytes 4l .. 4l+3 of
 * the even half and of the odd half), then lane = fmaf((float)isum, w_scale * x_scale, lane) with the scales of the lane's group (lanes 0-7
 * the block's first group, 8-15 its second; the product rounded to f32). After the last block the tree, then * factor.
 * int4 as unsigned: sum((w+8) x) - 8 sum(x) is the same integer; that is what lane_sums8 is for (int8: 16 * lane_sums8 for w+128). */
struct matmul_args {
    const struct matrix *m;
    int row_begin, row_end;
    const float *x; /* [n_x] rows of m->cols, x_stride floats apart */
    size_t x_stride;
    const struct quantized_rows *q;
    int n_x;
    float *out;
    size_t out_stride; /* floats between the outputs of two x rows */
};
typedef void matmul_fn(const struct matmul_args *args);

/* values [n_blocks][128], scales [n_blocks][2], lane_sums8 [n_blocks][16] of one row x [cols]. */
typedef void quantize_row_fn(const float *x, int cols, int8_t *values, float *scales, int32_t *lane_sums8);

/* out[i] = (x[i] * s) * w[i], s = 1 / sqrtf(sum(x*x) / n + eps), the sum in 16 lanes. out may be x. */
typedef void rms_norm_fn(float *out, const float *x, const float *w, int n, float eps);

/* mean = sum(x) / n (lanes add), d = x - mean, s = 1 / sqrtf(sum(d*d) / n + eps): out[i] = fmaf(d[i] * s, w[i], b[i]). out may be x. */
typedef void layer_norm_fn(float *out, const float *x, const float *w, const float *b, int n, float eps);

/* In place: m = largest; e = f32_exp(x - m); sum of e in 16 lanes (lanes add); x = e * (1 / sum). n >= 1. */
typedef void softmax_fn(float *x, int n);

/* out[i] = (gate[i] * f32_sigmoid(gate[i])) * up[i]. out may be gate or up. */
typedef void silu_mul_fn(float *out, const float *gate, const float *up, int n);

/* Latent mix of attention: out[h * out_stride + j] = sum over r = 0 .. n_rows-1, in that order, of fmaf(p[h * p_stride + r], rows[r][j], acc),
 * acc starting at 0. rows: n_rows pointers to n floats each. */
typedef void mix_rows_fn(float *out, size_t out_stride, const float *p, size_t p_stride, const float *const *rows, int n_rows, int n_heads, int n);

/* acc[i] = fmaf(w, x[i], acc[i]). */
typedef void axpy_fn(float *acc, float w, const float *x, int n);

enum isa { ISA_SCALAR, ISA_AVX2, ISA_AVX512, N_ISAS };

/* The operations, each with the variant that was chosen for this machine (or forced). Names are those of registry.inc. */
struct kernels {
    matmul_fn *matmul_f32, *matmul_bf16, *matmul_int8, *matmul_int4;
    quantize_row_fn *quantize_row;
    rms_norm_fn *rms_norm;
    layer_norm_fn *layer_norm;
    softmax_fn *softmax;
    silu_mul_fn *silu_mul;
    mix_rows_fn *mix_rows;
    axpy_fn *axpy;
};

/* Fills the table with the best variant this CPU runs, none above isa_max. isa "auto" | "scalar" | "avx2" | "avx512".
 * Fails with STATUS_UNSUPPORTED when the CPU is below the minimum (cpu_check_minimum) or cannot run the forced ISA; names what is missing. */
enum status kernels_select(struct kernels *out, const char *isa, struct error *err);

/* Shorthand used by the model: the right matmul for m's format. */
static inline matmul_fn *kernels_matmul(const struct kernels *k, enum weight_format format)
{
    matmul_fn *const by_format[N_WEIGHT_FORMATS] = {k->matmul_f32, k->matmul_bf16, k->matmul_int8, k->matmul_int4};
    return by_format[format];
}

static inline int format_is_integer(enum weight_format format)
{
    return format == FORMAT_INT8 || format == FORMAT_INT4;
}

#endif
