/* Operations on single rows: kernels/lanes/rows.h with 16 lanes in two registers, and quantising. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/lanes.h"

#define VARIANT(name) name##_avx2
#define MIX_HEADS 4
#define MIX_LANES 1
#include "kernels/lanes/rows.h"

ALWAYS_INLINE uint32_t largest_bits(const float *x)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i all = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int i = 0; i < GROUP_ELEMENTS; i += 8)
        all = _mm256_max_epu32(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + i)), magnitude), all);
    __m128i largest = _mm_max_epu32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    largest = _mm_max_epu32(largest, _mm_shuffle_epi32(largest, 0x4e));
    largest = _mm_max_epu32(largest, _mm_shuffle_epi32(largest, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(largest);
}

ALWAYS_INLINE void round_group(const float *x, float inverse, int8_t *even, int8_t *odd)
{
    const __m256 by = _mm256_set1_ps(inverse);
    /* cvtps rounds to nearest even, as rintf does. Packing works within 128 bits: 16-bit values come out as elements 0-3 8-11 | 4-7 12-15
     * of each 16. */
    __m256i words[4];
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++)
        words[i] = _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16 * i), by)),
                                                               _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16 * i + 8), by))),
                                            0xd8);
    /* Each 32-bit element is an even, then an odd value: shifts pick one, two more packs make bytes of them. */
    __m256i half[2][2];
#pragma GCC unroll 16
    for (int i = 0; i < 2; i++) {
        half[0][i] = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_slli_epi32(words[2 * i], 16), 16),
                                        _mm256_srai_epi32(_mm256_slli_epi32(words[2 * i + 1], 16), 16));
        half[1][i] = _mm256_packs_epi32(_mm256_srai_epi32(words[2 * i], 16), _mm256_srai_epi32(words[2 * i + 1], 16));
    }
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)even, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(half[0][0], half[0][1]), order));
    _mm256_storeu_si256((__m256i *)odd, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(half[1][0], half[1][1]), order));
}

ALWAYS_INLINE void sum_lanes(const int8_t *values, int32_t *lane_sums8)
{
    const __m256i eight = _mm256_set1_epi8(8), minus = _mm256_set1_epi16(-1);
#pragma GCC unroll 16
    for (int half = 0; half < 2; half++) {
        __m256i even = _mm256_loadu_si256((const __m256i *)(values + 32 * half));
        __m256i odd = _mm256_loadu_si256((const __m256i *)(values + GROUP_ELEMENTS + 32 * half));
        __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(eight, even), _mm256_maddubs_epi16(eight, odd));
        _mm256_storeu_si256((__m256i *)(lane_sums8 + LANES / 2 * half), _mm256_madd_epi16(pairs, minus));
    }
}

#include "kernels/lanes/quantize.h"
