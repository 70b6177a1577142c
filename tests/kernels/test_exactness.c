/* The numeric contract: every variant in kernels/registry.inc that runs on this CPU gives the bits of the scalar version, whatever the
 * numbers and the sizes, and touches nothing outside the stated arrays. Method: inputs of all kinds (see fill_floats) in memory that ends
 * or begins at an unreadable page; outputs in memory filled with a pattern, compared as a whole. Replay a failure with the printed seed:
 * kernels_exactness SEED. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/check.h"
#include "common/splitmix64.h"
#include "kernels/registry.h"

static uint64_t seed = 1, random_state;

static uint64_t next_random(void)
{
    return splitmix64(&random_state);
}

static int random_below(int n)
{
    return (int)(next_random() % (uint64_t)n);
}

static float random_unit(void) /* [-1, 1) */
{
    return (float)((int64_t)next_random() >> 40) * 0x1p-23f;
}

/* ---- memory between two unreadable pages ---- */

struct guarded {
    char *base, *data; /* base: the readable part */
    size_t readable, page;
};

enum { PATTERN = 0xa5 };

/* bytes that end (or begin) exactly at an unreadable page; a multiple of what the elements must be aligned to. */
static struct guarded guarded_new(size_t bytes, int at_end)
{
    struct guarded g = {.page = (size_t)sysconf(_SC_PAGESIZE)};
    g.readable = (bytes + g.page - 1) / g.page * g.page + g.page;
    char *all = mmap(NULL, g.readable + 2 * g.page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED);
    CHECK(!mprotect(all, g.page, PROT_NONE) && !mprotect(all + g.page + g.readable, g.page, PROT_NONE));
    g.base = all + g.page;
    g.data = at_end ? g.base + g.readable - bytes : g.base;
    memset(g.base, PATTERN, g.readable);
    return g;
}

static void guarded_free(struct guarded *g)
{
    CHECK(!munmap(g->base - g->page, g->readable + 2 * g->page));
}

/* ---- contents ---- */

enum fill { FILL_UNIT, FILL_WIDE, FILL_SPECIAL, FILL_ZERO, FILL_AROUND_ABSMAX_MIN, FILL_HALVES, N_FILLS, FILL_NON_FINITE = N_FILLS };
static const char *const fill_names[] = {"unit",          "wide exponents", "special values",  "zeros",
                                         "around 2^-100", "halves",         "NaN and infinity"};

static float random_float(enum fill fill)
{
    static const float special[] = {0.0f,  -0.0f,  0x1p-149f, -0x1p-149f, 0x1.fffp-128f, -0x1.8p-130f, FLT_MIN, -FLT_MIN, 0x1p-100f,
                                    1.0f,  -1.0f,  1e-30f,    -1e-30f,    65504.0f,      1e18f,        -1e18f,  1e30f,    -2e30f,
                                    88.7f, -87.4f, -103.97f,  -103.98f,   88.73f,        -150.0f,      100.0f,  0.5f};
    switch (fill) {
    case FILL_UNIT:
        return random_unit();
    case FILL_WIDE:
        return ldexpf(random_unit(), random_below(170) - 140);
    case FILL_SPECIAL:
        return special[random_below((int)(sizeof special / sizeof *special))];
    case FILL_ZERO:
        return random_below(2) ? 0.0f : -0.0f;
    case FILL_AROUND_ABSMAX_MIN:
        return random_below(20) ? 0x1p-104f * random_unit() : nextafterf(0x1p-100f, (float)random_below(3) * 0x1p-100f);
    case FILL_NON_FINITE: { /* about every third group has one */
        static const float values[] = {NAN, -NAN, INFINITY, -INFINITY};
        return random_below(150) ? random_unit() : values[random_below(4)];
    }
    default: /* a group with 127 in it has inverse 1: every value is a tie of the rounding */
        return random_below(8) ? (float)random_below(127) + 0.5f : random_below(2) ? 127.0f : -127.0f;
    }
}

static void fill_floats(float *x, size_t n, enum fill fill)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(fill);
}

static struct guarded guarded_floats(size_t n, enum fill fill, int at_end)
{
    struct guarded g = guarded_new(n * sizeof(float), at_end);
    fill_floats((float *)g.data, n, fill);
    return g;
}

/* ---- comparing ---- */

static const char *current_variant;

