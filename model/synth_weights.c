#include "model/synth_weights.h"

#include <math.h>
#include <string.h>

#include "common/check.h"
#include "common/splitmix64.h"
#include "kernels/double_math.h"

/* --- random words: xoshiro256++ (Blackman and Vigna, 2019), four side by side so that they fill the pipelines of a core --- */

enum { STREAMS = 4, STEP_BYTES = STREAMS * 8 };

struct random {
    uint64_t s[4][STREAMS];
};

static void random_init(struct random *random, const struct synth_key *key, int row)
{
    uint64_t place = (uint64_t)key->part << 56 | (uint64_t)key->layer << 40 | (uint64_t)key->item << 8 | (uint64_t)key->matrix;
    uint64_t part = splitmix64_mix(splitmix64_mix(key->seed + SPLITMIX64_STEP) + place + SPLITMIX64_STEP),
             at = splitmix64_mix(part + (uint64_t)row + SPLITMIX64_STEP);
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < STREAMS; l++)
            random->s[i][l] = splitmix64(&at);
}

static inline uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static inline void random_step(struct random *r, uint64_t out[STREAMS])
{
    for (int l = 0; l < STREAMS; l++) {
        uint64_t s0 = r->s[0][l], s1 = r->s[1][l], s2 = r->s[2][l], s3 = r->s[3][l];
        out[l] = rotate(s0 + s3, 23) + s0;
        s2 ^= s0;
        s3 ^= s1;
        r->s[0][l] = s0 ^ s3;
        r->s[1][l] = s1 ^ s2;
        r->s[2][l] = s2 ^ s1 << 17;
        r->s[3][l] = rotate(s3, 45);
    }
}

/* --- integers, eight bytes at a time --- */

/* Each byte: the sum of two uniform 0..127 is 0..254; plus 129 modulo 256 is minus 127. */
static inline uint64_t int8_word(uint64_t a, uint64_t b)
{
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f), one = UINT64_C(0x0101010101010101);
    uint64_t sum = (a & low) + (b & low);
    return ((sum & low) + one) ^ (~sum & ~low);
}

/* Each nibble: the sum of two uniform 0..7, plus 1, is 1..15, which stands for -7..7. */
static inline uint64_t int4_word(uint64_t a, uint64_t b)
{
    const uint64_t low = UINT64_C(0x7777777777777777), one = UINT64_C(0x1111111111111111);
    return (a & low) + (b & low) + one;
}

static const double INT8_DEVIATION = 52.25540165, INT4_DEVIATION = 3.24037035; /* sqrt((128^2 - 1) / 6), sqrt((8^2 - 1) / 6) */
enum { INT4_LARGEST = 7 };

static void fill_integers(struct random *random, enum weight_format format, uint8_t *out, size_t n_bytes)
{
    CHECK(n_bytes % STEP_BYTES == 0);
    for (size_t at = 0; at < n_bytes; at += STEP_BYTES) {
        uint64_t a[STREAMS], b[STREAMS];
        random_step(random, a);
        random_step(random, b);
        for (int l = 0; l < STREAMS; l++)
            a[l] = format == FORMAT_INT4 ? int4_word(a[l], b[l]) : int8_word(a[l], b[l]);
        memcpy(out + at, a, STEP_BYTES);
    }
}

/* What lies after the last column is stored as value 0 (docs/FORMATS.md, "Matrices"). */
static void clear_padding(enum weight_format format, int cols, uint8_t *row)
{
    int end = blocks_of(cols) * BLOCK_ELEMENTS;
    for (int i = cols; i < end; i++) {
        uint8_t *block = row + (size_t)(i / BLOCK_ELEMENTS) * (size_t)format_info(format)->block_bytes;
        int e = i % BLOCK_ELEMENTS;
        if (format == FORMAT_INT8)
            block[e % 2 * (BLOCK_ELEMENTS / 2) + e / 2] = 0;
        else
            block[e / 2] = (uint8_t)(e % 2 ? (block[e / 2] & 0x0f) | 0x80 : (block[e / 2] & 0xf0) | 0x08);
    }
}

static void fill_scales(struct random *random, const struct synth_fill *fill, enum weight_format format, int cols, uint8_t *out)
{
    int n = 2 * blocks_of(cols), n_used = (cols + GROUP_ELEMENTS - 1) / GROUP_ELEMENTS;
    size_t bytes = (size_t)format_info(format)->scale_bytes;
    const uint8_t *table = format == FORMAT_INT4 ? (const uint8_t *)fill->scales.f16 : (const uint8_t *)fill->scales.f32;
    uint64_t words[STREAMS];
    for (int g = 0; g < n; g++, out += bytes) {
        if (g % STEP_BYTES == 0)
            random_step(random, words);
        uint8_t choice = ((const uint8_t *)words)[g % STEP_BYTES];
        if (g < n_used)
            memcpy(out, table + choice * bytes, bytes);
        else
            memset(out, 0, bytes); /* a group of nothing but padding */
    }
}

