#include "model/part_build.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"
#include "kernels/parallel.h"
#include "model/fp8.h"
#include "model/quantize.h"

enum { BLOCK_VALUES = 2 << 20 }; /* values decoded at once: 8 MB of f32, at most 8 MB of source */

void part_builder_init(struct part_builder *builder, struct vendor_folder *folder, const struct model_config *config,
                       enum precision precision)
{
    *builder = (struct part_builder){.folder = folder, .config = config, .precision = precision, .kv_b_layer = -1};
}

void part_builder_release(struct part_builder *b)
{
    free(b->raw);
    free(b->values);
    free(b->scales);
    free(b->kv_b);
    *b = (struct part_builder){.kv_b_layer = -1};
}

static void *grow(void *memory, size_t *have, size_t need, size_t element_bytes)
{
    if (*have >= need)
        return memory;
    free(memory);
    *have = need;
    return xcalloc(need, element_bytes);
}

/* docs/FORMATS.md, "Precisions". */
static enum weight_format stored_format(enum precision precision, enum tensor_class class, enum tensor_dtype dtype)
{
    if (class == TENSOR_FLOAT)
        return FORMAT_F32;
    if (precision == PRECISION_EXACT)
        return dtype == DTYPE_BF16 ? FORMAT_BF16 : FORMAT_F32;
    return precision == PRECISION_INT4 && class == TENSOR_EXPERT ? FORMAT_INT4 : FORMAT_INT8;
}

enum status part_build_layout(struct part_builder *b, struct part_layout *layout, enum part_kind part, int layer, struct error *err)
{
    struct tensor_spec specs[PART_TENSORS_MAX];
    enum weight_format formats[PART_TENSORS_MAX];
    int n_experts = part == PART_EXPERTS ? b->config->n_experts : 1, widest = FORMAT_BF16;
    for (int expert = 0; expert < n_experts; expert++) {
        int n = part_tensor_specs(b->config, part, layer, expert, specs);
        for (int i = 0; i < n; i++) {
            struct vendor_matrix m;
            enum status status = vendor_matrix_find(&m, b->folder, b->config, &specs[i], part, layer, expert, err);
            if (status)
                return status;
            formats[i] = stored_format(b->precision, specs[i].class, m.tensor->at->dtype);
            widest = formats[i] == FORMAT_F32 ? FORMAT_F32 : widest;
        }
    }
    if (part == PART_EXPERTS && b->precision == PRECISION_EXACT) /* one format for all experts of a layer */
        formats[0] = formats[1] = formats[2] = widest;
    return part_layout_init(layout, b->config, part, layer, formats, err);
}

/* Rows of one matrix on their way from source to stored form; the threads share it and each takes some rows. */
struct job {
    const struct vendor_matrix *source;
    enum tensor_transform transform;
    const struct model_config *config;
    int begin;           /* first row: of the source, or after a transform of the result */
    const uint8_t *raw;  /* source rows from begin on */
    const float *scales; /* FP8 */
    const float *kv_b;   /* transforms */
    float *values;       /* [rows][cols] */
    int cols;
    float *absmax; /* [rows], or NULL */
    const struct tensor_place *place;
    int exponent;
    uint8_t *data, *scales_out; /* NULL data: decode only */
    int is_bad;
};

/* Source row r (counted from begin) as f32; 0 when something in it is not finite. */
static int decode_row(const struct job *j, int r, float *out)
{
    int cols = j->source->cols, grid_row = j->source->block_row;
    size_t row_bytes = (size_t)cols * (size_t)dtype_bytes(j->source->tensor->at->dtype);
    const uint8_t *raw = j->raw + (size_t)r * row_bytes;
    switch (j->source->tensor->at->dtype) {
    case DTYPE_F8_E4M3: {
        int scale_row = (grid_row + j->begin + r) / FP8_BLOCK - grid_row / FP8_BLOCK;
        return fp8_row_to_f32(raw, j->scales + (size_t)scale_row * (size_t)((cols + FP8_BLOCK - 1) / FP8_BLOCK), cols, out);
    }
    case DTYPE_F32:
        memcpy(out, raw, row_bytes);
        break;
    default:
        for (int i = 0; i < cols; i++) {
            uint16_t bits;
            memcpy(&bits, raw + 2 * i, 2);
            out[i] = j->source->tensor->at->dtype == DTYPE_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
        }
    }
    return f32_all_finite(out, cols);
}

