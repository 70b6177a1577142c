/* int8 and int4 matrices: how rows and x rows are cut into tiles, written once for all instruction sets. The including file defines before
 *   VARIANT(name)   the name of the variant's function
 *   ROWS_S1, ROWS_S2, ROWS_S4   rows of a tile of 1, 2, 4 x rows
 *   TILE_SUMS_MAX   accumulators of the largest tile
 *   PANEL_BYTES     weights kept in the first cache while all x rows pass over them
 * and after it tile_sums. */

/* One tile's rows and x rows, where they begin. */
struct operands {
    const uint8_t *w, *w_scales;
    size_t w_stride, w_scales_stride; /* bytes from one row to the next */
    const int8_t *x;
    const float *x_scales;
    const int32_t *lane_sums8;
    int n_blocks;
};

/* sums[s * R + r] of R rows by S x rows. */
ALWAYS_INLINE void tile_sums(float *sums, const struct operands *o, enum weight_format format, int R, int S);

/* Rows [begin, end) by x rows [s, s + S), R rows at a time. */
ALWAYS_INLINE void rows_by(const struct matmul_args *a, int begin, int end, int s, const enum weight_format format, const int R,
                           const int S)
{
    const size_t blocks = (size_t)a->q->n_blocks;
    struct operands o = {.w_stride = format_row_bytes(format, a->m->cols),
                         .w_scales_stride = format_scale_row_bytes(format, a->m->cols),
                         .x = a->q->values + (size_t)s * blocks * BLOCK_ELEMENTS,
                         .x_scales = a->q->scales + (size_t)s * blocks * 2,
                         .lane_sums8 = a->q->lane_sums8 + (size_t)s * blocks * LANES,
                         .n_blocks = a->q->n_blocks};
    float sums[TILE_SUMS_MAX];
    for (int row = begin, rows; row < end; row += rows) {
        o.w = (const uint8_t *)a->m->data + (size_t)row * o.w_stride;
        o.w_scales = (const uint8_t *)a->m->scales + (size_t)row * o.w_scales_stride;
        rows = row + R <= end ? R : 1;
        if (rows == R)
            tile_sums(sums, &o, format, R, S);
        else
            tile_sums(sums, &o, format, 1, S);
        for (int k = 0; k < rows * S; k++)
            a->out[(size_t)(s + k / rows) * a->out_stride + (size_t)(row + k % rows)] = sums[k] * a->m->factor;
    }
}

ALWAYS_INLINE void matmul(const struct matmul_args *a, const enum weight_format format)
{
    const size_t row_bytes = format_row_bytes(format, a->m->cols);
    const int panel = PANEL_BYTES / row_bytes > 4 ? (int)(PANEL_BYTES / row_bytes) / 4 * 4 : 4;
    for (int begin = a->row_begin; begin < a->row_end; begin += panel) {
        int end = begin + panel < a->row_end ? begin + panel : a->row_end, s = 0;
        for (; s + 4 <= a->n_x; s += 4)
            rows_by(a, begin, end, s, format, ROWS_S4, 4);
        for (; s + 2 <= a->n_x; s += 2)
            rows_by(a, begin, end, s, format, ROWS_S2, 2);
        if (s < a->n_x)
            rows_by(a, begin, end, s, format, ROWS_S1, 1);
    }
}

void VARIANT(matmul_int8)(const struct matmul_args *a)
{
    matmul(a, FORMAT_INT8);
}

void VARIANT(matmul_int4)(const struct matmul_args *a)
{
    matmul(a, FORMAT_INT4);
}
