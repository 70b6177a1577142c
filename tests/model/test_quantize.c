/* Goal: quantised weights are as near as their format promises, int4 much nearer than plain rounding, and the same on every run. Method:
 * random rows of several distributions and lengths, decoded by kernels/formats (an independent reader of the layout). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/formats.h"
#include "model/fp8.h"
#include "model/quantize.h"
#include "tests/lib/raw_checkpoint.h"

enum { COLS_MAX = 1000 };

static double uniform(uint64_t *seed)
{
    return ((double)(noise(seed) >> 11) + 0.5) * 0x1p-53;
}

static float normal(uint64_t *seed)
{
    return (float)(sqrt(-2 * log(uniform(seed))) * cos(6.283185307179586 * uniform(seed)));
}

enum { NORMAL, HEAVY, FP8_GRID, CONSTANT, SPARSE, TINY, HUGE_VALUES, ONE_SIDED, N_KINDS };

static void fill(float *w, int n, int kind, uint64_t *seed)
{
    for (int i = 0; i < n; i++) {
        float x = 0.02f * normal(seed);
        switch (kind) {
        case HEAVY:
            x *= (float)sqrt(-log(uniform(seed)));
            break;
        case FP8_GRID:
            x = fp8_to_f32((uint8_t)(noise(seed) % 128 % 127 | (noise(seed) & 128))) * 1e-3f;
            break;
        case CONSTANT:
            x = 0.25f;
            break;
        case SPARSE:
            x = noise(seed) % 50 ? 0 : x;
            break;
        case TINY:
            x *= 0x1p-120f;
            break;
        case HUGE_VALUES:
            x *= 0x1p120f;
            break;
        case ONE_SIDED:
            x = fabsf(x);
            break;
        default:
            break;
        }
        w[i] = x;
    }
}

static const int lengths[] = {1, 2, 7, 63, 64, 65, 127, 128, 129, 192, 511, 1000};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static void int8_is_within_half_a_step_of_the_stored_scale(void **state)
{
    (void)state;
    uint64_t seed = 1;
    float w[COLS_MAX], back[COLS_MAX], scales[2 * ((COLS_MAX + 127) / 128)];
    int8_t data[COLS_MAX + 128];
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int l = 0; l < N_LENGTHS; l++) {
            int cols = lengths[l];
            fill(w, cols, kind, &seed);
            memset(data, 0x55, sizeof data);
            quantize_row_int8(w, cols, data, scales);
            struct matrix m = {FORMAT_INT8, 1, cols, data, scales, 1.0f};
            matrix_row_to_f32(&m, 0, back);
            for (int i = 0; i < cols; i++) /* a hair more: w / scale and value * scale are rounded too */
                assert_true(fabsf(w[i] - back[i]) <= 0.5001f * scales[i / GROUP_ELEMENTS]);
            for (int i = 0; i < blocks_of(cols) * BLOCK_ELEMENTS; i++)
                assert_true(data[i] != -128);
        }
}

static void int8_scale_is_absmax_over_127(void **state)
{
    (void)state;
    float w[64] = {0}, scales[2];
    int8_t data[128];
    w[5] = -254.0f;
    w[6] = 2.0f;
    w[7] = 3.0f; /* exactly between 1 and 2: to even */
    quantize_row_int8(w, 64, data, scales);
    assert_true(scales[0] == 2.0f && scales[1] == 0.0f);
    assert_int_equal(data[64 + 2], -127); /* element 5: odd half */
    assert_int_equal(data[3], 1);
    assert_int_equal(data[64 + 3], 2);
    for (int i = 0; i < 128; i++)
        if (i != 66 && i != 3 && i != 67)
            assert_int_equal(data[i], 0);
}

