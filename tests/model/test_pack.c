/* Goal: a pack gives back what was put in, and nothing of it is believed when a byte is wrong. Method: packs of every golden checkpoint are
 * compared with the vendor folder; then files are damaged one byte or one field at a time, with the manifest's identity made right again
 * where the fault should lie deeper. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>
#include <xxhash.h>

#include "common/log.h"
#include "common/memory.h"
#include "model/checksums.h"
#include "model/pack.h"
#include "model/part_layout.h"
#include "model/weights_source.h"
#include "tests/lib/golden.h"
#include "tests/lib/packs.h"
#include "tests/lib/raw_checkpoint.h"

static struct weights_source *open_source(const char *folder)
{
    struct weights_source *source;
    struct error err = {0};
    if (weights_source_open(&source, folder, &err))
        fail_msg("%s", err.text);
    return source;
}

static struct weights_part load(struct weights_source *source, enum part_kind kind, int layer)
{
    struct weights_part part;
    struct error err = {0};
    if (weights_source_load(source, kind, layer, &part, &err))
        fail_msg("%s", err.text);
    return part;
}

static void an_exact_pack_equals_the_vendor_folder_bit_for_bit(void **state)
{
    (void)state;
    char path[512];
    for (int i = 0; checkpoint_names[i]; i++) {
        char *vendor = temporary_copy(checkpoint_path(path, checkpoint_names[i])), *pack = make_pack(vendor, PRECISION_EXACT, NULL);
        struct weights_source *a = open_source(vendor), *b = open_source(pack);
        assert_int_equal(weights_source_precision(b), PRECISION_EXACT);
        enum part_kind kind = PART_EMBEDDING;
        int layer = 0, n = 0;
        do {
            struct weights_part p = load(a, kind, layer), q = load(b, kind, layer);
            assert_int_equal(p.n_bytes, q.n_bytes);
            assert_memory_equal(p.bytes, q.bytes, p.n_bytes);
            assert_int_equal(weights_source_part_bytes(b, kind, layer), q.n_bytes);
            weights_part_release(&p);
            weights_part_release(&q);
            n++;
        } while (part_next(weights_source_config(a), &kind, &layer));
        assert_true(n >= 5);
        weights_source_close(&a);
        weights_source_close(&b);
        temporary_remove(&vendor);
        temporary_remove(&pack);
    }
}

/* Largest error of m against exact is bounded by its own scales; adds the squared errors of m and of plain absmax / 7. */
static void compare_quantised(const struct matrix *m, const struct matrix *exact, double *ours, double *plain)
{
    float *w = xcalloc((size_t)m->cols, 4), *back = xcalloc((size_t)m->cols, 4);
    assert_int_equal(m->rows, exact->rows);
    assert_int_equal(m->cols, exact->cols);
    for (int r = 0; r < m->rows; r++) {
        struct matrix row = matrix_rows(m, r, 1);
        matrix_row_to_f32(exact, r, w);
        matrix_row_to_f32(m, r, back);
        for (int begin = 0; begin < m->cols; begin += GROUP_ELEMENTS) {
            int n = m->cols - begin < GROUP_ELEMENTS ? m->cols - begin : GROUP_ELEMENTS, g = begin / GROUP_ELEMENTS;
            float absmax = 0, step;
            for (int i = begin; i < begin + n; i++)
                absmax = fabsf(w[i]) > absmax ? fabsf(w[i]) : absmax;
            if (m->format == FORMAT_INT8)
                step = ((const float *)row.scales)[g];
            else
                step = fabsf(f16_to_f32(((const uint16_t *)row.scales)[g])) * m->factor;
            if (m->format == FORMAT_INT8)
                assert_true(step == absmax / 127.0f);
            for (int i = begin; i < begin + n; i++) {
                double rest = (double)w[i] - back[i], plain_step = absmax / 7,
                       plain_rest = plain_step > 0 ? w[i] - rint(w[i] / plain_step) * plain_step : 0;
                /* inside the range half a step; the clipped ones of int4 lie outside -8.5 .. 7.5 steps */
                if (m->format == FORMAT_INT8 || fabs(back[i]) < 7 * step)
                    assert_true(fabs(rest) <= 0.5001 * step);
                *ours += rest * rest;
                *plain += plain_rest * plain_rest;
            }
        }
    }
    free(w);
    free(back);
}

