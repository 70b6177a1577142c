/* f32 and bf16 dot products, written once over the 16 lanes: a variant's matmul_f32.c includes its lanes.h, defines
 *   VARIANT(name)            the name of the variant's function
 *   ROWS_S1, ROWS_S2, ROWS_S4   rows of a tile of 1, 2, 4 x rows (0: no such tile); rows * x rows accumulators stay in registers
 * and then this file. */

#include "kernels/lanes/prefetch.h"

enum {
    TILE_SUMS_MAX = 16,     /* accumulators of the largest tile */
    PANEL_BYTES = 16 << 10, /* weights kept in the first cache while all x rows pass over them */
};

ALWAYS_INLINE struct lanes load_weights(const void *row, int i, const enum weight_format format)
{
    return format == FORMAT_F32 ? lanes_load((const float *)row + i) : lanes_load_bf16((const uint16_t *)row + i);
}

ALWAYS_INLINE struct lanes load_weights_first(const void *row, int i, int n, const enum weight_format format)
{
    return format == FORMAT_F32 ? lanes_load_first((const float *)row + i, n) : lanes_load_bf16_first((const uint16_t *)row + i, n);
}

/* Rows [row, row + R) by x rows [s, s + S). */
ALWAYS_INLINE void tile(const struct matmul_args *a, int row, int s, const enum weight_format format, const int R, const int S)
{
    const int cols = a->m->cols, whole = cols - cols % LANES;
    const size_t row_bytes = (size_t)cols * (format == FORMAT_F32 ? 4 : 2);
    const char *w = (const char *)a->m->data + (size_t)row * row_bytes;
    const float *x = a->x + (size_t)s * a->x_stride;
    struct prefetch ahead = prefetch_start(row_bytes, R);
    struct lanes acc[TILE_SUMS_MAX];
#pragma GCC unroll 16
    for (int k = 0; k < R * S; k++)
        acc[k] = lanes_set1(0.0f);
    for (int i = 0; i < whole; i += LANES) {
        prefetch_step(&ahead, w, LANES * (format == FORMAT_F32 ? 4 : 2), R);
        struct lanes xs[4];
#pragma GCC unroll 16
        for (int k = 0; k < S; k++)
            xs[k] = lanes_load(x + (size_t)k * a->x_stride + i);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const char *at = w + (size_t)r * row_bytes;
            struct lanes ws = load_weights(at, i, format);
#pragma GCC unroll 16
            for (int k = 0; k < S; k++)
                acc[k * R + r] = lanes_fma(ws, xs[k], acc[k * R + r]);
        }
    }
    if (whole < cols)
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            struct lanes ws = load_weights_first(w + (size_t)r * row_bytes, whole, cols - whole, format);
#pragma GCC unroll 16
            for (int k = 0; k < S; k++)
                acc[k * R + r] = lanes_fma(ws, lanes_load_first(x + (size_t)k * a->x_stride + whole, cols - whole), acc[k * R + r]);
        }
    float sums[TILE_SUMS_MAX];
#pragma GCC unroll 16
    for (int k = 0; k < R * S; k += 4)
        _mm_storeu_ps(sums + k,
                      lanes_tree4(acc[k], acc[k + 1 < R * S ? k + 1 : k], acc[k + 2 < R * S ? k + 2 : k], acc[k + 3 < R * S ? k + 3 : k]));
#pragma GCC unroll 16
    for (int k = 0; k < R * S; k++)
        a->out[(size_t)(s + k / R) * a->out_stride + (size_t)(row + k % R)] = sums[k];
}

ALWAYS_INLINE void rows_by(const struct matmul_args *a, int begin, int end, int s, const enum weight_format format, const int R,
                           const int S)
{
    for (; begin + R <= end; begin += R)
        tile(a, begin, s, format, R, S);
    for (; begin < end; begin++)
        tile(a, begin, s, format, 1, S);
}

ALWAYS_INLINE void matmul(const struct matmul_args *a, const enum weight_format format)
{
    const size_t row_bytes = format_row_bytes(format, a->m->cols);
    const int panel = PANEL_BYTES / row_bytes > 8 ? (int)(PANEL_BYTES / row_bytes) / 8 * 8 : 8;
    for (int begin = a->row_begin; begin < a->row_end; begin += panel) {
        int end = begin + panel < a->row_end ? begin + panel : a->row_end, s = 0;
        for (; ROWS_S4 && s + 4 <= a->n_x; s += 4)
            rows_by(a, begin, end, s, format, ROWS_S4 ? ROWS_S4 : 1, 4);
        for (; s + 2 <= a->n_x; s += 2)
            rows_by(a, begin, end, s, format, ROWS_S2, 2);
        if (s < a->n_x)
            rows_by(a, begin, end, s, format, ROWS_S1, 1);
    }
}

void VARIANT(matmul_f32)(const struct matmul_args *a)
{
    matmul(a, FORMAT_F32);
}

void VARIANT(matmul_bf16)(const struct matmul_args *a)
{
    matmul(a, FORMAT_BF16);
}
