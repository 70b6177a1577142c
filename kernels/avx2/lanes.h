/* The 16 lanes of the numeric contract in two AVX2 registers. kernels/avx512/lanes.h has the same names over one register, and
 * kernels/lanes/ holds the operations that are written once over these names. Included by the files of this folder only. */
#ifndef HEARTH_KERNELS_AVX2_LANES_H
#define HEARTH_KERNELS_AVX2_LANES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/float_math.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

struct lanes {
    __m256 lo, hi; /* lanes 0-7, 8-15 */
};

/* All ones in the first n of 8 elements, zero in the others; n may be below 0 or above 8. */
ALWAYS_INLINE __m256i lanes_mask8(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

ALWAYS_INLINE struct lanes lanes_set1(float v)
{
    return (struct lanes){_mm256_set1_ps(v), _mm256_set1_ps(v)};
}

ALWAYS_INLINE struct lanes lanes_load(const float *p)
{
    return (struct lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

/* The first n < 16 from memory, +0 in the others; nothing behind them is read. */
ALWAYS_INLINE struct lanes lanes_load_first(const float *p, int n)
{
    __m256 lo = _mm256_maskload_ps(p, lanes_mask8(n));
    return (struct lanes){lo, n > 8 ? _mm256_maskload_ps(p + 8, lanes_mask8(n - 8)) : _mm256_setzero_ps()};
}

ALWAYS_INLINE __m256 lanes_widen_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}

ALWAYS_INLINE struct lanes lanes_load_bf16(const uint16_t *p)
{
    return (struct lanes){lanes_widen_bf16(p), lanes_widen_bf16(p + 8)};
}

ALWAYS_INLINE struct lanes lanes_load_bf16_first(const uint16_t *p, int n)
{
    uint16_t padded[LANES] = {0}; /* AVX2 has no masked load of 16-bit elements */
    memcpy(padded, p, (size_t)n * sizeof *p);
    return lanes_load_bf16(padded);
}

ALWAYS_INLINE void lanes_store(float *p, struct lanes v)
{
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}

ALWAYS_INLINE void lanes_store_first(float *p, struct lanes v, int n)
{
    _mm256_maskstore_ps(p, lanes_mask8(n), v.lo);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, lanes_mask8(n - 8), v.hi);
}

ALWAYS_INLINE struct lanes lanes_keep_first(struct lanes v, int n)
{
    return (struct lanes){_mm256_and_ps(v.lo, _mm256_castsi256_ps(lanes_mask8(n))),
                          _mm256_and_ps(v.hi, _mm256_castsi256_ps(lanes_mask8(n - 8)))};
}

ALWAYS_INLINE struct lanes lanes_add(struct lanes a, struct lanes b)
{
    return (struct lanes){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

ALWAYS_INLINE struct lanes lanes_sub(struct lanes a, struct lanes b)
{
    return (struct lanes){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

ALWAYS_INLINE struct lanes lanes_mul(struct lanes a, struct lanes b)
{
    return (struct lanes){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

ALWAYS_INLINE struct lanes lanes_div(struct lanes a, struct lanes b)
{
    return (struct lanes){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

ALWAYS_INLINE struct lanes lanes_fma(struct lanes a, struct lanes b, struct lanes c)
{
    return (struct lanes){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

/* fma(-a, b, c) */
ALWAYS_INLINE struct lanes lanes_fnma(struct lanes a, struct lanes b, struct lanes c)
{
    return (struct lanes){_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}

/* a > b ? a : b, so a NaN in b stays; likewise the smaller. */
ALWAYS_INLINE struct lanes lanes_max(struct lanes a, struct lanes b)
{
    return (struct lanes){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

ALWAYS_INLINE struct lanes lanes_min(struct lanes a, struct lanes b)
{
    return (struct lanes){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

ALWAYS_INLINE struct lanes lanes_negate(struct lanes v)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (struct lanes){_mm256_xor_ps(v.lo, sign), _mm256_xor_ps(v.hi, sign)};
}

ALWAYS_INLINE struct lanes lanes_rint(struct lanes v)
{
    return (struct lanes){_mm256_round_ps(v.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                          _mm256_round_ps(v.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

ALWAYS_INLINE __m256 lanes_scale8(__m256 v, __m256 n)
{
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    __m256 second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(v, first), second);
}

/* v * 2^n for whole n, in the two steps of f32_exp. */
ALWAYS_INLINE struct lanes lanes_scale(struct lanes v, struct lanes n)
{
    return (struct lanes){lanes_scale8(v.lo, n.lo), lanes_scale8(v.hi, n.hi)};
}

ALWAYS_INLINE float lanes_largest(struct lanes v)
{
    __m256 m8 = _mm256_max_ps(v.lo, v.hi);
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}

/* f32_tree of four sums at once. */
ALWAYS_INLINE __m128 lanes_tree4(struct lanes a, struct lanes b, struct lanes c, struct lanes d)
{
    __m256 a8 = _mm256_add_ps(a.lo, a.hi), b8 = _mm256_add_ps(b.lo, b.hi); /* + 8 */
    __m256 c8 = _mm256_add_ps(c.lo, c.hi), d8 = _mm256_add_ps(d.lo, d.hi);
    __m256 ac = _mm256_add_ps(_mm256_permute2f128_ps(a8, c8, 0x20), _mm256_permute2f128_ps(a8, c8, 0x31)); /* + 4 */
    __m256 bd = _mm256_add_ps(_mm256_permute2f128_ps(b8, d8, 0x20), _mm256_permute2f128_ps(b8, d8, 0x31));
    __m256 t = _mm256_add_ps(_mm256_shuffle_ps(ac, bd, 0x44), _mm256_shuffle_ps(ac, bd, 0xee)); /* + 2: a0 a1 b0 b1 | c0 c1 d0 d1 */
    t = _mm256_add_ps(t, _mm256_permute_ps(t, 0xb1));                                           /* + 1: a a b b | c c d d */
    return _mm_shuffle_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1), 0x88);
}

ALWAYS_INLINE float lanes_tree(struct lanes v)
{
    return _mm_cvtss_f32(lanes_tree4(v, v, v, v));
}

#endif
