#include "kernels/formats.h"

#include <math.h>
#include <string.h>

#include "common/check.h"

static const struct format_info formats[N_WEIGHT_FORMATS] = {
    [FORMAT_F32] = {"f32", 1, 4, 0},
    [FORMAT_BF16] = {"bf16", 1, 2, 0},
    [FORMAT_INT8] = {"int8", BLOCK_ELEMENTS, BLOCK_ELEMENTS, 4},
    [FORMAT_INT4] = {"int4", BLOCK_ELEMENTS, BLOCK_ELEMENTS / 2, 2},
};

const struct format_info *format_info(enum weight_format format)
{
    CHECK(format < N_WEIGHT_FORMATS);
    return &formats[format];
}

int format_by_name(const char *name)
{
    for (int i = 0; i < N_WEIGHT_FORMATS; i++)
        if (!strcmp(name, formats[i].name))
            return i;
    return -1;
}

size_t format_row_bytes(enum weight_format format, int cols)
{
    const struct format_info *info = format_info(format);
    return (size_t)((cols + info->block_elements - 1) / info->block_elements) * (size_t)info->block_bytes;
}

size_t format_scale_row_bytes(enum weight_format format, int cols)
{
    return (size_t)blocks_of(cols) * 2 * (size_t)format_info(format)->scale_bytes;
}

struct matrix matrix_rows(const struct matrix *m, int begin, int rows)
{
    CHECK(begin >= 0 && rows >= 0 && begin + rows <= m->rows);
    struct matrix view = *m;
    view.rows = rows;
    view.data = (const char *)m->data + (size_t)begin * format_row_bytes(m->format, m->cols);
    if (m->scales)
        view.scales = (const char *)m->scales + (size_t)begin * format_scale_row_bytes(m->format, m->cols);
    return view;
}

static void int_row_to_f32(const struct matrix *m, int row, float *out)
{
    const uint8_t *data = (const uint8_t *)m->data + (size_t)row * format_row_bytes(m->format, m->cols);
    const uint8_t *scales = (const uint8_t *)m->scales + (size_t)row * format_scale_row_bytes(m->format, m->cols);
    for (int i = 0; i < m->cols; i++) {
        int block = i / BLOCK_ELEMENTS, pair = i % BLOCK_ELEMENTS / 2, odd = i & 1, value;
        float scale;
        if (m->format == FORMAT_INT8) {
            value = (int8_t)data[block * BLOCK_ELEMENTS + odd * GROUP_ELEMENTS + pair];
            memcpy(&scale, scales + 4 * (i / GROUP_ELEMENTS), 4);
        } else {
            uint8_t byte = data[block * GROUP_ELEMENTS + pair];
            value = (odd ? byte >> 4 : byte & 15) - 8;
            uint16_t half;
            memcpy(&half, scales + 2 * (i / GROUP_ELEMENTS), 2);
            scale = f16_to_f32(half);
        }
        out[i] = (float)value * scale * m->factor;
    }
}

void matrix_row_to_f32(const struct matrix *m, int row, float *out)
{
    CHECK(row >= 0 && row < m->rows);
    const char *data = (const char *)m->data + (size_t)row * format_row_bytes(m->format, m->cols);
    switch (m->format) {
    case FORMAT_F32:
        memcpy(out, data, (size_t)m->cols * 4);
        break;
    case FORMAT_BF16:
        for (int i = 0; i < m->cols; i++) {
            uint16_t bits;
            memcpy(&bits, data + 2 * i, 2);
            out[i] = bf16_to_f32(bits);
        }
        break;
    default:
        int_row_to_f32(m, row, out);
    }
}

uint16_t f32_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) /* NaN stays NaN */
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff, wide;
    if (exponent == 0) {
        float value = (float)fraction * 0x1p-24f; /* zero and subnormals: exact */
        return sign ? -value : value;
    }
    wide = exponent == 31 ? sign | 0x7f800000 | fraction << 13 : sign | (exponent + 112) << 23 | fraction << 13;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

uint16_t f32_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude < 0x38800000) { /* below 2^-14: a multiple of 2^-24, rounded by the hardware's own nearest-even */
        float scaled;
        memcpy(&scaled, &magnitude, 4);
        return (uint16_t)(sign | (uint16_t)rintf(scaled * 0x1p24f));
    }
    uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    if (rounded >= 0x47800000)
        return (uint16_t)(sign | 0x7c00);
    return (uint16_t)(sign | (rounded - 0x38000000) >> 13);
}
