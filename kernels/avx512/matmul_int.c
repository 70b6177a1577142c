/* int8 and int4 matrices with vpdpbusd on 512 bits: the 16 lanes of a block are one register. The weights are the unsigned operand (int4
 * as stored, value + 8; int8 with its top bit flipped, value + 128); the sum starts at -8 or -128 times the sum of x, so it ends as the
 * exact integer of the contract. */
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/lanes.h"
#include "kernels/lanes/prefetch.h"

enum {
    ROWS_MAX = 4,
    X_ROWS_MAX = 4,
    TILE_SUMS_MAX = 16,     /* accumulators of the largest tile: half the registers, the other half holds one block of weights and x */
    CHUNK_BLOCKS = 16,      /* blocks whose scales are multiplied together: one tile's products are 2 KiB */
    PANEL_BYTES = 32 << 10, /* weights kept in the first cache while all x rows pass over them */
};

#define VARIANT(name) name##_avx512
#define ROWS_S1 1
#define ROWS_S2 4
#define ROWS_S4 4
#include "kernels/lanes/matmul_int.h"

/* pair[0] for lanes 0-7, pair[1] for lanes 8-15. Two broadcasts from memory, the second under a mask: they leave the units that multiply
 * alone, which one load, a permute and a multiplication by x's scale do not (8 x rows: 0.45 of the peak against 0.41). */
ALWAYS_INLINE __m512 spread_pair(const float *pair)
{
    return _mm512_mask_broadcastss_ps(_mm512_set1_ps(pair[0]), 0xff00, _mm_load_ss(pair + 1));
}

/* The scales of groups [begin, begin + n): of every row, as f32, times every x row, which is the product the contract rounds first. */
ALWAYS_INLINE void multiply_scales(float scales[TILE_SUMS_MAX][2 * CHUNK_BLOCKS], const struct operands *o, int begin, int n,
                                   const enum weight_format format, const int R, const int S)
{
    const int bytes = format == FORMAT_INT4 ? 2 : 4;
    for (int g = 0; g < n; g += LANES) {
        __mmask16 mask = lanes_mask(n - g);
        __m512 x[X_ROWS_MAX];
#pragma GCC unroll 16
        for (int s = 0; s < S; s++)
            x[s] = _mm512_maskz_loadu_ps(mask, o->x_scales + (size_t)s * (size_t)o->n_blocks * 2 + begin + g);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const uint8_t *at = o->w_scales + (size_t)r * o->w_scales_stride + (size_t)(begin + g) * (size_t)bytes;
            _mm_prefetch((const char *)at + prefetch_scales_distance(o->w_scales_stride, R), _MM_HINT_T0);
            __m512 v = format == FORMAT_INT4 ? _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, at)) : _mm512_maskz_loadu_ps(mask, at);
#pragma GCC unroll 16
            for (int s = 0; s < S; s++)
                _mm512_store_ps(scales[s * R + r] + g, _mm512_mul_ps(v, x[s]));
        }
    }
}

/* One block of one row as the unsigned operands of its even and odd elements. */
struct block {
    __m512i even, odd;
};

ALWAYS_INLINE struct block load_block(const uint8_t *at, const enum weight_format format)
{
    __m512i first = _mm512_loadu_si512(at);
    if (format == FORMAT_INT4) {
        const __m512i nibble = _mm512_set1_epi8(15);
        return (struct block){_mm512_and_si512(first, nibble), _mm512_and_si512(_mm512_srli_epi16(first, 4), nibble)};
    }
    const __m512i top = _mm512_set1_epi8((char)0x80);
    return (struct block){_mm512_xor_si512(first, top), _mm512_xor_si512(_mm512_loadu_si512(at + GROUP_ELEMENTS), top)};
}

/* R rows by S x rows. Weights are loaded once for all S, x once for all R. */
ALWAYS_INLINE void tile_sums(float *sums, const struct operands *o, const enum weight_format format, const int R, const int S)
{
    const size_t block_bytes = format == FORMAT_INT4 ? GROUP_ELEMENTS : BLOCK_ELEMENTS;
    const size_t blocks = (size_t)o->n_blocks;
    _Alignas(64) float scales[TILE_SUMS_MAX][2 * CHUNK_BLOCKS];
    struct prefetch ahead = prefetch_start(o->w_stride, R);
    struct lanes acc[TILE_SUMS_MAX];
#pragma GCC unroll 16
    for (int k = 0; k < R * S; k++)
        acc[k] = lanes_set1(0.0f);
    for (int begin = 0; begin < o->n_blocks; begin += CHUNK_BLOCKS) {
        int end = begin + CHUNK_BLOCKS < o->n_blocks ? begin + CHUNK_BLOCKS : o->n_blocks;
        multiply_scales(scales, o, 2 * begin, 2 * (end - begin), format, R, S);
        for (int b = begin; b < end; b++) {
            prefetch_step(&ahead, o->w, block_bytes, R);
            struct block w[ROWS_MAX];
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                const uint8_t *at = o->w + (size_t)r * o->w_stride + (size_t)b * block_bytes;
                w[r] = load_block(at, format);
            }
#pragma GCC unroll 16
            for (int s = 0; s < S; s++) {
                const size_t at = (size_t)s * blocks + (size_t)b;
                __m512i even = _mm512_loadu_si512(o->x + at * BLOCK_ELEMENTS);
                __m512i odd = _mm512_loadu_si512(o->x + at * BLOCK_ELEMENTS + GROUP_ELEMENTS);
                __m512i start = _mm512_loadu_si512(o->lane_sums8 + at * LANES);
                if (format == FORMAT_INT8)
                    start = _mm512_slli_epi32(start, 4);
#pragma GCC unroll 16
                for (int r = 0; r < R; r++) {
                    __m512i isum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(start, w[r].even, even), w[r].odd, odd);
                    __m512 scale = spread_pair(scales[s * R + r] + 2 * (b - begin));
                    acc[s * R + r].all = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum), scale, acc[s * R + r].all);
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int k = 0; k < R * S; k += 4)
        _mm_storeu_ps(sums + k,
                      lanes_tree4(acc[k], acc[k + 1 < R * S ? k + 1 : k], acc[k + 2 < R * S ? k + 2 : k], acc[k + 3 < R * S ? k + 3 : k]));
}
