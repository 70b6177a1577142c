/* Operations on single rows: quantising, norms, softmax, silu, mixing. The specification of their variants. */
#include "kernels/scalar/scalar.h"

#include <math.h>
#include <string.h>

#include "kernels/float_math.h"

/* Below this a group counts as zero: 127 / absmax must stay finite, and nothing that small survives a sum. */
static const float ABSMAX_MIN = 0x1p-100f;

static uint32_t magnitude_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffff;
}

/* The largest |x| by its bits: for numbers the order is the same, and infinity and every NaN stand above all numbers. */
static float largest_magnitude(const float *x, int n)
{
    uint32_t largest = 0;
    for (int i = 0; i < n; i++)
        largest = magnitude_bits(x[i]) > largest ? magnitude_bits(x[i]) : largest;
    float magnitude;
    memcpy(&magnitude, &largest, sizeof magnitude);
    return magnitude;
}

void quantize_row_scalar(const float *x, int cols, int8_t *values, float *scales, int32_t *lane_sums8)
{
    int n_blocks = blocks_of(cols);
    memset(values, 0, (size_t)n_blocks * BLOCK_ELEMENTS);
    for (int g = 0; g < 2 * n_blocks; g++) {
        int begin = g * GROUP_ELEMENTS, end = begin + GROUP_ELEMENTS < cols ? begin + GROUP_ELEMENTS : cols;
        float absmax = largest_magnitude(x + begin, end - begin);
        if (!isfinite(absmax)) {
            scales[g] = NAN;
            continue;
        }
        scales[g] = absmax < ABSMAX_MIN ? 0.0f : absmax / 127.0f;
        float inverse = absmax < ABSMAX_MIN ? 0.0f : 127.0f / absmax;
        int8_t *block = values + g / 2 * BLOCK_ELEMENTS;
        for (int i = begin; i < end; i++) {
            int in_block = i % BLOCK_ELEMENTS;
            block[(in_block & 1) * GROUP_ELEMENTS + in_block / 2] = (int8_t)rintf(x[i] * inverse);
        }
    }
    for (int b = 0; b < n_blocks; b++)
        for (int l = 0; l < LANES; l++) {
            int sum = 0;
            for (int j = 4 * l; j < 4 * l + 4; j++)
                sum += values[b * BLOCK_ELEMENTS + j] + values[b * BLOCK_ELEMENTS + GROUP_ELEMENTS + j];
            lane_sums8[b * LANES + l] = -8 * sum;
        }
}

static float sum_squares(const float *x, int n, float minus)
{
    float lanes[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float v = i + l < n ? x[i + l] - minus : 0.0f;
            lanes[l] = fmaf(v, v, lanes[l]);
        }
    return f32_tree(lanes);
}

static float sum(const float *x, int n)
{
    float lanes[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] += i + l < n ? x[i + l] : 0.0f;
    return f32_tree(lanes);
}

void rms_norm_scalar(float *out, const float *x, const float *w, int n, float eps)
{
    float s = 1.0f / sqrtf(sum_squares(x, n, 0.0f) / (float)n + eps);
    for (int i = 0; i < n; i++)
        out[i] = x[i] * s * w[i];
}

void layer_norm_scalar(float *out, const float *x, const float *w, const float *b, int n, float eps)
{
    float mean = sum(x, n) / (float)n;
    float s = 1.0f / sqrtf(sum_squares(x, n, mean) / (float)n + eps);
    for (int i = 0; i < n; i++)
        out[i] = fmaf((x[i] - mean) * s, w[i], b[i]);
}

void softmax_scalar(float *x, int n)
{
    float largest = x[0];
    for (int i = 1; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (int i = 0; i < n; i++)
        x[i] = f32_exp(x[i] - largest);
    float inverse = 1.0f / sum(x, n);
    for (int i = 0; i < n; i++)
        x[i] *= inverse;
}

void silu_mul_scalar(float *out, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = gate[i] * f32_sigmoid(gate[i]) * up[i];
}

void mix_rows_scalar(float *out, size_t out_stride, const float *p, size_t p_stride, const float *const *rows, int n_rows, int n_heads, int n)
{
    for (int h = 0; h < n_heads; h++) {
        float *acc = out + (size_t)h * out_stride;
        memset(acc, 0, (size_t)n * sizeof *acc);
        for (int r = 0; r < n_rows; r++)
            axpy_scalar(acc, p[(size_t)h * p_stride + (size_t)r], rows[r], n);
    }
}

void axpy_scalar(float *acc, float w, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        acc[i] = fmaf(w, x[i], acc[i]);
}
