/* The 16 lanes of the numeric contract in one AVX-512 register. kernels/avx2/lanes.h has the same names over two registers, and
 * kernels/lanes/ holds the operations that are written once over these names. Included by the files of this folder only. */
#ifndef HEARTH_KERNELS_AVX512_LANES_H
#define HEARTH_KERNELS_AVX512_LANES_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/float_math.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

struct lanes {
    __m512 all;
};

/* The first n lanes, n >= 1; 16 and more are all. */
ALWAYS_INLINE __mmask16 lanes_mask(int n)
{
    return n >= LANES ? (__mmask16)-1 : (__mmask16)((1u << n) - 1);
}

ALWAYS_INLINE struct lanes lanes_set1(float v)
{
    return (struct lanes){_mm512_set1_ps(v)};
}

ALWAYS_INLINE struct lanes lanes_load(const float *p)
{
    return (struct lanes){_mm512_loadu_ps(p)};
}

/* The first n < 16 from memory, +0 in the others; nothing behind them is read. */
ALWAYS_INLINE struct lanes lanes_load_first(const float *p, int n)
{
    return (struct lanes){_mm512_maskz_loadu_ps(lanes_mask(n), p)};
}

ALWAYS_INLINE struct lanes lanes_load_bf16(const uint16_t *p)
{
    return (struct lanes){_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16))};
}

ALWAYS_INLINE struct lanes lanes_load_bf16_first(const uint16_t *p, int n)
{
    return (struct lanes){_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes_mask(n), p)), 16))};
}

ALWAYS_INLINE void lanes_store(float *p, struct lanes v)
{
    _mm512_storeu_ps(p, v.all);
}

ALWAYS_INLINE void lanes_store_first(float *p, struct lanes v, int n)
{
    _mm512_mask_storeu_ps(p, lanes_mask(n), v.all);
}

ALWAYS_INLINE struct lanes lanes_keep_first(struct lanes v, int n)
{
    return (struct lanes){_mm512_maskz_mov_ps(lanes_mask(n), v.all)};
}

ALWAYS_INLINE struct lanes lanes_add(struct lanes a, struct lanes b)
{
    return (struct lanes){_mm512_add_ps(a.all, b.all)};
}

ALWAYS_INLINE struct lanes lanes_sub(struct lanes a, struct lanes b)
{
    return (struct lanes){_mm512_sub_ps(a.all, b.all)};
}

ALWAYS_INLINE struct lanes lanes_mul(struct lanes a, struct lanes b)
{
    return (struct lanes){_mm512_mul_ps(a.all, b.all)};
}

ALWAYS_INLINE struct lanes lanes_div(struct lanes a, struct lanes b)
{
    return (struct lanes){_mm512_div_ps(a.all, b.all)};
}

ALWAYS_INLINE struct lanes lanes_fma(struct lanes a, struct lanes b, struct lanes c)
{
    return (struct lanes){_mm512_fmadd_ps(a.all, b.all, c.all)};
}

/* fma(-a, b, c) */
ALWAYS_INLINE struct lanes lanes_fnma(struct lanes a, struct lanes b, struct lanes c)
{
    return (struct lanes){_mm512_fnmadd_ps(a.all, b.all, c.all)};
}

/* a > b ? a : b, so a NaN in b stays; likewise the smaller. */
ALWAYS_INLINE struct lanes lanes_max(struct lanes a, struct lanes b)
{
    return (struct lanes){_mm512_max_ps(a.all, b.all)};
}

ALWAYS_INLINE struct lanes lanes_min(struct lanes a, struct lanes b)
{
    return (struct lanes){_mm512_min_ps(a.all, b.all)};
}

ALWAYS_INLINE struct lanes lanes_negate(struct lanes v)
{
    return (struct lanes){_mm512_xor_ps(v.all, _mm512_set1_ps(-0.0f))};
}

ALWAYS_INLINE struct lanes lanes_rint(struct lanes v)
{
    return (struct lanes){_mm512_roundscale_ps(v.all, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

/* v * 2^n for whole n, in the two steps of f32_exp. */
ALWAYS_INLINE struct lanes lanes_scale(struct lanes v, struct lanes n)
{
    __m512i whole = _mm512_cvtps_epi32(n.all), half = _mm512_srai_epi32(whole, 1), bias = _mm512_set1_epi32(127);
    __m512 first = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23));
    __m512 second = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(whole, half), bias), 23));
    return (struct lanes){_mm512_mul_ps(_mm512_mul_ps(v.all, first), second)};
}

ALWAYS_INLINE float lanes_largest(struct lanes v)
{
    return _mm512_reduce_max_ps(v.all);
}

/* f32_tree of four sums at once: 13 instructions where one at a time takes 32, which is a tenth of a row of 16 blocks. */
ALWAYS_INLINE __m128 lanes_tree4(struct lanes a, struct lanes b, struct lanes c, struct lanes d)
{
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a.all, b.all, 0x44), _mm512_shuffle_f32x4(a.all, b.all, 0xee)); /* + 8 */
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c.all, d.all, 0x44), _mm512_shuffle_f32x4(c.all, d.all, 0xee));
    __m512 t = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd)); /* + 4: four values of each sum */
    t = _mm512_add_ps(t, _mm512_permute_ps(t, 0x4e));                                                 /* + 2 */
    t = _mm512_add_ps(t, _mm512_permute_ps(t, 0xb1));                                                 /* + 1 */
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, t));
}

ALWAYS_INLINE float lanes_tree(struct lanes v)
{
    return _mm_cvtss_f32(lanes_tree4(v, v, v, v));
}

#endif