static void a_quantised_pack_is_as_near_as_its_formats_promise(void **state)
{
    (void)state;
    char path[512];
    for (int i = 0; checkpoint_names[i]; i++)
        for (int precision = PRECISION_INT8; precision <= PRECISION_INT4; precision++) {
            checkpoint_path(path, checkpoint_names[i]);
            char *quantised = make_pack(path, (enum precision)precision, NULL), *exact = make_pack(path, PRECISION_EXACT, NULL);
            struct weights_source *a = open_source(quantised), *b = open_source(exact);
            double ours = 0, plain = 0, ignored = 0;
            enum part_kind kind = PART_EMBEDDING;
            int layer = 0;
            do {
                struct weights_part p = load(a, kind, layer), q = load(b, kind, layer);
                for (int t = 0; t < p.n_tensors; t++) {
                    assert_string_equal(p.names[t], q.names[t]);
                    if (p.tensors[t].format == FORMAT_F32)
                        assert_memory_equal(p.tensors[t].data, q.tensors[t].data,
                                            4 * (size_t)p.tensors[t].rows * (size_t)p.tensors[t].cols);
                    else
                        compare_quantised(&p.tensors[t], &q.tensors[t], &ignored, &ignored);
                }
                for (int e = 0; e < p.n_experts; e++) {
                    assert_int_equal(p.experts[e].up.format, precision == PRECISION_INT4 ? FORMAT_INT4 : FORMAT_INT8);
                    compare_quantised(&p.experts[e].gate, &q.experts[e].gate, &ours, &plain);
                    compare_quantised(&p.experts[e].up, &q.experts[e].up, &ours, &plain);
                    compare_quantised(&p.experts[e].down, &q.experts[e].down, &ours, &plain);
                    assert_int_equal((uintptr_t)p.experts[e].down.scales % 64, 0);
                }
                weights_part_release(&p);
                weights_part_release(&q);
            } while (part_next(weights_source_config(a), &kind, &layer));
            print_message("%s %s: squared error of experts %.4f of plain 4-bit rounding\n", checkpoint_names[i],
                          precision_name((enum precision)precision), ours / plain);
            assert_true(ours <= (precision == PRECISION_INT4 ? 0.75 : 0.01) * plain);
            weights_source_close(&a);
            weights_source_close(&b);
            temporary_remove(&quantised);
            temporary_remove(&exact);
        }
}

static void a_record_can_be_read_where_the_pack_says_it_lies(void **state)
{
    (void)state;
    char path[512], *folder = make_pack(golden_path(path, "tiny-fp8", "checkpoint"), PRECISION_INT4, NULL);
    struct weights_source *source = open_source(folder);
    const struct pack *pack = weights_source_pack(source);
    const struct pack_part *part = pack_find(pack, PART_EXPERTS, 5);
    struct weights_part loaded = load(source, PART_EXPERTS, 5);
    uint64_t n, record_bytes = part->layout.record_bytes;
    uint8_t *file = read_file(folder, part->file, &n);
    for (int e = 0; e < loaded.n_experts; e++) {
        uint64_t offset = PACK_HEADER_BYTES + (uint64_t)e * record_bytes;
        assert_true(record_bytes % 4096 == 0 && offset + record_bytes <= n);
        assert_memory_equal(file + offset, loaded.bytes + (uint64_t)e * record_bytes, record_bytes);
        assert_true(XXH3_64bits(file + offset, record_bytes) == part->checksums[e]);
    }
    free(file);
    weights_part_release(&loaded);
    weights_source_close(&source);
    temporary_remove(&folder);
}

/* --- damage --- */

/* Opens the folder and verifies everything; the first error. */
static enum status open_and_verify(const char *folder, struct error *err)
{
    struct weights_source *source;
    enum status status = weights_source_open(&source, folder, err);
    if (status)
        return status;
    enum part_kind kind = PART_EMBEDDING;
    int layer = 0;
    do {
        status = weights_source_verify(source, kind, layer, err);
        struct weights_part part;
        struct error again = {0};
        enum status loaded = weights_source_load(source, kind, layer, &part, &again);
        assert_int_equal(loaded, status); /* loading is as strict as verifying */
        weights_part_release(&part);
    } while (!status && part_next(weights_source_config(source), &kind, &layer));
    weights_source_close(&source);
    return status;
}

static void flip(const char *folder, const char *file, uint64_t at, uint8_t mask)
{
    uint64_t n;
    uint8_t *bytes = read_file(folder, file, &n);
    assert_true(at < n);
    bytes[at] ^= mask;
    write_file(folder, file, bytes, n);
    free(bytes);
}

