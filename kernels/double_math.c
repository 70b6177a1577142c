#include "kernels/double_math.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/check.h"

static const double LN2_HI = 0x1.62e42fefa39efp-1, LN2_LO = 0x1.abc9e3b39803fp-56;

/* x = 2^exponent * m with m in [sqrt(1/2), sqrt(2)); f = m - 1; s = f / (2 + f); log(m) = 2 s + 2 s^3/3 + 2 s^5/5 + ... */
static double log_parts(double x, int *exponent, double *low)
{
    uint64_t bits;
    if (x < 0x1p-1022) { /* denormal */
        double r = log_parts(x * 0x1p54, exponent, low);
        *exponent -= 54;
        return r;
    }
    memcpy(&bits, &x, 8);
    *exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
    double m;
    memcpy(&m, &bits, 8);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        *exponent += 1;
    }
    double f = m - 1.0, d = 2.0 + f, s = f / d;
    double s_low = fma(-s, d, f) / d + 0.0; /* the quotient's remainder */
    if (d - 2.0 != f)
        s_low -= s * (f - (d - 2.0)) / d;
    double z = s * s, p = 2.0 / 23;
    for (int k = 21; k >= 3; k -= 2)
        p = fma(p, z, 2.0 / k);
    *low = fma(2.0, s_low, s * z * p);
    return 2.0 * s;
}

double f64_log(double x)
{
    if (!(x >= 0))
        return NAN;
    if (x == 0)
        return -INFINITY;
    if (isinf(x))
        return x;
    int e;
    double low, high = log_parts(x, &e, &low);
    return fma((double)e, LN2_HI, high) + fma((double)e, LN2_LO, low);
}

/* e^(x + low) for a small correction low. */
static double exp_parts(double x, double low)
{
    if (x > 709.78)
        return INFINITY;
    if (x < -708.0)
        return 0.0;
    double n = rint(x * 1.4426950408889634);
    double r = fma(-n, LN2_HI, x);
    r = fma(-n, LN2_LO, r) + low;
    double p = 1.0;
    for (int k = 14; k >= 1; k--)
        p = fma(p * r, 1.0 / k, 1.0);
    int64_t whole = (int64_t)n, half = whole / 2;
    uint64_t a = (uint64_t)(half + 1023) << 52, b = (uint64_t)(whole - half + 1023) << 52;
    double fa, fb;
    memcpy(&fa, &a, 8);
    memcpy(&fb, &b, 8);
    return p * fa * fb;
}

double f64_exp(double x)
{
    return x == x ? exp_parts(x, 0.0) : x;
}

double f64_pow(double base, double exponent)
{
    CHECK(base > 0);
    int e;
    double low, high = log_parts(base, &e, &low);
    double l = fma((double)e, LN2_HI, high);
    double rest = (fma((double)e, LN2_HI, -l) + high) + fma((double)e, LN2_LO, low);
    double product = l * exponent;
    return exp_parts(product, fma(l, exponent, -product) + rest * exponent);
}

void f64_sincos(double x, double *sine, double *cosine)
{
    CHECK(fabs(x) <= 0x1p24);
    double n = rint(x * 0.63661977236758134); /* 2 / pi */
    double r = fma(-n, 0x1.921fb54442d18p+0, x);
    r = fma(-n, 0x1.1a62633145c07p-54, r);
    double z = r * r, s = -1.0 / 1307674368000.0, c = 1.0 / 20922789888000.0;
    static const double sine_terms[] = {1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0};
    static const double cosine_terms[] = {-1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5};
    for (int i = 0; i < 6; i++)
        s = fma(s, z, sine_terms[i]);
    for (int i = 0; i < 7; i++)
        c = fma(c, z, cosine_terms[i]);
    s = fma(s * z, r, r);
    c = fma(c, z, 1.0);
    int quadrant = (int)((int64_t)n & 3);
    double a = quadrant & 1 ? c : s, b = quadrant & 1 ? s : c;
    *sine = quadrant & 2 ? -a : a;
    *cosine = quadrant == 1 || quadrant == 2 ? -b : b;
}

void rope_table(float *cosine, float *sine, int position, int dim, double theta)
{
    for (int j = 0; j < dim / 2; j++) {
        float omega = 1.0f / (float)f64_pow(theta, (double)((float)(2 * j) / (float)dim));
        float phi = (float)position * omega;
        double s, c;
        f64_sincos((double)phi, &s, &c);
        sine[j] = (float)s;
        cosine[j] = (float)c;
    }
}

void rope_rotate(float *x, int n_heads, int stride, int dim, const float *cosine, const float *sine)
{
    for (int h = 0; h < n_heads; h++) {
        float *v = x + (size_t)h * (size_t)stride;
        for (int j = 0; j < dim / 2; j++) {
            float a = v[2 * j], b = v[2 * j + 1];
            v[2 * j] = fmaf(a, cosine[j], -(b * sine[j]));
            v[2 * j + 1] = fmaf(b, cosine[j], a * sine[j]);
        }
    }
}