/* NaNs count as equal: which NaN comes out is not part of the contract (a non-finite row fails its sequence). */
static void check_same(const struct guarded *expected, const struct guarded *got, const char *format, ...)
{
    CHECK(expected->readable == got->readable);
    for (size_t i = 0; i < expected->readable; i += 4) {
        uint32_t e, g;
        memcpy(&e, expected->base + i, 4);
        memcpy(&g, got->base + i, 4);
        if (e == g || ((e & 0x7fffffff) > 0x7f800000 && (g & 0x7fffffff) > 0x7f800000))
            continue;
        char what[200];
        va_list args;
        va_start(args, format);
        vsnprintf(what, sizeof what, format, args);
        va_end(args);
        fail_msg("%s: %s: byte %td of the output: scalar %08x, variant %08x (kernels_exactness %llu)", current_variant, what,
                 expected->base + i - expected->data, e, g, (unsigned long long)seed);
    }
}

/* Calls one(scalar, variant) for every variant of the operation that runs here. */
static void each_variant(const char *operation, void (*one)(void (*scalar)(void), void (*variant)(void)))
{
    void (*scalar)(void) = NULL;
    random_state = seed;
    for (int i = 0; i < n_kernel_variants; i++) {
        const struct kernel_variant *v = &kernel_variants[i];
        if (strcmp(v->operation, operation))
            continue;
        if (v->isa == ISA_SCALAR)
            scalar = v->function;
        assert_non_null(scalar);
        if (v->isa == ISA_SCALAR)
            continue;
        if (!kernel_variant_runs_here(v)) {
            printf("%s: not run, this CPU cannot\n", v->name);
            continue;
        }
        current_variant = v->name;
        one(scalar, v->function);
    }
}

static const int sizes[] = {1, 2, 7, 8, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 192, 200, 255, 256, 320, 576, 1000};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* ---- matmul ---- */

static uint16_t random_f16(void) /* finite, often extreme */
{
    static const uint16_t special[] = {0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x7bff, 0xfbff, 0x3c00, 0xbc00};
    if (random_below(4) == 0)
        return special[random_below(10)];
    uint16_t bits = (uint16_t)next_random();
    return (bits & 0x7c00) == 0x7c00 ? (uint16_t)(bits & 0x83ff) : bits;
}

/* Bytes of an integer matrix's row: random codes, or all at one end of the range, or both ends. No int8 is -128. */
static void fill_codes(uint8_t *data, size_t n, enum weight_format format, int kind)
{
    const uint8_t low = format == FORMAT_INT4 ? 0x00 : 0x81, high = format == FORMAT_INT4 ? 0xff : 0x7f;
    for (size_t i = 0; i < n; i++) {
        uint8_t code = kind == 0 ? low : kind == 1 ? high : kind == 2 ? (random_below(2) ? low : high) : (uint8_t)next_random();
        data[i] = format == FORMAT_INT8 && code == 0x80 ? 0x81 : code;
    }
}

struct case_matrix {
    struct matrix m;
    struct guarded data, scales;
};

static struct case_matrix random_matrix(enum weight_format format, int rows, int cols, enum fill fill, int at_end)
{
    struct case_matrix c = {.m = {format, rows, cols, NULL, NULL, format == FORMAT_INT4 ? ldexpf(1.0f, random_below(40) - 30) : 1.0f}};
    c.data = guarded_new((size_t)rows * format_row_bytes(format, cols), at_end);
    c.scales = guarded_new((size_t)rows * format_scale_row_bytes(format, cols), at_end);
    size_t n = (size_t)rows * (size_t)cols, groups = (size_t)rows * (size_t)blocks_of(cols) * 2;
    if (format == FORMAT_F32)
        fill_floats((float *)c.data.data, n, fill);
    else if (format == FORMAT_BF16)
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)c.data.data)[i] = f32_to_bf16(random_float(fill));
    else
        fill_codes((uint8_t *)c.data.data, (size_t)rows * format_row_bytes(format, cols), format, random_below(6));
    if (format == FORMAT_INT8)
        fill_floats((float *)c.scales.data, groups, fill == FILL_ZERO ? FILL_UNIT : fill);
    if (format == FORMAT_INT4)
        for (size_t i = 0; i < groups; i++)
            ((uint16_t *)c.scales.data)[i] = random_f16();
    c.m.data = c.data.data;
    c.m.scales = format_is_integer(format) ? c.scales.data : NULL;
    return c;
}

struct case_rows {
    struct guarded values, scales, sums;
    struct quantized_rows q;
};