static const struct {
    const char *file;
    uint64_t at;
    const char *words[2];
} flips[] = {
    {"dense-03", 0, {"dense-03", "magic"}},
    {"dense-03", 9, {"dense-03", "format version"}},
    {"dense-03", 12, {"dense-03", "part"}},
    {"dense-03", 16, {"dense-03", "layer"}},
    {"dense-03", 20, {"dense-03", "header"}},
    {"dense-03", 25, {"dense-03", "says"}},
    {"dense-03", 4095, {"dense-03", "header: damaged"}},
    {"dense-03", 4096, {"dense-03", "tensor input_norm"}},
    {"experts-03", 4096, {"experts-03", "record 0"}},
    {"experts-03", 4096 + 36864 - 1, {"experts-03", "record 0"}},
    {"embedding", 4096 + 12345, {"embedding", "tensor embed_tokens"}},
    {"head", 4096, {"head", "tensor norm"}},
    {"config.json", 3, {"config.json", "checksum"}},
    {"tokenizer.json", 30, {"tokenizer.json", "checksum"}},
};

static char *kindling_pack; /* int4, made once */

static void a_flipped_bit_is_found_and_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) {
        struct error err = {0};
        flip(kindling_pack, flips[i].file, flips[i].at, 1);
        if (!open_and_verify(kindling_pack, &err) || !strstr(err.text, flips[i].words[0]) || !strstr(err.text, flips[i].words[1]))
            fail_msg("%s byte %llu: expected '%s' and '%s', got '%s'", flips[i].file, (unsigned long long)flips[i].at, flips[i].words[0],
                     flips[i].words[1], err.text);
        flip(kindling_pack, flips[i].file, flips[i].at, 1);
    }
    struct error err = {0};
    if (open_and_verify(kindling_pack, &err))
        fail_msg("undamaged again, but: %s", err.text);
}

/* Every single byte of a small part counts, gaps and padding too. */
static void no_byte_of_a_part_may_change(void **state)
{
    (void)state;
    char path[512], *folder = make_pack(golden_path(path, "tiny-pattern", "checkpoint"), PRECISION_INT4, NULL);
    struct pack *pack;
    struct error err = {0};
    assert_int_equal(pack_open(&pack, folder, &err), STATUS_OK);
    static const struct {
        enum part_kind kind;
        int layer;
    } parts[] = {{PART_DENSE, 1}, {PART_EXPERTS, 1}, {PART_HEAD, 0}};
    uint64_t seed = 77;
    for (int i = 0; i < 3; i++) {
        const struct pack_part *part = pack_find(pack, parts[i].kind, parts[i].layer);
        for (int round = 0; round < 300; round++) {
            uint64_t at = noise(&seed) % part->file_bytes;
            uint8_t mask = (uint8_t)(1u << noise(&seed) % 8);
            flip(folder, part->file, at, mask);
            if (!pack_read_part(pack, part, NULL, &err))
                fail_msg("seed 77: byte %llu of %s changed unseen", (unsigned long long)at, part->file);
            flip(folder, part->file, at, mask);
        }
        assert_int_equal(pack_read_part(pack, part, NULL, &err), STATUS_OK);
    }
    pack_close(&pack);
    temporary_remove(&folder);
}

static void wrong_sizes_and_wrong_files_are_named(void **state)
{
    (void)state;
    char path[512], *folder = make_pack(golden_path(path, "tiny-share", "checkpoint"), PRECISION_INT4, NULL);
    struct error err = {0};
    uint64_t n, m;
    uint8_t *bytes = read_file(folder, "dense-02", &n), *other = read_file(folder, "dense-01", &m);
    assert_int_equal(n, m);
    write_file(folder, "dense-02", bytes, n - 1);
    assert_int_equal(open_and_verify(folder, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "dense-02"));
    uint8_t *longer = xcalloc(n + 1, 1);
    memcpy(longer, bytes, n);
    write_file(folder, "dense-02", longer, n + 1);
    assert_int_equal(open_and_verify(folder, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "dense-02"));
    write_file(folder, "dense-02", other, m); /* swapped layers */
    assert_int_equal(open_and_verify(folder, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "of layer 1"));
    write_file(folder, "dense-02", "", 0);
    assert_int_equal(open_and_verify(folder, &err), STATUS_CORRUPT);
    char *file = xasprintf("%s/dense-02", folder);
    unlink(file); /* missing: the pack opens (a node has only its range), the part does not load */
    struct weights_source *source = open_source(folder);
    struct weights_part part;
    assert_int_equal(weights_source_load(source, PART_DENSE, 2, &part, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "dense-02"));
    weights_source_close(&source);
    assert_int_equal(symlink("dense-01", file), 0);
    assert_int_equal(open_and_verify(folder, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "symbolic link"));
    free(file);
    free(longer);
    free(bytes);
    free(other);
    temporary_remove(&folder);
}

