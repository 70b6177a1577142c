/* Goal: a vendor folder in any accepted form gives the same parts, and a wrong one is refused by name. Method: golden checkpoints are
 * rewritten in other forms or with one fault; values are compared with a direct, naive reading of the files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include "common/log.h"
#include "common/memory.h"
#include "model/checksums.h"
#include "model/fp8.h"
#include "model/part_layout.h"
#include "model/weights_source.h"
#include "tests/lib/golden.h"
#include "tests/lib/raw_checkpoint.h"

static struct weights_source *open_source(const char *folder)
{
    struct weights_source *source;
    struct error err = {0};
    if (weights_source_open(&source, folder, &err))
        fail_msg("%s", err.text);
    return source;
}

/* All parts of two folders have the same bytes. */
static void assert_same_parts(const char *a, const char *b)
{
    struct weights_source *x = open_source(a), *y = open_source(b);
    enum part_kind kind = PART_EMBEDDING;
    int layer = 0;
    do {
        struct weights_part p, q;
        struct error err = {0};
        if (weights_source_load(x, kind, layer, &p, &err) || weights_source_load(y, kind, layer, &q, &err))
            fail_msg("%s", err.text);
        assert_int_equal(p.n_bytes, q.n_bytes);
        assert_memory_equal(p.bytes, q.bytes, p.n_bytes);
        weights_part_release(&p);
        weights_part_release(&q);
    } while (part_next(weights_source_config(x), &kind, &layer));
    weights_source_close(&x);
    weights_source_close(&y);
}

/* Element i of a raw tensor as f32, read naively; scale: its block scales or NULL. */
static float raw_value(const struct raw_tensor *t, const struct raw_tensor *scale, uint64_t row, uint64_t col)
{
    uint64_t cols = t->shape[t->n_dims - 1], i = row * cols + col;
    float value;
    uint16_t half;
    if (!strcmp(t->dtype, "F32")) {
        memcpy(&value, t->bytes + 4 * i, 4);
        return value;
    }
    if (!strcmp(t->dtype, "F8_E4M3")) {
        float s;
        memcpy(&s, scale->bytes + 4 * (row / 128 * scale->shape[1] + col / 128), 4);
        return fp8_to_f32(t->bytes[i]) * s;
    }
    memcpy(&half, t->bytes + 2 * i, 2);
    return !strcmp(t->dtype, "BF16") ? bf16_to_f32(half) : f16_to_f32(half);
}

static void compare_matrix(struct raw_checkpoint *raw, const struct model_config *c, const struct tensor_spec *spec, const struct matrix *m)
{
    char scale_name[200];
    struct raw_tensor *t = raw_find(raw, spec->source);
    snprintf(scale_name, sizeof scale_name, "%s_scale_inv", spec->source);
    struct raw_tensor *scale = raw_find(raw, scale_name);
    assert_non_null(t);
    assert_int_equal(m->rows, spec->rows);
    assert_int_equal(m->cols, spec->cols);
    assert_int_equal(m->format, spec->class == TENSOR_FLOAT || strcmp(t->dtype, "BF16") ? FORMAT_F32 : FORMAT_BF16);
    float *row = xcalloc((size_t)m->cols, sizeof *row);
    int per_head = c->nope_dim + c->v_dim;
    for (int r = 0; r < m->rows; r++) {
        matrix_row_to_f32(m, r, row);
        for (int i = 0; i < m->cols; i++) {
            uint64_t from_row = (uint64_t)r, from_col = (uint64_t)i;
            if (spec->transform == TRANSFORM_KV_B_KEYS) { /* row h * kv_lora + r' is column r' of K_h */
                from_row = (uint64_t)(r / c->kv_lora_rank * per_head + i);
                from_col = (uint64_t)(r % c->kv_lora_rank);
            } else if (spec->transform == TRANSFORM_KV_B_VALUES) {
                from_row = (uint64_t)(r / c->v_dim * per_head + c->nope_dim + r % c->v_dim);
            }
            float expected = raw_value(t, scale, from_row, from_col);
            if (memcmp(&expected, &row[i], 4))
                fail_msg("%s [%d][%d]: expected %g, got %g", spec->source, r, i, expected, row[i]);
        }
    }
    free(row);
}

