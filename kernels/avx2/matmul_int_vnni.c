/* int8 and int4 matrices with AVX-VNNI's vpdpbusd on 256 bits (this file alone is compiled with -mavxvnni). The weights are the unsigned
 * operand (int4 as stored, value + 8; int8 with its top bit flipped, value + 128); the sum starts at -8 or -128 times the sum of x. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/lanes.h"

struct group;
ALWAYS_INLINE __m256i lane_sums(enum weight_format format, struct group w, __m256i x_even, __m256i x_odd, __m256i sums8);

#define VARIANT(name) name##_avx_vnni
#define ROWS_S1 1
#define ROWS_S2 2
#define ROWS_S4 1
#include "kernels/avx2/int_tiles.h"

ALWAYS_INLINE __m256i lane_sums(const enum weight_format format, struct group w, __m256i x_even, __m256i x_odd, __m256i sums8)
{
    if (format == FORMAT_INT4)
        return _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(sums8, w.even, x_even), w.odd, x_odd);
    const __m256i top = _mm256_set1_epi8((char)0x80);
    sums8 = _mm256_slli_epi32(sums8, 4);
    return _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(sums8, _mm256_xor_si256(w.even, top), x_even), _mm256_xor_si256(w.odd, top),
                                   x_odd);
}
