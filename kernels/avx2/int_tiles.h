/* int8 and int4 matrices on 256 bits, written once for two instruction sets: the including file defines
 *   VARIANT(name)   the name of the variant's function
 *   ROWS_S1, ROWS_S2, ROWS_S4   rows of a tile of 1, 2, 4 x rows
 *   lane_sums(format, w, x_even, x_odd, sums8)   the exact integer sums of one group's 8 lanes
 * A block's first 8 lanes are its first group, so a register never meets two scales. */

#include "kernels/lanes/prefetch.h"

enum {
    ROWS_MAX = 4,
    TILE_SUMS_MAX = 4,
    CHUNK_BLOCKS = 64,      /* blocks whose scales are widened together */
    PANEL_BYTES = 16 << 10, /* weights kept in the first cache while all x rows pass over them */
    GROUP_LANES = LANES / 2,
};

#include "kernels/lanes/matmul_int.h"

/* The first n <= 8 f16 scales as f32. */
ALWAYS_INLINE __m256 widen_f16(const uint8_t *at, int n)
{
    if (n >= 8)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
    uint16_t padded[8] = {0};
    memcpy(padded, at, (size_t)n * 2);
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)padded));
}

/* The scales of groups [begin, begin + n) of R rows as f32; with one x row, times its scales: the product the contract rounds first. */
ALWAYS_INLINE void widen_scales(float scales[ROWS_MAX][2 * CHUNK_BLOCKS], const struct operands *o, int begin, int n,
                                const enum weight_format format, const int R, const int S)
{
    const int bytes = format == FORMAT_INT4 ? 2 : 4;
    for (int g = 0; g < n; g += 8) {
        __m256i mask = lanes_mask8(n - g);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const uint8_t *at = o->w_scales + (size_t)r * o->w_scales_stride + (size_t)(begin + g) * (size_t)bytes;
            _mm_prefetch((const char *)at + prefetch_scales_distance(o->w_scales_stride, R), _MM_HINT_T0);
            __m256 v = format == FORMAT_INT4 ? widen_f16(at, n - g) : _mm256_maskload_ps((const float *)at, mask);
            if (S == 1)
                v = _mm256_mul_ps(v, _mm256_maskload_ps(o->x_scales + begin + g, mask));
            _mm256_store_ps(scales[r] + g, v);
        }
    }
}

/* One group of one row: its 32 even and 32 odd elements, as stored (int4: value + 8). */
struct group {
    __m256i even, odd;
};

ALWAYS_INLINE struct group load_group(const uint8_t *block, const int half, const enum weight_format format)
{
    __m256i first = _mm256_loadu_si256((const __m256i *)(block + 32 * half));
    if (format == FORMAT_INT4) {
        const __m256i nibble = _mm256_set1_epi8(15);
        return (struct group){_mm256_and_si256(first, nibble), _mm256_and_si256(_mm256_srli_epi16(first, 4), nibble)};
    }
    return (struct group){first, _mm256_loadu_si256((const __m256i *)(block + GROUP_ELEMENTS + 32 * half))};
}

/* R rows by S x rows. Weights are loaded once for all S. */
ALWAYS_INLINE void tile_sums(float *sums, const struct operands *o, const enum weight_format format, const int R, const int S)
{
    const size_t block_bytes = format == FORMAT_INT4 ? GROUP_ELEMENTS : BLOCK_ELEMENTS;
    const size_t blocks = (size_t)o->n_blocks;
    _Alignas(32) float scales[ROWS_MAX][2 * CHUNK_BLOCKS];
    struct prefetch ahead = prefetch_start(o->w_stride, R);
    __m256 acc[TILE_SUMS_MAX][2];
#pragma GCC unroll 16
    for (int k = 0; k < R * S; k++)
        acc[k][0] = acc[k][1] = _mm256_setzero_ps();
    for (int begin = 0; begin < o->n_blocks; begin += CHUNK_BLOCKS) {
        int end = begin + CHUNK_BLOCKS < o->n_blocks ? begin + CHUNK_BLOCKS : o->n_blocks;
        widen_scales(scales, o, 2 * begin, 2 * (end - begin), format, R, S);
        for (int b = begin; b < end; b++) {
            prefetch_step(&ahead, o->w, block_bytes, R);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                const uint8_t *block = o->w + (size_t)r * o->w_stride + (size_t)b * block_bytes;
#pragma GCC unroll 16
                for (int half = 0; half < 2; half++) {
                    struct group w = load_group(block, half, format);
                    __m256 w_scale = _mm256_broadcast_ss(scales[r] + 2 * (b - begin) + half);
#pragma GCC unroll 16
                    for (int s = 0; s < S; s++) {
                        const size_t at = (size_t)s * blocks + (size_t)b;
                        const int8_t *x = o->x + at * BLOCK_ELEMENTS + 32 * half;
                        __m256i isum = lane_sums(format, w, _mm256_loadu_si256((const __m256i *)x),
                                                 _mm256_loadu_si256((const __m256i *)(x + GROUP_ELEMENTS)),
                                                 _mm256_loadu_si256((const __m256i *)(o->lane_sums8 + at * LANES + GROUP_LANES * half)));
                        __m256 scale = S == 1 ? w_scale : _mm256_mul_ps(w_scale, _mm256_broadcast_ss(o->x_scales + 2 * at + half));
                        acc[s * R + r][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum), scale, acc[s * R + r][half]);
                    }
                }
            }
        }
    }
    struct lanes t[4];
#pragma GCC unroll 16
    for (int k = 0; k < 4; k++)
        t[k] = (struct lanes){acc[k < R * S ? k : 0][0], acc[k < R * S ? k : 0][1]};
    _mm_storeu_ps(sums, lanes_tree4(t[0], t[1], t[2], t[3]));
}
