#include "model/fp8.h"

#include <string.h>

#include "kernels/formats.h"

static inline float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* The code's 7 magnitude bits, moved to the top of an f32, are an f32 whose exponent is 120 too small. A subnormal code (exponent 0) gets
 * 121, so that its implicit one stands for 2^-6, which is taken away again: exact, and no slow f32 subnormals on the way. */
static inline float decode(uint8_t code)
{
    uint32_t magnitude = code & 0x7f, sign = (uint32_t)(code & 0x80) << 24;
    int is_subnormal = magnitude < 8;
    float value = from_bits((magnitude << 20) + ((uint32_t)(120 + is_subnormal) << 23)) - (is_subnormal ? 0x1p-6f : 0.0f);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits |= sign | (magnitude == 0x7f ? 0x7fc00000 : 0);
    return from_bits(bits);
}

float fp8_to_f32(uint8_t code)
{
    return decode(code);
}

int fp8_row_to_f32(const uint8_t *codes, const float *scales, int cols, float *out)
{
    for (int begin = 0; begin < cols; begin += FP8_BLOCK) {
        int n = cols - begin < FP8_BLOCK ? cols - begin : FP8_BLOCK;
        float scale = scales[begin / FP8_BLOCK];
        for (int i = 0; i < n; i++)
            out[begin + i] = decode(codes[begin + i]) * scale;
    }
    return f32_all_finite(out, cols);
}

int f32_all_finite(const float *values, int64_t n)
{
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        bad |= (bits & 0x7f800000) == 0x7f800000;
    }
    return !bad;
}

int bf16_all_finite(const uint16_t *values, int64_t n)
{
    unsigned bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad |= (values[i] & 0x7f80) == 0x7f80;
    return !bad;
}
