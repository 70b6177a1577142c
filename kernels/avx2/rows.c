/* Operations on single rows: kernels/lanes/rows.h with 16 lanes in two registers, and quantising. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/lanes.h"

#define VARIANT(name) name##_avx2
#define MIX_HEADS 4
#define MIX_LANES 1
#include "kernels/lanes/rows.h"

/* One group of 64, its even and odd elements apart. */
ALWAYS_INLINE void quantize_group(const float *x, int8_t *even, int8_t *odd, float *scale)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    struct lanes largest = lanes_set1(0.0f);
#pragma GCC unroll 16
    for (int i = 0; i < GROUP_ELEMENTS; i += LANES) {
        struct lanes v = lanes_load(x + i);
        largest = lanes_max((struct lanes){_mm256_and_ps(v.lo, magnitude), _mm256_and_ps(v.hi, magnitude)}, largest);
    }
    float absmax = lanes_largest(largest);
    *scale = absmax < 0x1p-100f ? 0.0f : absmax / 127.0f;
    const __m256 inverse = _mm256_set1_ps(absmax < 0x1p-100f ? 0.0f : 127.0f / absmax);
    /* cvtps rounds to nearest even, as rintf does. Packing works within 128 bits: 16-bit values come out as elements 0-3 8-11 | 4-7 12-15
     * of each 16. */
    __m256i words[4];
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++)
        words[i] = _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16 * i), inverse)),
                                                               _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16 * i + 8), inverse))),
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

static void quantize_block(const float *x, int8_t *values, float *scales, int32_t *lane_sums8)
{
    quantize_group(x, values, values + GROUP_ELEMENTS, scales);
    quantize_group(x + GROUP_ELEMENTS, values + GROUP_ELEMENTS / 2, values + GROUP_ELEMENTS + GROUP_ELEMENTS / 2, scales + 1);
    const __m256i eight = _mm256_set1_epi8(8), minus = _mm256_set1_epi16(-1);
#pragma GCC unroll 16
    for (int half = 0; half < 2; half++) {
        __m256i even = _mm256_loadu_si256((const __m256i *)(values + 32 * half));
        __m256i odd = _mm256_loadu_si256((const __m256i *)(values + GROUP_ELEMENTS + 32 * half));
        __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(eight, even), _mm256_maddubs_epi16(eight, odd));
        _mm256_storeu_si256((__m256i *)(lane_sums8 + LANES / 2 * half), _mm256_madd_epi16(pairs, minus));
    }
}

void quantize_row_avx2(const float *x, int cols, int8_t *values, float *scales, int32_t *lane_sums8)
{
    int b = 0;
    for (; (b + 1) * BLOCK_ELEMENTS <= cols; b++)
        quantize_block(x + b * BLOCK_ELEMENTS, values + b * BLOCK_ELEMENTS, scales + 2 * b, lane_sums8 + b * LANES);
    if (b * BLOCK_ELEMENTS < cols) {
        float padded[BLOCK_ELEMENTS] = {0};
        memcpy(padded, x + b * BLOCK_ELEMENTS, (size_t)(cols - b * BLOCK_ELEMENTS) * sizeof *x);
        quantize_block(padded, values + b * BLOCK_ELEMENTS, scales + 2 * b, lane_sums8 + b * LANES);
    }
}
