/* The operations on single rows, written once over the 16 lanes: a variant's rows.c includes its lanes.h, defines
 *   VARIANT(name)   the name of the variant's function
 *   MIX_HEADS, MIX_LANES   heads and 16-float columns of mix_rows' tile (accumulators that stay in registers)
 * and then this file. Every operation follows kernels/scalar/rows.c step by step; what differs is only how many lanes one instruction
 * holds. Tails are masked. */

/* Runs full(i) for each whole 16 elements, then part(i, n - i) for what is left. */
#define OVER_LANES(i, n, full, part)                                                                                                       \
    do {                                                                                                                                   \
        int i = 0;                                                                                                                         \
        for (; i + LANES <= (n); i += LANES) {                                                                                             \
            full;                                                                                                                          \
        }                                                                                                                                  \
        if (i < (n)) {                                                                                                                     \
            part;                                                                                                                          \
        }                                                                                                                                  \
    } while (0)

ALWAYS_INLINE struct lanes lanes_exp(struct lanes x)
{
    x = lanes_max(lanes_set1(F32_EXP_LO), x);
    x = lanes_min(lanes_set1(F32_EXP_HI), x);
    struct lanes n = lanes_rint(lanes_mul(x, lanes_set1(F32_LOG2E)));
    struct lanes r = lanes_fnma(n, lanes_set1(F32_LN2_HI), x);
    r = lanes_fnma(n, lanes_set1(F32_LN2_LO), r);
    struct lanes p = lanes_fma(lanes_set1(F32_EXP_P0), r, lanes_set1(F32_EXP_P1));
    p = lanes_fma(p, r, lanes_set1(F32_EXP_P2));
    p = lanes_fma(p, r, lanes_set1(F32_EXP_P3));
    p = lanes_fma(p, r, lanes_set1(F32_EXP_P4));
    p = lanes_fma(p, r, lanes_set1(F32_EXP_P5));
    p = lanes_fma(p, lanes_mul(r, r), r);
    p = lanes_add(p, lanes_set1(1.0f));
    return lanes_scale(p, n);
}

ALWAYS_INLINE struct lanes add_square(struct lanes sum, struct lanes v)
{
    return lanes_fma(v, v, sum);
}

ALWAYS_INLINE float sum_squares(const float *x, int n, float minus)
{
    struct lanes sum = lanes_set1(0.0f), m = lanes_set1(minus);
    OVER_LANES(i, n, sum = add_square(sum, lanes_sub(lanes_load(x + i), m)),
               sum = add_square(sum, lanes_keep_first(lanes_sub(lanes_load_first(x + i, n - i), m), n - i)));
    return lanes_tree(sum);
}

ALWAYS_INLINE float sum_row(const float *x, int n)
{
    struct lanes sum = lanes_set1(0.0f);
    OVER_LANES(i, n, sum = lanes_add(sum, lanes_load(x + i)), sum = lanes_add(sum, lanes_load_first(x + i, n - i)));
    return lanes_tree(sum);
}

void VARIANT(rms_norm)(float *out, const float *x, const float *w, int n, float eps)
{
    struct lanes s = lanes_set1(1.0f / sqrtf(sum_squares(x, n, 0.0f) / (float)n + eps));
    OVER_LANES(i, n, lanes_store(out + i, lanes_mul(lanes_mul(lanes_load(x + i), s), lanes_load(w + i))),
               lanes_store_first(out + i, lanes_mul(lanes_mul(lanes_load_first(x + i, n - i), s), lanes_load_first(w + i, n - i)), n - i));
}

void VARIANT(layer_norm)(float *out, const float *x, const float *w, const float *b, int n, float eps)
{
    float mean = sum_row(x, n) / (float)n;
    struct lanes m = lanes_set1(mean), s = lanes_set1(1.0f / sqrtf(sum_squares(x, n, mean) / (float)n + eps));
    OVER_LANES(i, n, lanes_store(out + i, lanes_fma(lanes_mul(lanes_sub(lanes_load(x + i), m), s), lanes_load(w + i), lanes_load(b + i))),
               lanes_store_first(out + i,
                                 lanes_fma(lanes_mul(lanes_sub(lanes_load_first(x + i, n - i), m), s), lanes_load_first(w + i, n - i),
                                           lanes_load_first(b + i, n - i)),
                                 n - i));
}