/* Row of K_h transposed, or of V_h, from the whole kv_b_proj (which is known to be finite). */
static void transform_row(const struct job *j, int row, float *out)
{
    const struct model_config *c = j->config;
    int rank = c->kv_lora_rank, per_head = c->nope_dim + c->v_dim;
    if (j->transform == TRANSFORM_KV_B_VALUES) {
        const float *from = j->kv_b + ((size_t)(row / c->v_dim) * (size_t)per_head + (size_t)(c->nope_dim + row % c->v_dim)) * (size_t)rank;
        memcpy(out, from, (size_t)rank * sizeof *out);
        return;
    }
    const float *head = j->kv_b + (size_t)(row / rank) * (size_t)per_head * (size_t)rank + (size_t)(row % rank);
    for (int i = 0; i < c->nope_dim; i++)
        out[i] = head[(size_t)i * (size_t)rank];
}

static void store_row(const struct job *j, int r, const float *values)
{
    int cols = j->place->cols;
    uint8_t *data = j->data + (size_t)r * format_row_bytes(j->place->format, cols);
    uint8_t *scales = j->scales_out ? j->scales_out + (size_t)r * format_scale_row_bytes(j->place->format, cols) : NULL;
    switch (j->place->format) {
    case FORMAT_F32:
        memcpy(data, values, (size_t)cols * sizeof *values);
        break;
    case FORMAT_BF16: /* only from BF16, so nothing is rounded */
        for (int i = 0; i < cols; i++) {
            uint16_t bits = f32_to_bf16(values[i]);
            memcpy(data + 2 * i, &bits, 2);
        }
        break;
    case FORMAT_INT8:
        quantize_row_int8(values, cols, (int8_t *)data, (float *)scales);
        break;
    default:
        quantize_row_int4(values, cols, j->exponent, data, (uint16_t *)scales);
    }
}

static void run_rows(void *ctx, int begin, int end)
{
    struct job *j = ctx;
    for (int r = begin; r < end; r++) {
        float *values = j->values + (size_t)r * (size_t)j->cols;
        if (j->transform != TRANSFORM_NONE)
            transform_row(j, j->begin + r, values);
        else if (!decode_row(j, r, values))
            __atomic_store_n(&j->is_bad, 1, __ATOMIC_RELAXED);
        if (j->absmax)
            j->absmax[r] = absmax_of(values, j->cols);
        if (j->data)
            store_row(j, r, values);
    }
}

/* Rows that one thread takes at least: waking a team for less costs more than the work (2^17 values are quantised in half a millisecond).
 */
static int grain_rows(int cols)
{
    return 1 + (1 << 17) / cols;
}

static void run_store(void *ctx, int begin, int end)
{
    struct job *j = ctx;
    for (int r = begin; r < end; r++)
        store_row(j, r, j->values + (size_t)r * (size_t)j->cols);
}

static enum status not_finite(const struct part_builder *b, const struct vendor_matrix *m, struct error *err)
{
    return error_set(err, STATUS_CORRUPT, "%s: tensor %s has a value that is not finite (NaN, infinity, or an FP8 NaN code)",
                     b->folder->shards[m->tensor->shard]->path, m->tensor->at->name);
}

/* Reads source rows and their scales and decodes them into j->values; stores them at once when j->data is set. */
static enum status read_and_run(struct part_builder *b, struct job *j, int rows, struct error *err)
{
    const struct vendor_matrix *m = j->source;
    size_t bytes = (size_t)rows * (size_t)m->cols * (size_t)dtype_bytes(m->tensor->at->dtype);
    b->raw = grow(b->raw, &b->raw_bytes, bytes, 1);
    enum status status = vendor_matrix_read(b->folder, m, j->begin, rows, b->raw, err);
    if (!status && m->scale) {
        b->scales = grow(b->scales, &b->scales_n, (size_t)vendor_matrix_scale_rows(m) * (size_t)((m->cols + FP8_BLOCK - 1) / FP8_BLOCK),
                         sizeof *b->scales);
        status = vendor_matrix_read_scales(b->folder, m, b->scales, err);
    }
    if (status)
        return status;
    j->raw = b->raw;
    j->scales = b->scales;
    parallel_for(rows, grain_rows(j->cols), run_rows, j);
    return j->is_bad ? not_finite(b, m, err) : STATUS_OK;
}

static float *values_for(struct part_builder *b, int rows, int cols)
{
    b->values = grow(b->values, &b->values_n, (size_t)rows * (size_t)cols, sizeof *b->values);
    return b->values;
}

