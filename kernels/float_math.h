/* f32 functions whose bits we own: fixed order, explicit fma, no libm. Vector variants perform the same operations in the same order. */
#ifndef HEARTH_KERNELS_FLOAT_MATH_H
#define HEARTH_KERNELS_FLOAT_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/formats.h"

/* The reduction tree of every sum; t is destroyed. */
static inline float f32_tree(float t[LANES])
{
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            t[i] += t[i + step];
    return t[0];
}

static inline float f32_power_of_two(int32_t exponent) /* -126 .. 127 */
{
    uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* exp, at most 1 ulp or so off (tests/kernels/test_math.c): x = n ln2 + r, a polynomial of degree 6 (coefficients of the Cephes library's expf, which
 * are the minimax ones), the power of two in two steps so that results below 2^-126 are denormal and not 0. exp(-inf) = 0, exp(inf) = inf. */
#define F32_EXP_LO -104.0f
#define F32_EXP_HI 89.0f
#define F32_LOG2E 1.44269504088896341f
#define F32_LN2_HI 0.693359375f
#define F32_LN2_LO -2.12194440e-4f
#define F32_EXP_P0 1.9875691500e-4f
#define F32_EXP_P1 1.3981999507e-3f
#define F32_EXP_P2 8.3334519073e-3f
#define F32_EXP_P3 4.1665795894e-2f
#define F32_EXP_P4 1.6666665459e-1f
#define F32_EXP_P5 5.0000001201e-1f

static inline float f32_exp(float x)
{
    x = x < F32_EXP_LO ? F32_EXP_LO : x; /* NaN passes through */
    x = x > F32_EXP_HI ? F32_EXP_HI : x;
    float n = rintf(x * F32_LOG2E); /* nearest even */
    float r = fmaf(-n, F32_LN2_HI, x);
    r = fmaf(-n, F32_LN2_LO, r);
    float p = fmaf(F32_EXP_P0, r, F32_EXP_P1);
    p = fmaf(p, r, F32_EXP_P2);
    p = fmaf(p, r, F32_EXP_P3);
    p = fmaf(p, r, F32_EXP_P4);
    p = fmaf(p, r, F32_EXP_P5);
    p = fmaf(p, r * r, r);
    p = p + 1.0f;
    int32_t whole = n == n ? (int32_t)n : 0, half = whole >> 1; /* -151 .. 128 */
    return p * f32_power_of_two(half) * f32_power_of_two(whole - half);
}

static inline float f32_sigmoid(float x)
{
    return 1.0f / (1.0f + f32_exp(-x));
}

#endif
