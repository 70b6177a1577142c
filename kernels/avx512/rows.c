/* Operations on single rows: kernels/lanes/rows.h with 16 lanes in one register, and quantising. */
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/lanes.h"

#define VARIANT(name) name##_avx512
#define MIX_HEADS 4
#define MIX_LANES 4
#include "kernels/lanes/rows.h"

void axpy_avx512(float *acc, float w, const float *x, int n)
{
    struct lanes k = lanes_set1(w);
    OVER_LANES(i, n, lanes_store(acc + i, lanes_fma(k, lanes_load(x + i), lanes_load(acc + i))),
               lanes_store_first(acc + i, lanes_fma(k, lanes_load_first(x + i, n - i), lanes_load_first(acc + i, n - i)), n - i));
}

ALWAYS_INLINE uint32_t largest_bits(const float *x)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 16
    for (int i = 0; i < GROUP_ELEMENTS; i += LANES)
        largest = _mm512_max_epu32(_mm512_and_si512(_mm512_loadu_si512(x + i), magnitude), largest);
    return _mm512_reduce_max_epu32(largest);
}

ALWAYS_INLINE void round_group(const float *x, float inverse, int8_t *even, int8_t *odd)
{
    __m128i q[4]; /* cvtps rounds to nearest even, as rintf does */
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++)
        q[i] = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), _mm512_set1_ps(inverse))));
    __m512i pairs = _mm512_inserti32x4(_mm512_inserti32x4(_mm512_inserti32x4(_mm512_castsi128_si512(q[0]), q[1], 1), q[2], 2), q[3], 3);
    _mm256_storeu_si256((__m256i *)even, _mm512_cvtepi16_epi8(pairs));
    _mm256_storeu_si256((__m256i *)odd, _mm512_cvtepi16_epi8(_mm512_srli_epi16(pairs, 8)));
}

ALWAYS_INLINE void sum_lanes(const int8_t *values, int32_t *lane_sums8)
{
    const __m512i eight = _mm512_set1_epi8(8), zero = _mm512_setzero_si512();
    __m512i sums = _mm512_dpbusd_epi32(zero, eight, _mm512_loadu_si512(values));
    sums = _mm512_dpbusd_epi32(sums, eight, _mm512_loadu_si512(values + GROUP_ELEMENTS));
    _mm512_storeu_si512(lane_sums8, _mm512_sub_epi32(zero, sums));
}

#include "kernels/lanes/quantize.h"