/* kv_b_proj is used twice, for keys and for values, and its columns become rows: kept whole while its layer is built. */
static enum status load_kv_b(struct part_builder *b, const struct vendor_matrix *m, int layer, struct error *err)
{
    if (b->kv_b_layer == layer)
        return STATUS_OK;
    b->kv_b_layer = -1;
    b->kv_b = grow(b->kv_b, &b->kv_b_n, (size_t)m->rows * (size_t)m->cols, sizeof *b->kv_b);
    struct job j = {.source = m, .config = b->config, .values = b->kv_b, .cols = m->cols};
    enum status status = read_and_run(b, &j, m->rows, err);
    if (!status)
        b->kv_b_layer = layer;
    return status;
}

int part_build_block_rows(const struct tensor_place *place)
{
    int rows = BLOCK_VALUES / place->cols;
    return rows < 1 ? 1 : rows < place->rows ? rows : place->rows;
}

enum status part_build_rows(struct part_builder *b, const struct part_layout *layout, int tensor, int begin, int rows, uint8_t *data,
                            uint8_t *scales, struct error *err)
{
    CHECK(layout->kind != PART_EXPERTS && tensor < layout->n_tensors);
    const struct tensor_place *place = &layout->tensors[tensor];
    CHECK(begin >= 0 && rows >= 0 && begin + rows <= place->rows);
    struct tensor_spec specs[PART_TENSORS_MAX];
    part_tensor_specs(b->config, layout->kind, layout->layer, 0, specs);
    const struct tensor_spec *spec = &specs[tensor];
    struct vendor_matrix m;
    enum status status = vendor_matrix_find(&m, b->folder, b->config, spec, layout->kind, layout->layer, 0, err);
    if (status)
        return status;
    struct job j = {.source = &m,
                    .transform = spec->transform,
                    .config = b->config,
                    .begin = begin,
                    .cols = place->cols,
                    .place = place,
                    .data = data,
                    .scales_out = place->scales_bytes ? scales : NULL};
    j.values = values_for(b, rows, place->cols);
    if (spec->transform == TRANSFORM_NONE)
        return read_and_run(b, &j, rows, err);
    status = load_kv_b(b, &m, layout->layer, err);
    if (status)
        return status;
    j.kv_b = b->kv_b;
    parallel_for(rows, grain_rows(j.cols), run_rows, &j);
    return STATUS_OK;
}

/* One matrix of an expert: with int4 the exponent needs all values before the first is stored. */
static enum status build_expert_matrix(struct part_builder *b, const struct part_layout *layout, const struct tensor_spec *spec, int expert,
                                       int i, uint8_t *record, struct error *err)
{
    const struct tensor_place *place = &layout->tensors[i];
    struct vendor_matrix m;
    enum status status = vendor_matrix_find(&m, b->folder, b->config, spec, PART_EXPERTS, layout->layer, expert, err);
    if (status)
        return status;
    int is_int4 = place->format == FORMAT_INT4;
    uint8_t *data = record + place->offset;
    struct job j = {.source = &m,
                    .config = b->config,
                    .cols = place->cols,
                    .place = place,
                    .data = is_int4 ? NULL : data,
                    .scales_out = place->scales_bytes ? record + place->scales_offset : NULL};
    j.values = values_for(b, place->rows, place->cols);
    if (is_int4)
        j.absmax = xcalloc((size_t)place->rows, sizeof *j.absmax);
    status = read_and_run(b, &j, place->rows, err);
    if (!status && is_int4) {
        j.exponent = quantize_int4_exponent(absmax_of(j.absmax, place->rows));
        j.data = data;
        parallel_for(place->rows, grain_rows(j.cols), run_store, &j);
        int32_t exponent = j.exponent;
        memcpy(record + layout->exponents_offset + 4 * i, &exponent, 4);
    }
    free(j.absmax);
    return status;
}

enum status part_build_record(struct part_builder *b, const struct part_layout *layout, int expert, uint8_t *record, struct error *err)
{
    CHECK(layout->kind == PART_EXPERTS && expert >= 0 && expert < layout->n_records);
    struct tensor_spec specs[PART_TENSORS_MAX];
    part_tensor_specs(b->config, PART_EXPERTS, layout->layer, expert, specs);
    memset(record, 0, layout->record_bytes);
    for (int i = 0; i < 3; i++) {
        enum status status = build_expert_matrix(b, layout, &specs[i], expert, i, record, err);
        if (status)
            return status;
    }
    return STATUS_OK;
}