/* The largest is the same number in any order; -0 or +0 does not matter, exp of either is 1. */
ALWAYS_INLINE float largest_of(const float *x, int n)
{
    struct lanes m = lanes_set1(x[0]);
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        m = lanes_max(lanes_load(x + i), m);
    float largest = lanes_largest(m);
    for (; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    return largest;
}

void VARIANT(softmax)(float *x, int n)
{
    struct lanes m = lanes_set1(largest_of(x, n)), sum = lanes_set1(0.0f), e;
    OVER_LANES(
        i, n,
        {
            e = lanes_exp(lanes_sub(lanes_load(x + i), m));
            lanes_store(x + i, e);
            sum = lanes_add(sum, e);
        },
        {
            e = lanes_keep_first(lanes_exp(lanes_sub(lanes_load_first(x + i, n - i), m)), n - i);
            lanes_store_first(x + i, e, n - i);
            sum = lanes_add(sum, e);
        });
    struct lanes inverse = lanes_set1(1.0f / lanes_tree(sum));
    OVER_LANES(i, n, lanes_store(x + i, lanes_mul(lanes_load(x + i), inverse)),
               lanes_store_first(x + i, lanes_mul(lanes_load_first(x + i, n - i), inverse), n - i));
}

ALWAYS_INLINE struct lanes silu_mul_lanes(struct lanes gate, struct lanes up)
{
    struct lanes one = lanes_set1(1.0f);
    struct lanes sigmoid = lanes_div(one, lanes_add(one, lanes_exp(lanes_negate(gate))));
    return lanes_mul(lanes_mul(gate, sigmoid), up);
}

void VARIANT(silu_mul)(float *out, const float *gate, const float *up, int n)
{
    OVER_LANES(i, n, lanes_store(out + i, silu_mul_lanes(lanes_load(gate + i), lanes_load(up + i))),
               lanes_store_first(out + i, silu_mul_lanes(lanes_load_first(gate + i, n - i), lanes_load_first(up + i, n - i)), n - i));
}

/* What one call of mix_rows reads, so that its tiles stay short. */
struct mix {
    float *out;
    size_t out_stride;
    const float *p;
    size_t p_stride;
    const float *const *rows;
};

/* Adds rows [begin, end) to H heads x J * 16 columns from j on; row 0 starts the sums at 0. The accumulators stay in registers over the
 * rows; between two calls they rest in out, which loses no bit. */
ALWAYS_INLINE void mix_tile(const struct mix *m, int head, int j, int begin, int end, const int H, const int J)
{
    struct lanes acc[MIX_HEADS][MIX_LANES];
    float *out = m->out + (size_t)head * m->out_stride + j;
    const float *p = m->p + (size_t)head * m->p_stride;
#pragma GCC unroll 16
    for (int h = 0; h < H; h++)
#pragma GCC unroll 16
        for (int k = 0; k < J; k++)
            acc[h][k] = begin ? lanes_load(out + (size_t)h * m->out_stride + k * LANES) : lanes_set1(0.0f);
    for (int r = begin; r < end; r++) {
        struct lanes row[MIX_LANES];
#pragma GCC unroll 16
        for (int k = 0; k < J; k++)
            row[k] = lanes_load(m->rows[r] + j + k * LANES);
#pragma GCC unroll 16
        for (int h = 0; h < H; h++) {
            struct lanes weight = lanes_set1(p[(size_t)h * m->p_stride + (size_t)r]);
#pragma GCC unroll 16
            for (int k = 0; k < J; k++)
                acc[h][k] = lanes_fma(weight, row[k], acc[h][k]);
        }
    }
#pragma GCC unroll 16
    for (int h = 0; h < H; h++)
#pragma GCC unroll 16
        for (int k = 0; k < J; k++)
            lanes_store(out + (size_t)h * m->out_stride + k * LANES, acc[h][k]);
}

/* The last columns, fewer than 16, of one head. */
static void mix_tail(const struct mix *m, int head, int j, int left, int n_rows)
{
    struct lanes acc = lanes_set1(0.0f);
    const float *p = m->p + (size_t)head * m->p_stride;
    for (int r = 0; r < n_rows; r++)
        acc = lanes_fma(lanes_set1(p[r]), lanes_load_first(m->rows[r] + j, left), acc);
    lanes_store_first(m->out + (size_t)head * m->out_stride + j, acc, left);
}

ALWAYS_INLINE void mix_heads(const struct mix *m, int n_heads, int j, int begin, int end, const int J)
{
    int h = 0;
    for (; h + MIX_HEADS <= n_heads; h += MIX_HEADS)
        mix_tile(m, h, j, begin, end, MIX_HEADS, J);
    for (; h < n_heads; h++)
        mix_tile(m, h, j, begin, end, 1, J);
}

/* Rows whose columns of one tile (16 KiB at AVX-512's 64 columns) stay in the first cache while all heads pass over them. */
enum { MIX_ROWS = 64 };

void VARIANT(mix_rows)(float *out, size_t out_stride, const float *p, size_t p_stride, const float *const *rows, int n_rows, int n_heads,
                       int n)
{
    const struct mix m = {out, out_stride, p, p_stride, rows};
    int begin = 0;
    do { /* once even without rows: the sums are 0 then */
        int end = begin + MIX_ROWS < n_rows ? begin + MIX_ROWS : n_rows, j = 0;
        for (; j + MIX_LANES * LANES <= n; j += MIX_LANES * LANES)
            mix_heads(&m, n_heads, j, begin, end, MIX_LANES);
        for (; j + LANES <= n; j += LANES)
            mix_heads(&m, n_heads, j, begin, end, 1);
        begin = end;
    } while (begin < n_rows);
    int left = n % LANES;
    for (int h = 0; left && h < n_heads; h++)
        mix_tail(&m, h, n - left, left, n_rows);
}