/* Swaps two records of one layer, which both are intact. */
static void an_expert_in_the_place_of_another_is_found(void **state)
{
    (void)state;
    uint64_t n, record = 36864;
    uint8_t *bytes = read_file(kindling_pack, "experts-04", &n), *swapped = xcalloc(n, 1);
    memcpy(swapped, bytes, n);
    memcpy(swapped + 4096 + 7 * record, bytes + 4096 + 8 * record, record);
    memcpy(swapped + 4096 + 8 * record, bytes + 4096 + 7 * record, record);
    write_file(kindling_pack, "experts-04", swapped, n);
    struct error err = {0};
    assert_int_equal(open_and_verify(kindling_pack, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "experts-04: record 7"));
    write_file(kindling_pack, "experts-04", bytes, n);
    free(bytes);
    free(swapped);
}

/* --- the manifest --- */

static void write_manifest(const char *folder, json_t *root, int repair_identity)
{
    if (repair_identity) {
        char id[33];
        json_object_del(root, "identity");
        char *canonical = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENSURE_ASCII);
        identity_text(id, canonical, strlen(canonical));
        free(canonical);
        json_object_set_new(root, "identity", json_string(id));
    }
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_SORT_KEYS);
    write_file(folder, PACK_MANIFEST, text, strlen(text));
    free(text);
}

/* path: keys and indexes with dots. value: JSON, "" removes. */
static const struct {
    const char *path, *value;
    const char *words;
} edits[] = {
    {"format", "\"gguf\"", "format is 'gguf'"},
    {"version", "2", "format version 2, this build knows 1"},
    {"version", "\"1\"", "version must be a whole number"},
    {"precision", "\"int3\"", "unknown precision 'int3'"},
    {"precision", "\"int8\"", "which no int8 pack has there"},
    {"identity", "\"0\"", "identity"},
    {"files", "[]", "config.json is missing"},
    {"files.config.json", "", "config.json is missing"},
    {"files.config.json", "{\"bytes\":1}", "no checksum of config.json"},
    {"files.config.json", "{\"bytes\":1,\"xxh3_64\":\"0123456789abcdef\"}", "config.json: does not match"},
    {"files.../../x", "{\"bytes\":1,\"xxh3_64\":\"0123456789abcdef\"}", "names a file that is none of a pack's"},
    {"parts", "{}", "0 parts"},
    {"parts.0", "", "parts, by config.json"},
    {"parts.1.file", "\"../dense-00\"", "found file '../dense-00', expected dense-00"},
    {"parts.1.file", "\"dense-01\"", "found file 'dense-01', expected dense-00"},
    {"parts.1.bytes", "4096", "dense-00 has 4096 bytes, by config.json it has"},
    {"parts.1.bytes", "-1", "dense-00 has -1 bytes"},
    {"parts.1.layer", "7", "dense-00 is not laid out as"},
    {"parts.1.tensors", "[]", "format ''"},
    {"parts.1.tensors.0.format", "\"int8\"", "input_norm has format 'int8'"},
    {"parts.1.tensors.1.format", "\"f32\"", "q_a_proj has format 'f32'"},
    {"parts.1.tensors.1.format", "\"q4\"", "q_a_proj has format 'q4'"},
    {"parts.1.tensors.1.rows", "1", "not laid out"},
    {"parts.1.tensors.1.offset", "0", "not laid out"},
    {"parts.1.tensors.1.xxh3_64", "\"0123456789ABCDEF\"", "no checksum of tensor 1"},
    {"parts.1.tensors.1.xxh3_64", "\"0123\"", "no checksum of tensor 1"},
    {"parts.1.tensors.1.xxh3_64", "\"0123456789abcdef\"", "tensor q_a_proj does not match its checksum"},
    {"parts.1.more", "1", "not laid out"},
    {"parts.5.records.format", "\"int8\"", "has format 'int8'"},
    {"parts.5.records.count", "31", "not laid out"},
    {"parts.5.records.bytes", "4096", "not laid out"},
    {"parts.5.records.xxh3_64", "[]", "no checksum of record 0"},
    {"parts.5.records.xxh3_64.31", "", "no checksum of record 31"},
    {"parts.5.records.xxh3_64.31", "\"0123456789abcdef\"", "record 31 does not match its checksum"},
    {"more", "1", "parts"},
};