static void int4_is_within_half_a_step_or_at_the_border(void **state)
{
    (void)state;
    uint64_t seed = 2;
    float w[COLS_MAX], back[COLS_MAX];
    uint16_t scales[2 * ((COLS_MAX + 127) / 128)];
    uint8_t data[COLS_MAX];
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int l = 0; l < N_LENGTHS; l++) {
            int cols = lengths[l];
            fill(w, cols, kind, &seed);
            int exponent = quantize_int4_exponent(absmax_of(w, cols));
            quantize_row_int4(w, cols, exponent, data, scales);
            struct matrix m = {FORMAT_INT4, 1, cols, data, scales, ldexpf(1.0f, exponent)};
            matrix_row_to_f32(&m, 0, back);
            for (int i = 0; i < cols; i++) {
                float scale = fabsf(f16_to_f32(scales[i / GROUP_ELEMENTS])) * m.factor;
                int byte = data[i / BLOCK_ELEMENTS * 64 + i % BLOCK_ELEMENTS / 2], value = (i & 1 ? byte >> 4 : byte & 15) - 8;
                int is_border = value == -8 || value == 7;
                if (!(fabsf(w[i] - back[i]) <= (is_border ? 2.5f : 0.5001f) * scale))
                    fail_msg("kind %d, %d columns, element %d: %g became %g, scale %g", kind, cols, i, w[i], back[i], scale);
            }
            for (int i = cols; i < blocks_of(cols) * BLOCK_ELEMENTS; i++) {
                int byte = data[i / BLOCK_ELEMENTS * 64 + i % BLOCK_ELEMENTS / 2];
                assert_int_equal(i & 1 ? byte >> 4 : byte & 15, 8); /* padding is value 0 */
            }
        }
}

/* Sum of squared errors of a row, and of the same row with scale absmax / 7. */
static void add_errors(const float *w, int cols, int exponent, double *ours, double *plain)
{
    uint8_t data[COLS_MAX];
    uint16_t scales[2 * ((COLS_MAX + 127) / 128)];
    float back[COLS_MAX];
    quantize_row_int4(w, cols, exponent, data, scales);
    struct matrix m = {FORMAT_INT4, 1, cols, data, scales, ldexpf(1.0f, exponent)};
    matrix_row_to_f32(&m, 0, back);
    for (int begin = 0; begin < cols; begin += GROUP_ELEMENTS) {
        int n = cols - begin < GROUP_ELEMENTS ? cols - begin : GROUP_ELEMENTS;
        float step = absmax_of(w + begin, n) / 7;
        for (int i = begin; i < begin + n; i++) {
            *ours += ((double)w[i] - back[i]) * ((double)w[i] - back[i]);
            double rest = step > 0 ? w[i] - (double)rintf(w[i] / step) * step : 0;
            *plain += rest * rest;
        }
    }
}

static void int4_has_at_most_three_quarters_of_the_squared_error_of_plain_rounding(void **state)
{
    (void)state;
    static const char *const names[] = {"normal", "heavy tails", "one-sided"};
    static const int kinds[] = {NORMAL, HEAVY, ONE_SIDED};
    uint64_t seed = 3;
    for (int k = 0; k < 3; k++) {
        double ours = 0, plain = 0;
        for (int row = 0; row < 200; row++) {
            float w[COLS_MAX];
            fill(w, 960, kinds[k], &seed);
            add_errors(w, 960, quantize_int4_exponent(0.2f), &ours, &plain);
        }
        print_message("%s: squared error %.3f of plain rounding\n", names[k], ours / plain);
        assert_true(ours <= 0.75 * plain);
    }
}

static void int4_scales_are_chosen_for_each_group_alone(void **state)
{
    (void)state;
    uint64_t seed = 4;
    float w[256], changed[256];
    uint8_t a[128], b[128];
    uint16_t sa[4], sb[4];
    fill(w, 256, NORMAL, &seed);
    memcpy(changed, w, sizeof w);
    changed[130] = 0.15f; /* third group */
    quantize_row_int4(w, 256, -20, a, sa);
    quantize_row_int4(changed, 256, -20, b, sb);
    assert_memory_equal(a, b, 64);
    assert_memory_equal(a + 96, b + 96, 32);
    assert_true(sa[0] == sb[0] && sa[1] == sb[1] && sa[3] == sb[3] && sa[2] != sb[2]);
}

