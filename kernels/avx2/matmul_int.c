/* int8 and int4 matrices with AVX2's vpmaddubsw: unsigned times signed bytes, pairs added in 16 bits, which saturates above 32767.
 * int4 stays far below (four products of at most 15 * 127); int8 multiplies |w| by x with w's sign, two products of at most 127 * 127. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/lanes.h"

struct group;
ALWAYS_INLINE __m256i lane_sums(enum weight_format format, struct group w, __m256i x_even, __m256i x_odd, __m256i sums8);

#define VARIANT(name) name##_avx2
#define ROWS_S1 1
#define ROWS_S2 2
#define ROWS_S4 1
#include "kernels/avx2/int_tiles.h"

ALWAYS_INLINE __m256i lane_sums(const enum weight_format format, struct group w, __m256i x_even, __m256i x_odd, __m256i sums8)
{
    const __m256i one = _mm256_set1_epi16(1);
    if (format == FORMAT_INT4) {
        __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(w.even, x_even), _mm256_maddubs_epi16(w.odd, x_odd));
        return _mm256_add_epi32(sums8, _mm256_madd_epi16(pairs, one));
    }
    __m256i even = _mm256_maddubs_epi16(_mm256_abs_epi8(w.even), _mm256_sign_epi8(x_even, w.even));
    __m256i odd = _mm256_maddubs_epi16(_mm256_abs_epi8(w.odd), _mm256_sign_epi8(x_odd, w.odd));
    return _mm256_add_epi32(_mm256_madd_epi16(even, one), _mm256_madd_epi16(odd, one));
}