static void edit(json_t *root, const char *path, const char *value)
{
    char key[64];
    for (;;) {
        const char *dot = strchr(path, '.');
        if (!strncmp(path, "config.json", 11) || !strncmp(path, "../", 3))
            dot = NULL;
        size_t n = dot ? (size_t)(dot - path) : strlen(path);
        memcpy(key, path, n);
        key[n] = 0;
        if (!dot)
            break;
        root = json_is_array(root) ? json_array_get(root, (size_t)atoi(key)) : json_object_get(root, key);
        assert_non_null(root);
        path = dot + 1;
    }
    json_t *new = *value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    assert_true(!*value || new);
    if (json_is_array(root))
        assert_int_equal(new ? json_array_set_new(root, (size_t)atoi(key), new) : json_array_remove(root, (size_t)atoi(key)), 0);
    else
        assert_int_equal(new ? json_object_set_new(root, key, new) : json_object_del(root, key), 0);
}

static void a_wrong_manifest_is_refused_and_named(void **state)
{
    (void)state;
    uint64_t n;
    uint8_t *good = read_file(kindling_pack, PACK_MANIFEST, &n);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        json_t *root = json_loadb((char *)good, n, 0, NULL);
        struct error err = {0};
        edit(root, edits[i].path, edits[i].value);
        write_manifest(kindling_pack, root, strcmp(edits[i].path, "identity"));
        if (!open_and_verify(kindling_pack, &err) || !strstr(err.text, edits[i].words))
            fail_msg("%s = %s: expected '%s', got '%s'", edits[i].path, edits[i].value, edits[i].words, err.text);
        /* without a new identity the change itself is seen, unless a check before it speaks first */
        json_decref(root);
    }
    write_file(kindling_pack, PACK_MANIFEST, good, n);
    json_t *root = json_loadb((char *)good, n, 0, NULL);
    struct error err = {0};
    edit(root, "parts.1.tensors.1.xxh3_64", "\"0123456789abcdef\"");
    write_manifest(kindling_pack, root, 0);
    assert_int_equal(open_and_verify(kindling_pack, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "identity"));
    json_decref(root);
    write_file(kindling_pack, PACK_MANIFEST, good, n);
    free(good);
}

/* A config that is valid, but not the one the pack was made with, and sizes that overflow when multiplied. */
static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    struct model_config config;
    struct error err = {0};
    char path[512];
    assert_int_equal(model_config_read(&config, golden_path(path, "tiny-share", "checkpoint"), &err), STATUS_OK);
    struct part_layout layout;
    enum weight_format formats[PART_TENSORS_MAX] = {FORMAT_F32, FORMAT_F32, FORMAT_F32};
    static const int sizes[] = {INT32_MAX - 127, 1 << 30, 1 << 24};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct model_config big = config;
        big.vocab_size = big.hidden_size = sizes[i];
        enum status status = part_layout_init(&layout, &big, PART_EMBEDDING, 0, formats, &err);
        assert_int_equal(status, STATUS_INVALID);
        assert_non_null(strstr(err.text, "2^48"));
        big = config;
        big.moe_intermediate_size = sizes[i];
        big.hidden_size = 1 << 20;
        big.n_experts = EXPERTS_MAX;
        assert_int_equal(part_layout_init(&layout, &big, PART_EXPERTS, 4, formats, &err), STATUS_INVALID);
    }
}