static void compare_folder_with_files(const char *folder)
{
    char *copy = temporary_copy(folder);
    struct raw_checkpoint raw = raw_read(folder);
    struct weights_source *source = open_source(copy);
    const struct model_config *c = weights_source_config(source);
    enum part_kind kind = PART_EMBEDDING;
    int layer = 0;
    do {
        struct weights_part part;
        struct tensor_spec specs[PART_TENSORS_MAX];
        struct error err = {0};
        assert_int_equal(weights_source_load(source, kind, layer, &part, &err), STATUS_OK);
        assert_int_equal(part.n_bytes, weights_source_part_bytes(source, kind, layer));
        assert_int_equal((uintptr_t)part.bytes % 4096, 0);
        if (kind == PART_EXPERTS)
            for (int e = 0; e < part.n_experts; e++) {
                const struct matrix *m[3] = {&part.experts[e].gate, &part.experts[e].up, &part.experts[e].down};
                part_tensor_specs(c, kind, layer, e, specs);
                for (int i = 0; i < 3; i++)
                    compare_matrix(&raw, c, &specs[i], m[i]);
            }
        else {
            int n = part_tensor_specs(c, kind, layer, 0, specs);
            for (int i = 0; i < n; i++)
                compare_matrix(&raw, c, &specs[i], weights_part_matrix(&part, specs[i].name));
        }
        weights_part_release(&part);
    } while (part_next(c, &kind, &layer));
    weights_source_close(&source);
    raw_release(&raw);
    temporary_remove(&copy);
}

static void every_element_is_that_of_the_files_kv_b_split_and_transposed(void **state)
{
    (void)state;
    char path[512];
    for (int i = 0; tiny_names[i]; i++)
        if (strcmp(tiny_names[i], "tiny-pattern")) /* fused: next test */
            compare_folder_with_files(golden_path(path, tiny_names[i], "checkpoint"));
    compare_folder_with_files(kindling_dir());
}

/* Splits the fused tensors of a layer list into per-expert ones. */
static void split_fused(struct raw_checkpoint *raw)
{
    for (int i = 0; i < raw->n; i++) {
        struct raw_tensor t = raw->tensors[i];
        char *at = strstr(t.name, "mlp.experts.");
        int is_gate_up = strstr(t.name, "experts.gate_up_proj") != NULL;
        if (!at || t.n_dims != 3)
            continue;
        int parts = is_gate_up ? 2 : 1;
        uint64_t rows = t.shape[1] / (uint64_t)parts, bytes = t.n_bytes / t.shape[0] / (uint64_t)parts, shape[2] = {rows, t.shape[2]};
        for (uint64_t e = 0; e < t.shape[0]; e++)
            for (int p = 0; p < parts; p++) {
                char name[256];
                snprintf(name, sizeof name, "%.*smlp.experts.%d.%s_proj.weight", (int)(at - t.name), t.name, (int)e,
                         !is_gate_up ? "down"
                         : p         ? "up"
                                     : "gate");
                uint8_t *data = xcalloc(bytes, 1);
                memcpy(data, t.bytes + (e * (uint64_t)parts + (uint64_t)p) * bytes, bytes);
                raw_add(raw, name, t.dtype, 2, shape, data, bytes);
            }
        raw_drop(raw, t.name);
        i--;
    }
}

static void fused_and_per_expert_tensors_give_the_same_parts(void **state)
{
    (void)state;
    char path[512];
    golden_path(path, "tiny-pattern", "checkpoint");
    char *fused = temporary_copy(path), *single = folder_with_config_of(path);
    struct raw_checkpoint raw = raw_read(path);
    int n = raw.n;
    split_fused(&raw);
    assert_true(raw.n > n);
    raw_write(&raw, 0, raw.n, single, "model.safetensors");
    assert_same_parts(fused, single);
    raw_release(&raw);
    temporary_remove(&fused);
    temporary_remove(&single);
}

/* Blocks of 128 that end inside a matrix in both directions, and a dense matrix so large that it is read in several goes (at rows that are
 * no multiple of 128). */
static const struct raw_size ragged[] = {{"hidden_size", 200},
                                         {"intermediate_size", 12000},
                                         {"moe_intermediate_size", 200},
                                         {"num_hidden_layers", 2},
                                         {"n_routed_experts", 3},
                                         {"num_experts_per_tok", 1},
                                         {"n_group", 1},
                                         {"topk_group", 1},
                                         {"vocab_size", 50},
                                         {NULL, 0}};

