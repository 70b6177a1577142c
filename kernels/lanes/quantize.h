/* Quantising a row, written once for two instruction sets: a variant's rows.c defines, before it includes this file,
 *   VARIANT(name)   the name of the variant's function
 *   largest_bits(x)   the largest of the bits of |x| of 64 floats, as unsigned
 *   round_group(x, inverse, even, odd)   rne(x * inverse) of 64 floats as bytes, even and odd elements apart
 *   sum_lanes(values, lane_sums8)   -8 times the lane sums of a block */

/* One group of 64. */
ALWAYS_INLINE void quantize_group(const float *x, int8_t *even, int8_t *odd, float *scale)
{
    uint32_t bits = largest_bits(x);
    if (bits >= 0x7f800000) { /* infinity; above it, NaN */
        *scale = NAN;
        memset(even, 0, GROUP_ELEMENTS / 2);
        memset(odd, 0, GROUP_ELEMENTS / 2);
        return;
    }
    float absmax;
    memcpy(&absmax, &bits, sizeof absmax);
    *scale = absmax < 0x1p-100f ? 0.0f : absmax / 127.0f;
    round_group(x, absmax < 0x1p-100f ? 0.0f : 127.0f / absmax, even, odd);
}

static void quantize_block(const float *x, int8_t *values, float *scales, int32_t *lane_sums8)
{
    quantize_group(x, values, values + GROUP_ELEMENTS, scales);
    quantize_group(x + GROUP_ELEMENTS, values + GROUP_ELEMENTS / 2, values + GROUP_ELEMENTS + GROUP_ELEMENTS / 2, scales + 1);
    sum_lanes(values, lane_sums8);
}

void VARIANT(quantize_row)(const float *x, int cols, int8_t *values, float *scales, int32_t *lane_sums8)
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