static void an_exponent_out_of_range_is_refused(void **state)
{
    (void)state;
    struct model_config config;
    struct error err = {0};
    char path[512];
    assert_int_equal(model_config_read(&config, golden_path(path, "tiny-share", "checkpoint"), &err), STATUS_OK);
    struct part_layout layout;
    enum weight_format formats[PART_TENSORS_MAX] = {FORMAT_INT4, FORMAT_INT4, FORMAT_INT4};
    assert_int_equal(part_layout_init(&layout, &config, PART_EXPERTS, 4, formats, &err), STATUS_OK);
    static const struct {
        int32_t exponent;
        enum status status;
    } cases[] = {{0, STATUS_OK},        {-126, STATUS_OK},           {127, STATUS_OK},           {-127, STATUS_CORRUPT},
                 {128, STATUS_CORRUPT}, {INT32_MIN, STATUS_CORRUPT}, {INT32_MAX, STATUS_CORRUPT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct weights_part part = {.bytes = xcalloc(layout.bytes, 1), .n_bytes = layout.bytes};
        memcpy(part.bytes + layout.record_bytes + layout.exponents_offset + 4, &cases[i].exponent, 4);
        assert_int_equal(part_layout_views(&layout, &part, &err), cases[i].status);
        if (!cases[i].status)
            assert_true(part.experts[1].up.factor == ldexpf(1, cases[i].exponent));
        weights_part_release(&part);
    }
    assert_non_null(strstr(err.text, "record 1"));
}

/* Seeded damage to manifest text and to headers: an error or a pack that reads, never a crash. */
static void random_damage_to_manifest_and_headers_never_crashes(void **state)
{
    (void)state;
    char path[512], *folder = make_pack(golden_path(path, "tiny-groups", "checkpoint"), PRECISION_INT4, NULL);
    uint64_t n, m, seed = 31337;
    uint8_t *manifest = read_file(folder, PACK_MANIFEST, &n), *bad = xcalloc(n, 1);
    int n_opened = 0;
    for (int round = 0; round < 2000; round++) {
        memcpy(bad, manifest, n);
        for (uint64_t k = noise(&seed) % 3; k < 3; k++) {
            static const uint8_t likely[] = "0123456789-[]{}\",:.eabcdef \\\xff";
            bad[noise(&seed) % n] = likely[noise(&seed) % (sizeof likely - 1)];
        }
        uint64_t keep = noise(&seed) % 8 ? n : noise(&seed) % n;
        struct error err = {0};
        struct pack *pack;
        if (round % 2 && keep == n) { /* half of them with a right identity, so that the damage gets further */
            json_t *root = json_loadb((char *)bad, keep, JSON_REJECT_DUPLICATES, NULL);
            if (json_is_object(root))
                write_manifest(folder, root, 1);
            else
                write_file(folder, PACK_MANIFEST, bad, keep);
            json_decref(root);
        } else {
            write_file(folder, PACK_MANIFEST, bad, keep);
        }
        if (!pack_open(&pack, folder, &err))
            n_opened++;
        else
            assert_true(*err.text && !pack);
        pack_close(&pack);
    }
    print_message("seed 31337: %d of 2000 damaged manifests still opened (changed checksums)\n", n_opened);
    assert_true(n_opened < 1000);
    write_file(folder, PACK_MANIFEST, manifest, n);
    uint8_t *head = read_file(folder, "head", &m);
    for (int round = 0; round < 1000; round++) {
        uint64_t at = noise(&seed) % (noise(&seed) % 2 ? 40 : 4096);
        uint8_t old = head[at];
        head[at] = (uint8_t)noise(&seed);
        write_file(folder, "head", head, m);
        struct pack *pack;
        struct error err = {0};
        assert_int_equal(pack_open(&pack, folder, &err) == STATUS_OK, head[at] == old);
        pack_close(&pack);
        head[at] = old;
    }
    free(head);
    free(bad);
    free(manifest);
    temporary_remove(&folder);
}

static int make_kindling(void **state)
{
    (void)state;
    kindling_pack = make_pack(kindling_dir(), PRECISION_INT4, NULL);
    return 0;
}

static int remove_kindling(void **state)
{
    (void)state;
    temporary_remove(&kindling_pack);
    return 0;
}

int main(void)
{
    log_set_level(LOG_ERROR); /* not the warnings of first use */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_exact_pack_equals_the_vendor_folder_bit_for_bit),
        cmocka_unit_test(a_quantised_pack_is_as_near_as_its_formats_promise),
        cmocka_unit_test(a_record_can_be_read_where_the_pack_says_it_lies),
        cmocka_unit_test(a_flipped_bit_is_found_and_named),
        cmocka_unit_test(no_byte_of_a_part_may_change),
        cmocka_unit_test(wrong_sizes_and_wrong_files_are_named),
        cmocka_unit_test(an_expert_in_the_place_of_another_is_found),
        cmocka_unit_test(a_wrong_manifest_is_refused_and_named),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(an_exponent_out_of_range_is_refused),
        cmocka_unit_test(random_damage_to_manifest_and_headers_never_crashes),
    };
    return cmocka_run_group_tests(tests, make_kindling, remove_kindling);
}