static void large_and_ragged_fp8_matrices_use_the_scales_of_their_blocks(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    struct raw_checkpoint raw = raw_synthetic(folder, ragged, 1);
    raw_write(&raw, 0, raw.n, folder, "model.safetensors");
    compare_folder_with_files(folder);
    raw_release(&raw);
    temporary_remove(&folder);
}

/* Fused FP8 experts: gate and up share a block grid, and up begins at row 200, inside a block. */
static void fused_fp8_experts_use_their_own_block_grid(void **state)
{
    (void)state;
    enum { EXPERTS = 3, MOE = 200, HIDDEN = 200, ROWS = 2 * MOE, BLOCK_ROWS = 4, BLOCK_COLS = 2 };
    char *folder = temporary_folder(), name[128];
    struct raw_checkpoint raw = raw_synthetic(folder, ragged, 1);
    uint64_t shape[3] = {EXPERTS, ROWS, HIDDEN}, blocks[3] = {EXPERTS, BLOCK_ROWS, BLOCK_COLS}, seed = 9, n = EXPERTS * ROWS * HIDDEN,
             m = EXPERTS * BLOCK_ROWS * BLOCK_COLS;
    uint8_t *codes = xcalloc(n, 1);
    float *scales = xcalloc(m, sizeof *scales);
    for (uint64_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(noise(&seed) % 127);
    for (uint64_t i = 0; i < m; i++)
        scales[i] = 0.5f + (float)i;
    for (int e = 0; e < EXPERTS; e++)
        for (int up = 0; up < 2; up++) {
            snprintf(name, sizeof name, "model.layers.1.mlp.experts.%d.%s_proj.weight", e, up ? "up" : "gate");
            raw_drop(&raw, name);
        }
    raw_add(&raw, "model.layers.1.mlp.experts.gate_up_proj", "F8_E4M3", 3, shape, codes, n);
    raw_add(&raw, "model.layers.1.mlp.experts.gate_up_proj_scale_inv", "F32", 3, blocks, (uint8_t *)scales, m * 4);
    raw_write(&raw, 0, raw.n, folder, "model.safetensors");
    struct weights_source *source = open_source(folder);
    struct weights_part part;
    struct error err = {0};
    if (weights_source_load(source, PART_EXPERTS, 1, &part, &err))
        fail_msg("%s", err.text);
    for (int e = 0; e < EXPERTS; e++)
        for (int row = 0; row < ROWS; row++)
            for (int i = 0; i < HIDDEN; i++) {
                const struct matrix *matrix = row < MOE ? &part.experts[e].gate : &part.experts[e].up;
                float expected =
                    fp8_to_f32(codes[(e * ROWS + row) * HIDDEN + i]) * scales[(e * BLOCK_ROWS + row / 128) * BLOCK_COLS + i / 128];
                assert_true(((const float *)matrix->data)[row % MOE * HIDDEN + i] == expected);
            }
    weights_part_release(&part);
    weights_source_close(&source);
    raw_release(&raw);
    temporary_remove(&folder);
}

static void one_file_shards_and_index_give_the_same_parts(void **state)
{
    (void)state;
    char path[512];
    golden_path(path, "tiny-fp8", "checkpoint");
    struct raw_checkpoint raw = raw_read(path);
    char *index = temporary_copy(path), *single = folder_with_config_of(path), *shards = folder_with_config_of(path);
    raw_write(&raw, 0, raw.n, single, "model.safetensors");
    for (int i = 0; i < 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "part-%d.safetensors", i);
        raw_write(&raw, raw.n * i / 5, raw.n * (i + 1) / 5, shards, name);
    }
    assert_same_parts(index, single);
    assert_same_parts(index, shards);
    raw_release(&raw);
    temporary_remove(&index);
    temporary_remove(&single);
    temporary_remove(&shards);
}