/* Quantised rows whose three arrays each end at an unreadable page; sometimes all at the ends of the range. */
static struct case_rows random_rows(const float *x, size_t x_stride, int n_x, int cols, int at_end)
{
    size_t blocks = (size_t)n_x * (size_t)blocks_of(cols);
    struct case_rows c = {
        guarded_new(blocks * BLOCK_ELEMENTS, at_end), guarded_new(blocks * 8, at_end), guarded_new(blocks * LANES * 4, at_end), {0}};
    c.q = (struct quantized_rows){n_x, cols, blocks_of(cols), (int8_t *)c.values.data, (float *)c.scales.data, (int32_t *)c.sums.data};
    int extreme = random_below(3) == 0;
    for (int s = 0; s < n_x; s++) {
        size_t at = (size_t)s * (size_t)c.q.n_blocks;
        float *row = malloc((size_t)cols * sizeof *row);
        for (int i = 0; i < cols; i++)
            row[i] = extreme ? (s % 3 == 0   ? -1.0f
                                : s % 3 == 1 ? 1.0f
                                             : (float)random_below(2) - 0.5f)
                             : x[(size_t)s * x_stride + (size_t)i];
        quantize_row_scalar(row, cols, c.q.values + at * BLOCK_ELEMENTS, c.q.scales + at * 2, c.q.lane_sums8 + at * LANES);
        free(row);
    }
    return c;
}

static enum weight_format current_format;

static void compare_matmul(matmul_fn *scalar, matmul_fn *variant, int rows, int cols, int n_x)
{
    enum fill fill = (enum fill)random_below(N_FILLS);
    int at_end = random_below(4) != 0;
    size_t x_stride = (size_t)(cols + random_below(3) * 5), out_stride = (size_t)(rows + random_below(3) * 3);
    struct case_matrix m = random_matrix(current_format, rows, cols, fill, at_end);
    enum fill x_fill = random_below(6) ? fill : FILL_NON_FINITE;
    struct guarded x = guarded_floats((size_t)(n_x - 1) * x_stride + (size_t)cols, x_fill, at_end);
    struct case_rows q = random_rows((const float *)x.data, x_stride, n_x, cols, at_end);
    size_t out_bytes = ((size_t)(n_x - 1) * out_stride + (size_t)rows) * sizeof(float);
    struct guarded expected = guarded_new(out_bytes, at_end), got = guarded_new(out_bytes, at_end);

    struct matmul_args a = {
        .m = &m.m, .row_end = rows, .x = (const float *)x.data, .x_stride = x_stride, .q = &q.q, .n_x = n_x, .out_stride = out_stride};
    if (random_below(2)) {
        a.row_begin = random_below(rows + 1);
        a.row_end = a.row_begin + random_below(rows + 1 - a.row_begin);
    }
    a.out = (float *)expected.data;
    scalar(&a);
    a.out = (float *)got.data;
    variant(&a);
    check_same(&expected, &got, "rows [%d, %d) of %d x %d, %d x rows, %s, factor %g", a.row_begin, a.row_end, rows, cols, n_x,
               fill_names[x_fill], (double)m.m.factor);
    struct guarded *const all[] = {&m.data, &m.scales, &x, &q.values, &q.scales, &q.sums, &expected, &got};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        guarded_free(all[i]);
}

static void one_matmul(void (*scalar)(void), void (*variant)(void))
{
    matmul_fn *s = (matmul_fn *)scalar, *v = (matmul_fn *)variant;
    static const int n_xs[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 32};
    for (int repeat = 0; repeat < 3; repeat++)
        for (int i = 0; i < N_SIZES; i++)
            for (int k = 0; k < (int)(sizeof n_xs / sizeof *n_xs); k++)
                compare_matmul(s, v, 1 + random_below(13), sizes[i], n_xs[k]);
    compare_matmul(s, v, 67, 576, 64);      /* attention scores */
    for (int n_x = 1; n_x <= 9; n_x += 4) { /* more than any internal panel or chunk */
        compare_matmul(s, v, 1100, 100, n_x);
        compare_matmul(s, v, 9, 2 * 8192 + 200, n_x);
        compare_matmul(s, v, 70, 2048, n_x);
    }
}

static void matmul_f32_gives_the_bits_of_scalar(void **state)
{
    (void)state;
    current_format = FORMAT_F32;
    each_variant("matmul_f32", one_matmul);
}

static void matmul_bf16_gives_the_bits_of_scalar(void **state)
{
    (void)state;
    current_format = FORMAT_BF16;
    each_variant("matmul_bf16", one_matmul);
}

