/* FP8 e4m3 in the "FN" variant, with one f32 scale per 128x128 block (spec section 1.4): 1 sign, 4 exponent bits (bias 7), 3 fraction bits,
 * no infinities, S.1111.111 is NaN, largest 448. W[r][c] = fp8(r, c) * scale[r / 128][c / 128], rounded once to f32. */
#ifndef HEARTH_MODEL_FP8_H
#define HEARTH_MODEL_FP8_H

#include <stdint.h>

enum { FP8_BLOCK = 128 };

/* The value of a code; NaN codes give NaN. */
float fp8_to_f32(uint8_t code);

/* One row: out [cols] = codes [cols] times scales [ceil(cols / 128)]. 1 when all results are finite. */
int fp8_row_to_f32(const uint8_t *codes, const float *scales, int cols, float *out);

/* 1 when all n values are finite. */
int f32_all_finite(const float *values, int64_t n);
int bf16_all_finite(const uint16_t *values, int64_t n);

#endif