static void dead_tensors_change_nothing(void **state)
{
    (void)state;
    char path[512];
    golden_path(path, "tiny-share", "checkpoint");
    char *plain = temporary_copy(path), *more = folder_with_config_of(path);
    struct raw_checkpoint raw = raw_read(path);
    static const char *const dead[] = {"model.layers.3.self_attn.indexer.wk.weight" /* a shared layer */,
                                       "model.layers.8.embed_tokens.weight", "model.layers.8.shared_head.head.weight", "vision.whatever",
                                       "model.layers.99.input_layernorm.weight"};
    for (size_t i = 0; i < sizeof dead / sizeof *dead; i++) {
        uint64_t shape[2] = {3, 5};
        assert_null(raw_find(&raw, dead[i]));
        raw_add(&raw, dead[i], "F32", 2, shape, memset(xcalloc(60, 1), 0xff, 60), 60);
    }
    raw_write(&raw, 0, raw.n, more, "model.safetensors");
    assert_same_parts(plain, more);
    raw_release(&raw);
    temporary_remove(&plain);
    temporary_remove(&more);
}

/* --- faults --- */

static struct raw_tensor *must(struct raw_checkpoint *raw, const char *name)
{
    struct raw_tensor *t = raw_find(raw, name);
    assert_non_null(t);
    return t;
}

#define Q_A "model.layers.4.self_attn.q_a_proj.weight"
#define GATE "model.layers.4.mlp.experts.3.gate_proj.weight"
#define NORM "model.layers.4.input_layernorm.weight"

static void drop_tensor(struct raw_checkpoint *raw)
{
    raw_drop(raw, NORM);
}

static void drop_expert(struct raw_checkpoint *raw)
{
    raw_drop(raw, GATE);
}

static void drop_scale(struct raw_checkpoint *raw)
{
    raw_drop(raw, Q_A "_scale_inv");
}

static void transpose(struct raw_checkpoint *raw)
{
    struct raw_tensor *t = must(raw, Q_A);
    uint64_t rows = t->shape[0];
    t->shape[0] = t->shape[1];
    t->shape[1] = rows;
}

static void flatten(struct raw_checkpoint *raw)
{
    struct raw_tensor *t = must(raw, Q_A);
    t->shape[0] *= t->shape[1];
    t->n_dims = 1;
}

static void wrong_scale_shape(struct raw_checkpoint *raw)
{
    struct raw_tensor *t = must(raw, Q_A "_scale_inv");
    t->shape[0] *= t->shape[1];
    t->shape[1] = 1;
}

static void scale_as_integers(struct raw_checkpoint *raw)
{
    strcpy(must(raw, Q_A "_scale_inv")->dtype, "I32");
}

static void weight_as_integers(struct raw_checkpoint *raw)
{
    strcpy(must(raw, Q_A)->dtype, "U8");
}

static void fp8_nan(struct raw_checkpoint *raw)
{
    must(raw, Q_A)->bytes[77] = 0xff;
}

static void scale_infinite(struct raw_checkpoint *raw)
{
    float infinite = INFINITY;
    memcpy(must(raw, Q_A "_scale_inv")->bytes, &infinite, 4);
}

static void expert_nan(struct raw_checkpoint *raw)
{
    must(raw, GATE)->bytes[0] = 0x7f;
}

static void bf16_infinite(struct raw_checkpoint *raw)
{
    uint16_t infinite = 0x7f80;
    memcpy(must(raw, NORM)->bytes + 6, &infinite, 2);
}

static const struct {
    void (*change)(struct raw_checkpoint *raw);
    int at_load; /* seen only when the values are read */
    const char *words[2];
} faults[] = {
    {drop_tensor, 0, {NORM, "is in no file"}},
    {drop_expert, 0, {GATE, "gate_up_proj"}},
    {drop_scale, 0, {Q_A, "its scale"}},
    {transpose, 0, {Q_A, "expected shape [136, 160] by config.json, the file has [160, 136]"}},
    {flatten, 0, {Q_A, "expected shape [136, 160] by config.json, the file has [21760]"}},
    {wrong_scale_shape, 0, {Q_A "_scale_inv", "expected shape [2, 2] by config.json, the file has [4, 1]"}},
    {scale_as_integers, 0, {Q_A "_scale_inv", "expected dtype F32"}},
    {weight_as_integers, 0, {Q_A, "dtype must be"}},
    {fp8_nan, 1, {Q_A, "not finite"}},
    {scale_infinite, 1, {Q_A "_scale_inv", "not finite"}},
    {expert_nan, 1, {GATE, "not finite"}},
    {bf16_infinite, 1, {NORM, "not finite"}},
};

static enum status load_layer(struct weights_source *source, int layer, struct error *err)
{
    struct weights_part part;
    enum status status = weights_source_load(source, PART_DENSE, layer, &part, err);
    weights_part_release(&part);
    if (status)
        return status;
    status = weights_source_load(source, PART_EXPERTS, layer, &part, err);
    weights_part_release(&part);
    return status;
}