static void matmul_int8_gives_the_bits_of_scalar(void **state)
{
    (void)state;
    current_format = FORMAT_INT8;
    each_variant("matmul_int8", one_matmul);
}

static void matmul_int4_gives_the_bits_of_scalar(void **state)
{
    (void)state;
    current_format = FORMAT_INT4;
    each_variant("matmul_int4", one_matmul);
}

/* ---- rows ---- */

static void one_quantize_row(void (*scalar)(void), void (*variant)(void))
{
    for (int repeat = 0; repeat < 40; repeat++)
        for (int i = 0; i < N_SIZES; i++) {
            int n = sizes[i], at_end = repeat & 1;
            enum fill fill = (enum fill)random_below(N_FILLS + 1); /* FILL_NON_FINITE too */
            size_t blocks = (size_t)blocks_of(n);
            struct guarded x = guarded_floats((size_t)n, fill, at_end), out[2][3];
            for (int k = 0; k < 2; k++) {
                out[k][0] = guarded_new(blocks * BLOCK_ELEMENTS, at_end);
                out[k][1] = guarded_new(blocks * 2 * 4, at_end);
                out[k][2] = guarded_new(blocks * LANES * 4, at_end);
                ((quantize_row_fn *)(k ? variant : scalar))((const float *)x.data, n, (int8_t *)out[k][0].data, (float *)out[k][1].data,
                                                            (int32_t *)out[k][2].data);
            }
            for (int j = 0; j < 3; j++)
                check_same(&out[0][j], &out[1][j], "%d inputs, %s, %s", n, fill_names[fill],
                           j == 0   ? "values"
                           : j == 1 ? "scales"
                                    : "lane sums");
            guarded_free(&x);
            for (int k = 0; k < 6; k++)
                guarded_free(&out[k / 3][k % 3]);
        }
}

static void quantize_row_gives_the_bits_of_scalar(void **state)
{
    (void)state;
    each_variant("quantize_row", one_quantize_row);
}

/* Goal: a value that is not finite is not rounded to one that is. Method: one NaN or infinity in one group of a row; that group must hold
 * NaN (these bits) and zeros, the others what they held without it. */
static void one_value_that_is_not_finite(void (*scalar)(void), void (*variant)(void))
{
    enum { COLS = 300, BLOCKS = 3 };
    static const uint32_t bad[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xffffffff};
    (void)scalar;
    for (int at = 0; at < COLS; at++) {
        float x[COLS], scales[2][2 * BLOCKS];
        int8_t values[2][BLOCKS * BLOCK_ELEMENTS];
        int32_t sums[2][BLOCKS * LANES];
        fill_floats(x, COLS, FILL_UNIT);
        ((quantize_row_fn *)variant)(x, COLS, values[0], scales[0], sums[0]);
        memcpy(&x[at], &bad[at % 6], sizeof *x);
        ((quantize_row_fn *)variant)(x, COLS, values[1], scales[1], sums[1]);
        int group = at / GROUP_ELEMENTS, block = group / 2;
        memcpy(&scales[0][group], &(uint32_t){0x7fc00000}, 4);
        for (int half = 0; half < 2; half++)
            memset(values[0] + block * BLOCK_ELEMENTS + half * GROUP_ELEMENTS + group % 2 * 32, 0, 32);
        memset(sums[0] + block * LANES + group % 2 * 8, 0, 8 * sizeof **sums);
        assert_memory_equal(scales[0], scales[1], sizeof scales[0]);
        assert_memory_equal(values[0], values[1], sizeof values[0]);
        assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
    }
}

static void a_value_that_is_not_finite_makes_its_group_nan(void **state)
{
    (void)state;
    one_value_that_is_not_finite(NULL, (void (*)(void))quantize_row_scalar);
    each_variant("quantize_row", one_value_that_is_not_finite);
}

/* The operations with up to three inputs of n floats and one output: how each is called. in_place: the output is the first input. */
struct row_call {
    void (*fn)(void);
    float *out;
    const float *a, *b, *c;
    float number;
    int n;
};

static void call_rms_norm(const struct row_call *r)
{
    ((rms_norm_fn *)r->fn)(r->out, r->a, r->b, r->n, r->number);
}

static void call_layer_norm(const struct row_call *r)
{
    ((layer_norm_fn *)r->fn)(r->out, r->a, r->b, r->c, r->n, r->number);
}

