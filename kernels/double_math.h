/* double functions whose bits we own: plain C with explicit fma, the same on every machine. For rope tables, log-sum-exp and sampling. */
#ifndef HEARTH_KERNELS_DOUBLE_MATH_H
#define HEARTH_KERNELS_DOUBLE_MATH_H

/* Natural logarithm, within 2 ulp. log(0) = -inf, negative or NaN: NaN. */
double f64_log(double x);
/* e^x, within 2 ulp; overflow to inf, underflow to 0 (results below the normal range are flushed). */
double f64_exp(double x);
/* base^exponent for base > 0, by exp(exponent * log(base)) carried in two doubles: within 1e-14 relative. */
double f64_pow(double base, double exponent);
/* sine and cosine of x, |x| <= 2^24, absolute error below 1e-14. */
void f64_sincos(double x, double *sine, double *cosine);

/* The rotary table of one position: cos, sin [dim / 2]. omega_j = 1 / f32(theta^(2j/dim)) in f32, phi = position * omega_j rounded to f32, sine and cosine of phi in
 * double, rounded to f32 (docs/MODEL.md, "Rope"). One scalar routine, never a variant. */
void rope_table(float *cosine, float *sine, int position, int dim, double theta);

/* Rotates n_heads vectors of `dim` adjacent pairs in place: a' = fmaf(a, cos, -(b * sin)), b' = fmaf(b, cos, a * sin); heads are `stride` floats apart. */
void rope_rotate(float *x, int n_heads, int stride, int dim, const float *cosine, const float *sine);

#endif