static void a_wrong_tensor_is_refused_and_named(void **state)
{
    (void)state;
    char path[512];
    golden_path(path, "tiny-fp8", "checkpoint");
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        char *folder = folder_with_config_of(path);
        struct raw_checkpoint raw = raw_read(path);
        faults[i].change(&raw);
        raw_write(&raw, 0, raw.n, folder, "model.safetensors");
        struct weights_source *source;
        struct error err = {0};
        enum status status = weights_source_open(&source, folder, &err);
        assert_int_equal(status != STATUS_OK, !faults[i].at_load);
        if (!status)
            status = load_layer(source, 4, &err);
        if (!status || !strstr(err.text, faults[i].words[0]) || !strstr(err.text, faults[i].words[1]))
            fail_msg("fault %zu: expected '%s' and '%s', got '%s'", i, faults[i].words[0], faults[i].words[1], err.text);
        weights_source_close(&source);
        raw_release(&raw);
        temporary_remove(&folder);
    }
}

static const struct {
    const char *index, *words;
} bad_indexes[] = {
    {"{", "line 1"},
    {"{}", "weight_map is missing"},
    {"{\"weight_map\":{}}", "weight_map is missing"},
    {"{\"weight_map\":{\"a\":1}}", "tensor a"},
    {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "'../x.safetensors' is not a file name inside the folder"},
    {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "is not a file name inside the folder"},
    {"{\"weight_map\":{\"a\":\"..\"}}", "is not a file name inside the folder"},
    {"{\"weight_map\":{\"a\":\"\"}}", "is not a file name inside the folder"},
    {"{\"weight_map\":{\"a\":\"gone.safetensors\"}}", "gone.safetensors"},
    {"{\"weight_map\":{\"a\":\"model-00001-of-00003.safetensors\"}}", "tensor a is not in it"},
    {"{\"weight_map\":{\"a\":\"model-00001-of-00003.safetensors\",\"a\":\"model-00002-of-00003.safetensors\"}}", "duplicate"},
};

static void a_wrong_index_is_refused_and_named(void **state)
{
    (void)state;
    char path[512];
    char *folder = temporary_copy(golden_path(path, "tiny-fp8", "checkpoint"));
    for (size_t i = 0; i < sizeof bad_indexes / sizeof *bad_indexes; i++) {
        struct weights_source *source;
        struct error err = {0};
        write_file(folder, "model.safetensors.index.json", bad_indexes[i].index, strlen(bad_indexes[i].index));
        if (!weights_source_open(&source, folder, &err) || !strstr(err.text, bad_indexes[i].words))
            fail_msg("%s: expected '%s', got '%s'", bad_indexes[i].index, bad_indexes[i].words, err.text);
    }
    temporary_remove(&folder);
}

static void a_tensor_in_two_shards_is_refused(void **state)
{
    (void)state;
    char path[512];
    golden_path(path, "tiny-groups", "checkpoint");
    char *folder = folder_with_config_of(path);
    struct raw_checkpoint raw = raw_read(path);
    raw_write(&raw, 0, raw.n, folder, "a.safetensors");
    raw_write(&raw, 3, 4, folder, "b.safetensors");
    struct weights_source *source;
    struct error err = {0};
    assert_int_equal(weights_source_open(&source, folder, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, raw.tensors[3].name));
    raw_release(&raw);
    temporary_remove(&folder);
}

/* --- checksums --- */

