/* From f32 weights to the integer formats of kernels/formats.h. Every number is a function of the row (and, for int4, of the matrix's
 * exponent) alone, in a fixed order of operations: the same bytes on every machine and for every number of threads. Values must be finite.
 */
#ifndef HEARTH_MODEL_QUANTIZE_H
#define HEARTH_MODEL_QUANTIZE_H

#include <stdint.h>

/* int8: per group of 64, scale = absmax / 127, value = rne(w / scale). data: [blocks_of(cols) * 128], scales: [blocks_of(cols) * 2]. */
void quantize_row_int8(const float *w, int cols, int8_t *data, float *scales);

/* The power of two by which the f16 scales of a matrix are multiplied: its largest |w| becomes 2^15 .. 2^16, so that groups down to 2^-24
 * of it still have scales of full f16 precision. */
int quantize_int4_exponent(float absmax);

/* int4: per group of 64 the signed f16 scale (times 2^exponent) whose rounding to values -8..7 has the least squared error among a grid of
 * candidates: at most 3/4 of the squared error of absmax / 7 on normally distributed weights. data: [blocks_of(cols) * 64], scales: f16
 * [blocks_of(cols) * 2]. Padding is stored as value 0. */
void quantize_row_int4(const float *w, int cols, int exponent, uint8_t *data, uint16_t *scales);

/* Largest |w|; 0 when n is 0. */
float absmax_of(const float *w, int64_t n);

#endif
