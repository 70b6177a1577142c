/* How weights lie in memory and on disk: the one place that knows block and scale layouts (docs/FORMATS.md, "Matrices").
 *
 * A matrix has `rows` outputs and `cols` inputs, row after row. The integer formats cut a row into blocks of 128 inputs = 2 groups of 64; the
 * last block is padded with zeros (and computed, not skipped). A block keeps its 64 even elements first, then its 64 odd ones:
 *   int8  128 bytes: even elements, odd elements, each -127..127. Scales: f32 per group.
 *   int4   64 bytes: byte j holds element 2j in its low and 2j+1 in its high nibble, stored as value + 8 (value -8..7).
 *         Scales: signed f16 per group, times `factor`, a power of two for the whole matrix.
 * f32 and bf16 rows are plain, without padding and without alignment beyond that of their elements. */
#ifndef HEARTH_KERNELS_FORMATS_H
#define HEARTH_KERNELS_FORMATS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum weight_format { FORMAT_F32, FORMAT_BF16, FORMAT_INT8, FORMAT_INT4, N_WEIGHT_FORMATS };

enum {
    BLOCK_ELEMENTS = 128, /* one step of the integer dot product: 16 lanes of 8 products */
    GROUP_ELEMENTS = 64,  /* one scale */
    LANES = 16,           /* partial sums of every dot product, on every ISA */
};
_Static_assert(BLOCK_ELEMENTS == 2 * GROUP_ELEMENTS && BLOCK_ELEMENTS == 8 * LANES, "a block is two groups and 16 lanes of 8");

struct format_info {
    const char *name;
    int block_elements;
    int block_bytes;
    int scale_bytes; /* per group of 64; 0: no scales */
};

const struct format_info *format_info(enum weight_format format);

/* -1 when the name is not one of ours. */
int format_by_name(const char *name);

/* Bytes of one row of weights, and of one row of scales. */
size_t format_row_bytes(enum weight_format format, int cols);
size_t format_scale_row_bytes(enum weight_format format, int cols);

/* A view of weights; owns nothing. data of the integer formats and their scales are 64-byte aligned where they come from a pack or from us. */
struct matrix {
    enum weight_format format;
    int rows, cols;
    const void *data;   /* [rows] of format_row_bytes */
    const void *scales; /* [rows] of format_scale_row_bytes, or NULL */
    float factor;       /* int4: power of two that multiplies the finished sum; 1 for the other formats */
};

/* The rows [begin, begin + rows) of a matrix, as a matrix. */
struct matrix matrix_rows(const struct matrix *m, int begin, int rows);

/* One row as f32 [cols]: what the weights mean, exactly (an integer times its scale, rounded once, times factor). */
void matrix_row_to_f32(const struct matrix *m, int row, float *out);

static inline int blocks_of(int cols)
{
    return (cols + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS;
}

static inline float bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

uint16_t f32_to_bf16(float value); /* round to nearest even */
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value); /* round to nearest even, overflow to infinity */

#endif