static void first_opening_writes_checksums_and_later_loads_obey_them(void **state)
{
    (void)state;
    char path[512];
    char *folder = temporary_copy(golden_path(path, "tiny-fp8", "checkpoint"));
    struct weights_source *source = open_source(folder);
    char identity[33];
    strcpy(identity, weights_source_identity(source));
    weights_source_close(&source);
    char *side = xasprintf("%s/%s", folder, CHECKSUMS_FILE);
    assert_int_equal(access(side, F_OK), 0);
    source = open_source(folder);
    assert_string_equal(identity, weights_source_identity(source));
    weights_source_close(&source);
    /* one bit of the last data byte of a shard: sizes and headers stay right */
    uint64_t n;
    uint8_t *bytes = read_file(folder, "model-00002-of-00003.safetensors", &n);
    bytes[n - 1] ^= 1;
    write_file(folder, "model-00002-of-00003.safetensors", bytes, n);
    source = open_source(folder);
    int n_refused = 0;
    enum part_kind kind = PART_EMBEDDING;
    int layer = 0;
    do {
        struct weights_part part;
        struct error err = {0};
        enum status loaded = weights_source_load(source, kind, layer, &part, &err);
        if (loaded) {
            n_refused++;
            assert_int_equal(loaded, STATUS_CORRUPT);
            assert_non_null(strstr(err.text, "model-00002-of-00003.safetensors"));
            assert_non_null(strstr(err.text, "checksum"));
            assert_null(part.bytes);
        }
        weights_part_release(&part);
        assert_int_equal(weights_source_verify(source, kind, layer, &err), loaded);
    } while (part_next(weights_source_config(source), &kind, &layer));
    assert_int_equal(n_refused, 1);
    weights_source_close(&source);
    /* a header that is one space longer */
    struct error err = {0};
    uint64_t header_bytes;
    memcpy(&header_bytes, bytes, 8);
    uint8_t *longer = xcalloc(n + 1, 1);
    memcpy(longer, bytes, 8 + header_bytes);
    longer[8 + header_bytes] = ' ';
    memcpy(longer + 9 + header_bytes, bytes + 8 + header_bytes, n - 8 - header_bytes);
    header_bytes++;
    memcpy(longer, &header_bytes, 8);
    write_file(folder, "model-00002-of-00003.safetensors", longer, n + 1);
    assert_int_equal(weights_source_open(&source, folder, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "remove"));
    free(longer);
    free(bytes);
    free(side);
    temporary_remove(&folder);
}

static void a_read_only_folder_is_left_alone(void **state)
{
    (void)state;
    char path[512];
    char *folder = temporary_copy(golden_path(path, "tiny-groups", "checkpoint")), *state_home = temporary_folder();
    char *side = xasprintf("%s/%s", folder, CHECKSUMS_FILE), *hearth = xasprintf("%s/hearth", state_home);
    char *old = getenv("XDG_STATE_HOME") ? xstrdup(getenv("XDG_STATE_HOME")) : NULL;
    setenv("XDG_STATE_HOME", state_home, 1);
    chmod(folder, 0555);
    struct weights_source *source = open_source(folder);
    weights_source_close(&source);
    assert_int_not_equal(access(side, F_OK), 0);
    assert_int_equal(access(hearth, F_OK), 0);
    chmod(folder, 0755);
    /* damage is found through the file in the state directory */
    uint64_t n;
    uint8_t *bytes = read_file(folder, "model.safetensors", &n);
    bytes[n - 1] ^= 1;
    write_file(folder, "model.safetensors", bytes, n);
    source = open_source(folder);
    struct error err = {0};
    int n_damaged = 0, layer = 0;
    enum part_kind kind = PART_EMBEDDING;
    do
        n_damaged += weights_source_verify(source, kind, layer, &err) == STATUS_CORRUPT;
    while (part_next(weights_source_config(source), &kind, &layer));
    assert_int_equal(n_damaged, 1);
    weights_source_close(&source);
    if (old)
        setenv("XDG_STATE_HOME", old, 1);
    else
        unsetenv("XDG_STATE_HOME");
    free(old);
    free(bytes);
    free(side);
    free(hearth);
    temporary_remove(&state_home);
    temporary_remove(&folder);
}

int main(void)
{
    log_set_level(LOG_ERROR); /* not the warnings of first use */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_that_of_the_files_kv_b_split_and_transposed),
        cmocka_unit_test(fused_and_per_expert_tensors_give_the_same_parts),
        cmocka_unit_test(large_and_ragged_fp8_matrices_use_the_scales_of_their_blocks),
        cmocka_unit_test(fused_fp8_experts_use_their_own_block_grid),
        cmocka_unit_test(one_file_shards_and_index_give_the_same_parts),
        cmocka_unit_test(dead_tensors_change_nothing),
        cmocka_unit_test(a_wrong_tensor_is_refused_and_named),
        cmocka_unit_test(a_wrong_index_is_refused_and_named),
        cmocka_unit_test(a_tensor_in_two_shards_is_refused),
        cmocka_unit_test(first_opening_writes_checksums_and_later_loads_obey_them),
        cmocka_unit_test(a_read_only_folder_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