static void call_silu_mul(const struct row_call *r)
{
    ((silu_mul_fn *)r->fn)(r->out, r->a, r->b, r->n);
}

static void call_softmax(const struct row_call *r)
{
    memmove(r->out, r->a, (size_t)r->n * sizeof *r->out);
    ((softmax_fn *)r->fn)(r->out, r->n);
}

static void call_axpy(const struct row_call *r)
{
    memmove(r->out, r->a, (size_t)r->n * sizeof *r->out);
    ((axpy_fn *)r->fn)(r->out, r->number, r->b, r->n);
}

static void (*current_call)(const struct row_call *r);

static void one_row_operation(void (*scalar)(void), void (*variant)(void))
{
    for (int repeat = 0; repeat < 80; repeat++)
        for (int i = 0; i < N_SIZES; i++) {
            int n = sizes[i], at_end = repeat & 1, in_place = repeat / 2 % 2;
            enum fill fill = (enum fill)random_below(N_FILLS);
            struct guarded in[3], out[2];
            for (int k = 0; k < 3; k++)
                in[k] = guarded_floats((size_t)n, k && random_below(2) ? FILL_UNIT : fill, at_end);
            float number = random_below(2) ? 1e-5f : random_float(FILL_UNIT) + 1.0f;
            for (int k = 0; k < 2; k++) {
                out[k] = guarded_new((size_t)n * sizeof(float), at_end);
                struct row_call call = {
                    k ? variant : scalar, (float *)out[k].data, (float *)in[0].data, (float *)in[1].data, (float *)in[2].data, number, n};
                if (in_place) {
                    memcpy(out[k].data, in[0].data, (size_t)n * sizeof(float));
                    call.a = call.out;
                }
                current_call(&call);
            }
            check_same(&out[0], &out[1], "%d elements, %s, number %a%s", n, fill_names[fill], (double)number, in_place ? ", in place" : "");
            for (int k = 0; k < 3; k++)
                guarded_free(&in[k]);
            guarded_free(&out[0]);
            guarded_free(&out[1]);
        }
}

static void row_operations_give_the_bits_of_scalar(void **state)
{
    static const struct {
        const char *operation;
        void (*call)(const struct row_call *r);
    } calls[] = {{"rms_norm", call_rms_norm},
                 {"layer_norm", call_layer_norm},
                 {"silu_mul", call_silu_mul},
                 {"softmax", call_softmax},
                 {"axpy", call_axpy}};
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        current_call = calls[i].call;
        each_variant(calls[i].operation, one_row_operation);
    }
}

static void compare_mix_rows(mix_rows_fn *scalar, mix_rows_fn *variant, int n_rows, int n_heads, int n)
{
    enum fill fill = (enum fill)random_below(N_FILLS);
    int at_end = random_below(2);
    size_t out_stride = (size_t)(n + random_below(2) * 3), p_stride = (size_t)(n_rows + random_below(2) * 5);
    struct guarded p = guarded_floats((size_t)(n_heads - 1) * p_stride + (size_t)n_rows, random_below(2) ? FILL_UNIT : fill, at_end);
    struct guarded cache = guarded_floats((size_t)(n_rows + 1) * (size_t)n, fill, at_end);
    const float **rows = calloc((size_t)n_rows + 1, sizeof *rows);
    for (int r = 0; r < n_rows; r++)
        rows[r] = (const float *)cache.data + (size_t)(n_rows - r) * (size_t)n; /* not in memory order */
    size_t out_bytes = ((size_t)(n_heads - 1) * out_stride + (size_t)n) * sizeof(float);
    struct guarded expected = guarded_new(out_bytes, at_end), got = guarded_new(out_bytes, at_end);
    scalar((float *)expected.data, out_stride, (const float *)p.data, p_stride, rows, n_rows, n_heads, n);
    variant((float *)got.data, out_stride, (const float *)p.data, p_stride, rows, n_rows, n_heads, n);
    check_same(&expected, &got, "%d rows, %d heads of %d, %s", n_rows, n_heads, n, fill_names[fill]);
    free(rows);
    struct guarded *const all[] = {&p, &cache, &expected, &got};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        guarded_free(all[i]);
}

static void one_mix_rows(void (*scalar)(void), void (*variant)(void))
{
    static const int row_counts[] = {0, 1, 2, 5, 63, 64, 65, 200};
    for (int i = 0; i < N_SIZES; i++)
        for (int k = 0; k < (int)(sizeof row_counts / sizeof *row_counts); k++)
            compare_mix_rows((mix_rows_fn *)scalar, (mix_rows_fn *)variant, row_counts[k], 1 + random_below(10), sizes[i]);
}

