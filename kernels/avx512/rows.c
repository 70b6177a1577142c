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

/* One group of 64: returns its even elements in the low 32 bytes' order of the format, odd ones behind. */
ALWAYS_INLINE void quantize_group(const float *x, int8_t *even, int8_t *odd, float *scale)
{
    const __m512 v[4] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16), _mm512_loadu_ps(x + 32), _mm512_loadu_ps(x + 48)};
    __m512 largest =
        _mm512_max_ps(_mm512_max_ps(_mm512_abs_ps(v[0]), _mm512_abs_ps(v[1])), _mm512_max_ps(_mm512_abs_ps(v[2]), _mm512_abs_ps(v[3])));
    float absmax = _mm512_reduce_max_ps(largest);
    *scale = absmax < 0x1p-100f ? 0.0f : absmax / 127.0f;
    const __m512 inverse = _mm512_set1_ps(absmax < 0x1p-100f ? 0.0f : 127.0f / absmax);
    __m128i q[4]; /* cvtps rounds to nearest even, as rintf does */
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++)
        q[i] = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(v[i], inverse)));
    __m512i pairs = _mm512_inserti32x4(_mm512_inserti32x4(_mm512_inserti32x4(_mm512_castsi128_si512(q[0]), q[1], 1), q[2], 2), q[3], 3);
    _mm256_storeu_si256((__m256i *)even, _mm512_cvtepi16_epi8(pairs));
    _mm256_storeu_si256((__m256i *)odd, _mm512_cvtepi16_epi8(_mm512_srli_epi16(pairs, 8)));
}

static void quantize_block(const float *x, int8_t *values, float *scales, int32_t *lane_sums8)
{
    quantize_group(x, values, values + GROUP_ELEMENTS, scales);
    quantize_group(x + GROUP_ELEMENTS, values + GROUP_ELEMENTS / 2, values + GROUP_ELEMENTS + GROUP_ELEMENTS / 2, scales + 1);
    const __m512i eight = _mm512_set1_epi8(8), zero = _mm512_setzero_si512();
    __m512i sums = _mm512_dpbusd_epi32(zero, eight, _mm512_loadu_si512(values));
    sums = _mm512_dpbusd_epi32(sums, eight, _mm512_loadu_si512(values + GROUP_ELEMENTS));
    _mm512_storeu_si512(lane_sums8, _mm512_sub_epi32(zero, sums));
}

void quantize_row_avx512(const float *x, int cols, int8_t *values, float *scales, int32_t *lane_sums8)
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
