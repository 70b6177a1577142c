#include "model/quantize.h"

#include <math.h>
#include <string.h>

#include "kernels/formats.h"

float absmax_of(const float *w, int64_t n)
{
    float absmax = 0; /* a maximum has no rounding: any order gives the same */
    for (int64_t i = 0; i < n; i++) {
        float magnitude = fabsf(w[i]);
        absmax = magnitude > absmax ? magnitude : absmax;
    }
    return absmax;
}

static float group_absmax(const float group[GROUP_ELEMENTS])
{
    float lanes[LANES] = {0}, absmax = 0;
    for (int i = 0; i < GROUP_ELEMENTS; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float magnitude = fabsf(group[i + l]);
            lanes[l] = magnitude > lanes[l] ? magnitude : lanes[l];
        }
    for (int l = 0; l < LANES; l++)
        absmax = lanes[l] > absmax ? lanes[l] : absmax;
    return absmax;
}

/* Group g of a row, padded with zeros, multiplied by a power of two. */
static void load_group(const float *w, int cols, int g, float factor, float out[GROUP_ELEMENTS])
{
    int begin = g * GROUP_ELEMENTS, n = cols - begin;
    n = n < 0 ? 0 : n < GROUP_ELEMENTS ? n : GROUP_ELEMENTS;
    for (int i = 0; i < n; i++)
        out[i] = w[begin + i] * factor;
    for (int i = n; i < GROUP_ELEMENTS; i++)
        out[i] = 0;
}

static inline float clamp(float value, float low, float high)
{
    value = value < low ? low : value;
    return value > high ? high : value;
}

void quantize_row_int8(const float *w, int cols, int8_t *data, float *scales)
{
    float group[GROUP_ELEMENTS];
    int8_t values[GROUP_ELEMENTS];
    for (int g = 0; g < 2 * blocks_of(cols); g++) {
        load_group(w, cols, g, 1.0f, group);
        float scale = group_absmax(group) / 127.0f;
        scales[g] = scale;
        if (scale == 0.0f)
            memset(values, 0, sizeof values);
        else
            for (int i = 0; i < GROUP_ELEMENTS; i++)
                values[i] = (int8_t)(int)clamp(rintf(group[i] / scale), -127.0f, 127.0f);
        /* even elements of the block first, then odd ones: this group fills a half of each */
        int8_t *block = data + g / 2 * BLOCK_ELEMENTS + g % 2 * (GROUP_ELEMENTS / 2);
        for (int i = 0; i < GROUP_ELEMENTS / 2; i++) {
            block[i] = values[2 * i];
            block[GROUP_ELEMENTS + i] = values[2 * i + 1];
        }
    }
}

int quantize_int4_exponent(float absmax)
{
    uint32_t bits;
    memcpy(&bits, &absmax, 4);
    int exponent = (int)(bits >> 23) - 127 - 15; /* subnormal absmax: as small as the smallest normal */
    return exponent < -126 ? -126 : exponent;
}

/* Candidate scales of a group are  -w* / d  and  w* / d, where w* is the element of largest magnitude: with the first, w* lands on -8 for d
 * = 8, with the second on 7 for d = 7; a smaller d leaves head room for the others' rounding, a larger d clips w* for a finer step.
 * Squared error against plain rounding (absmax / 7) on normal weights: these 32 give 0.699, 16 candidates 0.707, 64 give 0.695 at half the
 * speed; a least squares refit of the best one gives 0.696 at two thirds of the speed. */
enum { CANDIDATES = 32, PER_SIGN = CANDIDATES / 2 };
static const float DIVISOR_FIRST = 6.25f, DIVISOR_STEP = 0.25f; /* 6.25 .. 10.0 */

/* Nearest f16 value, nearest even, in the range of normal f16. Below that the caller asks kernels/formats.h. */
static inline float round_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~(uint32_t)0x1fff;
    memcpy(&value, &bits, 4);
    return value;
}

static float largest(const float group[GROUP_ELEMENTS])
{
    float best = 0;
    for (int i = 0; i < GROUP_ELEMENTS; i++)
        best = fabsf(group[i]) > fabsf(best) ? group[i] : best;
    return best;
}

/* Squared error of every candidate; each sum runs over the elements in their order, so the candidates are the vector lanes. */
static void candidate_errors(const float group[GROUP_ELEMENTS], const float scales[CANDIDATES], float errors[CANDIDATES])
{
    float inverse[CANDIDATES], sums[CANDIDATES];
    for (int c = 0; c < CANDIDATES; c++) {
        inverse[c] = 1.0f / scales[c];
        sums[c] = 0;
    }
    for (int i = 0; i < GROUP_ELEMENTS; i++)
        for (int c = 0; c < CANDIDATES; c++) {
            float value = clamp(rintf(group[i] * inverse[c]), -8.0f, 7.0f), rest = fmaf(-value, scales[c], group[i]);
            sums[c] = fmaf(rest, rest, sums[c]);
        }
    for (int c = 0; c < CANDIDATES; c++)
        errors[c] = sums[c];
}

/* The scale of a group whose weights were divided by 2^exponent; 0 for a group of zeros. */
static float choose_scale(const float group[GROUP_ELEMENTS])
{
    float top = largest(group), scales[CANDIDATES], errors[CANDIDATES];
    for (int c = 0; c < PER_SIGN; c++) {
        scales[c] = round_to_f16(-top / (DIVISOR_FIRST + DIVISOR_STEP * (float)c));
        scales[PER_SIGN + c] = -scales[c];
    }
    if (fabsf(scales[PER_SIGN - 1]) < 0x1p-14f) { /* too small for a search: below 2^-25 of the matrix's largest weight, or zero */
        return f16_to_f32(f32_to_f16(-top / 8.0f));
    }
    candidate_errors(group, scales, errors);
    int best = 0;
    for (int c = 1; c < CANDIDATES; c++)
        best = errors[c] < errors[best] ? c : best;
    return scales[best];
}

void quantize_row_int4(const float *w, int cols, int exponent, uint8_t *data, uint16_t *scales)
{
    float group[GROUP_ELEMENTS], factor = ldexpf(1.0f, -exponent);
    for (int g = 0; g < 2 * blocks_of(cols); g++) {
        load_group(w, cols, g, factor, group);
        float scale = choose_scale(group), inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
        int values[GROUP_ELEMENTS];
        for (int i = 0; i < GROUP_ELEMENTS; i++)
            values[i] = (int)clamp(rintf(group[i] * inverse), -8.0f, 7.0f) + 8;
        uint8_t *half_block = data + g * (GROUP_ELEMENTS / 2);
        for (int i = 0; i < GROUP_ELEMENTS / 2; i++)
            half_block[i] = (uint8_t)(values[2 * i] | values[2 * i + 1] << 4);
        scales[g] = f32_to_f16(scale);
    }
}