static void the_exponent_brings_the_largest_weight_to_the_top_of_f16(void **state)
{
    (void)state;
    for (int e = -140; e < 128; e++) {
        float absmax = ldexpf(1.5f, e);
        int exponent = quantize_int4_exponent(absmax);
        assert_true(exponent >= -126 && exponent <= 127);
        if (e >= -111) {
            float scaled = ldexpf(absmax, -exponent);
            assert_true(scaled >= 0x1p15f && scaled < 0x1p16f);
        }
    }
    assert_true(quantize_int4_exponent(0) >= -126);
}

/* Known bytes: a change of any of them changes every pack, so it must be on purpose (and raise the format version). */
static void the_same_row_gives_the_same_bytes_everywhere(void **state)
{
    (void)state;
    uint64_t seed = 5, hash = 14695981039346656037u;
    float w[COLS_MAX];
    uint8_t data[COLS_MAX];
    uint16_t scales[16];
    for (int row = 0; row < 20; row++) {
        for (int i = 0; i < 1000; i++) /* no libm, so that the input is the same everywhere */
            w[i] = ((float)(noise(&seed) % 2001) - 1000) * ((float)(noise(&seed) % 1000) + 1) * 1e-7f;
        quantize_row_int4(w, 1000, quantize_int4_exponent(0.1f), data, scales);
        for (int i = 0; i < 512; i++)
            hash = (hash ^ data[i]) * 1099511628211u;
        for (int i = 0; i < 16; i++)
            hash = (hash ^ scales[i]) * 1099511628211u;
    }
    assert_int_equal(hash, UINT64_C(0xcbcd11dab09043b4));
}

static void every_fp8_code_has_its_value(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        int exponent = code >> 3 & 15, fraction = code & 7;
        double expected = exponent ? ldexp(1 + fraction / 8.0, exponent - 7) : ldexp(fraction, -9);
        float value = fp8_to_f32((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(value));
            continue;
        }
        assert_true(value == (code & 128 ? -expected : expected));
        assert_int_equal(signbit(value) != 0, code >> 7);
    }
}

static void a_bad_fp8_row_is_noticed_wherever_it_is_bad(void **state)
{
    (void)state;
    uint8_t codes[300];
    float scales[3] = {1, 2, 3}, out[300];
    memset(codes, 0x3c, sizeof codes);
    assert_true(fp8_row_to_f32(codes, scales, 300, out));
    assert_true(out[0] == 1.5f && out[128] == 3.0f && out[299] == 4.5f);
    for (int at = 0; at < 300; at++) {
        codes[at] = at & 1 ? 0x7f : 0xff;
        assert_false(fp8_row_to_f32(codes, scales, 300, out));
        codes[at] = 0x3c;
    }
    scales[1] = 3e38f;
    assert_false(fp8_row_to_f32(codes, scales, 300, out)); /* overflows */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(int8_is_within_half_a_step_of_the_stored_scale),
        cmocka_unit_test(int8_scale_is_absmax_over_127),
        cmocka_unit_test(int4_is_within_half_a_step_or_at_the_border),
        cmocka_unit_test(int4_has_at_most_three_quarters_of_the_squared_error_of_plain_rounding),
        cmocka_unit_test(int4_scales_are_chosen_for_each_group_alone),
        cmocka_unit_test(the_exponent_brings_the_largest_weight_to_the_top_of_f16),
        cmocka_unit_test(the_same_row_gives_the_same_bytes_everywhere),
        cmocka_unit_test(every_fp8_code_has_its_value),
        cmocka_unit_test(a_bad_fp8_row_is_noticed_wherever_it_is_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