/* --- floats --- */

/* The sum of twelve uniform numbers, less its mean: deviation 1, nearly normal, and exact in f32. */
static void fill_normal(struct random *random, float deviation, float *out, int n)
{
    for (int i = 0; i < n; i++) {
        uint64_t words[STREAMS];
        random_step(random, words);
        int sum = 0;
        for (int l = 0; l < 3; l++)
            sum += (int)((words[l] & 0xffff) + (words[l] >> 16 & 0xffff) + (words[l] >> 32 & 0xffff) + (words[l] >> 48));
        out[i] = (float)(2 * sum - 12 * 0xffff) * (deviation * 0x1p-17f);
    }
}

/* out[e] = -skew * ln(rank of e + 1): a Zipf-like head, as real traffic has. */
static void fill_skew(struct random *random, double skew, float *out, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = (float)(-skew * f64_log(1.0 + i));
    for (int i = n - 1; i > 0; i--) {
        uint64_t words[STREAMS];
        random_step(random, words);
        int j = (int)(words[0] % (uint64_t)(i + 1));
        float other = out[j];
        out[j] = out[i];
        out[i] = other;
    }
}

static void float_row(struct random *random, const struct synth_fill *fill, float *out, int n)
{
    if (fill->kind == FILL_RANDOM)
        fill_normal(random, fill->deviation, out, n);
    else if (fill->kind == FILL_SKEW)
        fill_skew(random, fill->skew, out, n);
    else
        for (int i = 0; i < n; i++)
            out[i] = fill->kind == FILL_ONES;
}

/* --- a tensor --- */

static int ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* Rows keep the size of their input: deviation 1 / sqrt(inputs). The inputs of K_h are the latent, though it is stored transposed. */
static float deviation_of(const struct model_config *config, const struct tensor_place *t)
{
    if (!strcmp(t->name, "embed_tokens"))
        return 1;
    return 1 / sqrtf((float)(!strcmp(t->name, "kv_b_keys") ? config->kv_lora_rank : t->cols));
}

/* Group scales between 3/4 and 5/4 of the one that gives the deviation. f16 ones have both signs, as the quantiser's have, and are relative
 * to 2^exponent, so that the largest weight lies in [2^15, 2^16) of it. */
static void choose_scales(struct synth_fill *fill, enum weight_format format)
{
    double middle = fill->deviation / (format == FORMAT_INT4 ? INT4_DEVIATION : INT8_DEVIATION);
    if (format == FORMAT_INT4) {
        int e;
        frexp(middle * 1.25 * INT4_LARGEST, &e); /* in [2^(e - 1), 2^e) */
        fill->exponent = e - 16;
    }
    for (int i = 0; i < SYNTH_SCALES; i++) {
        int half = SYNTH_SCALES / 2;
        if (format == FORMAT_INT8)
            fill->scales.f32[i] = (float)(middle * (0.75 + 0.5 * i / SYNTH_SCALES));
        else
            fill->scales.f16[i] =
                f32_to_f16((float)(ldexp(middle, -fill->exponent) * (0.75 + 0.5 * (i % half) / half) * (i < half ? 1 : -1)));
    }
}

void synth_fill_init(struct synth_fill *fill, const struct model_config *config, const struct tensor_place *t, double skew)
{
    *fill = (struct synth_fill){.kind = FILL_RANDOM, .skew = skew, .deviation = deviation_of(config, t)};
    if (ends_with(t->name, "norm"))
        fill->kind = FILL_ONES;
    else if (ends_with(t->name, "norm_bias"))
        fill->kind = FILL_ZEROS;
    else if (!strcmp(t->name, "router_bias"))
        fill->kind = FILL_SKEW;
    if (format_info(t->format)->scale_bytes)
        choose_scales(fill, t->format);
}

void synth_rows(const struct synth_fill *fill, const struct tensor_place *t, const struct synth_key *key, int begin, int rows,
                uint8_t *data, uint8_t *scales)
{
    size_t row_bytes = format_row_bytes(t->format, t->cols), scale_bytes = format_scale_row_bytes(t->format, t->cols);
    CHECK(t->format != FORMAT_BF16 && begin >= 0 && begin + rows <= t->rows);
    for (int r = 0; r < rows; r++) {
        struct random random;
        random_init(&random, key, begin + r);
        uint8_t *row = data + (size_t)r * row_bytes;
        if (t->format == FORMAT_F32) {
            float_row(&random, fill, (float *)row, t->cols);
            continue;
        }
        fill_integers(&random, t->format, row, row_bytes);
        clear_padding(t->format, t->cols, row);
        fill_scales(&random, fill, t->format, t->cols, scales + (size_t)r * scale_bytes);
    }
}