static void mix_rows_gives_the_bits_of_scalar(void **state)
{
    (void)state;
    each_variant("mix_rows", one_mix_rows);
}

/* ---- the specification itself ---- */

/* Goal: scalar computes the dot product of what the weights mean, writes every cell it should and no other. Method: against a plain sum in
 * double over matrix_row_to_f32 and, for the integer formats, over the dequantised x row. */
static void scalar_matmul_is_the_dot_product(void **state)
{
    (void)state;
    random_state = seed;
    matmul_fn *const scalar[N_WEIGHT_FORMATS] = {matmul_f32_scalar, matmul_bf16_scalar, matmul_int8_scalar, matmul_int4_scalar};
    for (int i = 0; i < N_SIZES; i++)
        for (int format = 0; format < N_WEIGHT_FORMATS; format++) {
            enum { ROWS = 5, N_X = 3, OUT_STRIDE = 7 };
            int cols = sizes[i];
            struct case_matrix m = random_matrix((enum weight_format)format, ROWS, cols, FILL_UNIT, 1);
            for (int g = 0; format == FORMAT_INT4 && g < ROWS * blocks_of(cols) * 2; g++)
                ((uint16_t *)m.scales.data)[g] = f32_to_f16(random_unit());
            struct guarded x = guarded_floats((size_t)(N_X * cols), FILL_UNIT, 1),
                           out = guarded_new(((N_X - 1) * OUT_STRIDE + ROWS) * 4, 1);
            struct case_rows q = random_rows((const float *)x.data, (size_t)cols, N_X, cols, 1);
            struct matmul_args a = {&m.m, 1, 4, (const float *)x.data, (size_t)cols, &q.q, N_X, (float *)out.data, OUT_STRIDE};
            scalar[format](&a);
            float *w = malloc((size_t)cols * sizeof *w);
            for (int r = 0; r < ROWS; r++) {
                matrix_row_to_f32(&m.m, r, w);
                for (int s = 0; s < N_X; s++) {
                    double sum = 0, magnitude = 0;
                    for (int c = 0; c < cols; c++) {
                        size_t block = (size_t)(s * q.q.n_blocks + c / BLOCK_ELEMENTS);
                        int in_block = c % BLOCK_ELEMENTS;
                        double v =
                            format_is_integer((enum weight_format)format)
                                ? (double)q.q.values[block * BLOCK_ELEMENTS + (size_t)((in_block & 1) * GROUP_ELEMENTS + in_block / 2)] *
                                      (double)q.q.scales[block * 2 + (size_t)(in_block / GROUP_ELEMENTS)]
                                : (double)((float *)x.data)[s * cols + c];
                        sum += v * (double)w[c];
                        magnitude += fabs(v * (double)w[c]);
                    }
                    uint32_t bits;
                    float value;
                    memcpy(&bits, out.data + 4 * (s * OUT_STRIDE + r), 4);
                    memcpy(&value, &bits, 4);
                    if (r < 1 || r >= 4)
                        assert_int_equal(bits, 0xa5a5a5a5u);
                    else /* at most cols / 16 + 4 additions a lane and tree, and the rounded products of scales */
                        assert_true(fabs((double)value - sum) <= (cols / 16 + 8) * 0x1p-24 * magnitude);
                }
            }
            free(w);
            struct guarded *const all[] = {&m.data, &m.scales, &x, &out, &q.values, &q.scales, &q.sums};
            for (size_t k = 0; k < sizeof all / sizeof *all; k++)
                guarded_free(all[k]);
        }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        seed = strtoull(argv[1], NULL, 0);
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalar_matmul_is_the_dot_product),
        cmocka_unit_test(matmul_f32_gives_the_bits_of_scalar),
        cmocka_unit_test(matmul_bf16_gives_the_bits_of_scalar),
        cmocka_unit_test(matmul_int8_gives_the_bits_of_scalar),
        cmocka_unit_test(matmul_int4_gives_the_bits_of_scalar),
        cmocka_unit_test(quantize_row_gives_the_bits_of_scalar),
        cmocka_unit_test(row_operations_give_the_bits_of_scalar),
        cmocka_unit_test(mix_rows_gives_the_bits_of_scalar),
        cmocka_unit_test(a_value_that_is_not_finite_makes_its_group_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
