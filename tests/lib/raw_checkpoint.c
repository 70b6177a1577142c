#include "tests/lib/raw_checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "common/memory.h"
#include "common/splitmix64.h"
#include "model/part_layout.h"
#include "tests/lib/golden.h"

uint64_t noise(uint64_t *seed)
{
    return splitmix64(seed);
}

void write_file(const char *folder, const char *file, const void *bytes, uint64_t n)
{
    char *path = xasprintf("%s/%s", folder, file);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    if (n)
        assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    free(path);
}

uint8_t *read_file(const char *folder, const char *file, uint64_t *n)
{
    char *path = xasprintf("%s/%s", folder, file);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (uint64_t)ftell(f);
    rewind(f);
    uint8_t *bytes = xcalloc(*n + 1, 1);
    assert_int_equal(fread(bytes, 1, *n, f), *n);
    fclose(f);
    free(path);
    return bytes;
}

char *folder_with_config_of(const char *folder)
{
    uint64_t n;
    uint8_t *config = read_file(folder, "config.json", &n);
    char *to = temporary_folder();
    write_file(to, "config.json", config, n);
    free(config);
    return to;
}

struct raw_tensor *raw_add(struct raw_checkpoint *c, const char *name, const char *dtype, int n_dims, const uint64_t *shape, uint8_t *bytes,
                           uint64_t n_bytes)
{
    c->tensors = xrealloc(c->tensors, (size_t)(c->n + 1) * sizeof *c->tensors);
    struct raw_tensor *t = &c->tensors[c->n++];
    *t = (struct raw_tensor){.n_dims = n_dims, .bytes = bytes, .n_bytes = n_bytes};
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    memcpy(t->shape, shape, (size_t)n_dims * sizeof *shape);
    return t;
}

/* Simple on purpose, and not the reader that is tested. */
static void read_shard(struct raw_checkpoint *c, const char *folder, const char *file)
{
    uint64_t n, header_bytes;
    uint8_t *bytes = read_file(folder, file, &n);
    memcpy(&header_bytes, bytes, 8);
    json_t *header = json_loadb((char *)bytes + 8, header_bytes, 0, NULL), *entry;
    const char *name;
    assert_non_null(header);
    json_object_foreach(header, name, entry)
    {
        uint64_t shape[8] = {0};
        if (!strcmp(name, "__metadata__"))
            continue;
        json_t *offsets = json_object_get(entry, "data_offsets"), *sizes = json_object_get(entry, "shape");
        uint64_t begin = (uint64_t)json_integer_value(json_array_get(offsets, 0)),
                 end = (uint64_t)json_integer_value(json_array_get(offsets, 1));
        for (size_t i = 0; i < json_array_size(sizes); i++)
            shape[i] = (uint64_t)json_integer_value(json_array_get(sizes, i));
        uint8_t *data = xcalloc(end - begin, 1);
        memcpy(data, bytes + 8 + header_bytes + begin, end - begin);
        raw_add(c, name, json_string_value(json_object_get(entry, "dtype")), (int)json_array_size(sizes), shape, data, end - begin);
    }
    json_decref(header);
    free(bytes);
}

struct raw_checkpoint raw_read(const char *folder)
{
    struct raw_checkpoint c = {0};
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));) {
        const char *dot = strrchr(entry->d_name, '.');
        if (dot && !strcmp(dot, ".safetensors"))
            read_shard(&c, folder, entry->d_name);
    }
    closedir(d);
    assert_true(c.n > 0);
    return c;
}

void raw_release(struct raw_checkpoint *c)
{
    for (int i = 0; i < c->n; i++)
        free(c->tensors[i].bytes);
    free(c->tensors);
    *c = (struct raw_checkpoint){0};
}

struct raw_tensor *raw_find(struct raw_checkpoint *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (!strcmp(c->tensors[i].name, name))
            return &c->tensors[i];
    return NULL;
}

void raw_drop(struct raw_checkpoint *c, const char *name)
{
    struct raw_tensor *t = raw_find(c, name);
    assert_non_null(t);
    free(t->bytes);
    *t = c->tensors[--c->n];
}

void raw_write(const struct raw_checkpoint *c, int begin, int end, const char *folder, const char *file)
{
    json_t *header = json_object();
    uint64_t at = 0;
    for (int i = begin; i < end; i++) {
        const struct raw_tensor *t = &c->tensors[i];
        json_t *shape = json_array();
        for (int d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", t->dtype, "shape", shape, "data_offsets", (json_int_t)at,
                                      (json_int_t)(at + t->n_bytes)));
        at += t->n_bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t header_bytes = strlen(text), n = 8 + header_bytes;
    uint8_t *bytes = xcalloc(n + at, 1);
    memcpy(bytes, &header_bytes, 8);
    memcpy(bytes + 8, text, header_bytes);
    for (int i = begin; i < end; i++) {
        if (c->tensors[i].n_bytes)
            memcpy(bytes + n, c->tensors[i].bytes, c->tensors[i].n_bytes);
        n += c->tensors[i].n_bytes;
    }
    write_file(folder, file, bytes, n);
    free(bytes);
    free(text);
    json_decref(header);
}

static void write_config(const char *folder, const struct raw_size *sizes)
{
    char path[512];
    json_t *json = json_load_file(golden_path(path, "tiny-groups", "checkpoint/config.json"), 0, NULL);
    for (; sizes->key; sizes++)
        json_object_set_new(json, sizes->key, json_integer(sizes->value));
    char *text = json_dumps(json, JSON_INDENT(1));
    write_file(folder, "config.json", text, strlen(text));
    free(text);
    json_decref(json);
}

static void add_fp8(struct raw_checkpoint *c, const char *name, const uint64_t shape[2], uint64_t *seed)
{
    uint64_t n = shape[0] * shape[1], blocks[2] = {(shape[0] + 127) / 128, (shape[1] + 127) / 128};
    uint8_t *codes = xcalloc(n, 1);
    float *scales = xcalloc(blocks[0] * blocks[1], sizeof *scales);
    char scale_name[257];
    for (uint64_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(noise(seed) % 127 | (noise(seed) & 128));
    for (uint64_t i = 0; i < blocks[0] * blocks[1]; i++)
        scales[i] = (float)(1 + noise(seed) % 1000) * 1e-5f;
    snprintf(scale_name, sizeof scale_name, "%s_scale_inv", name);
    raw_add(c, name, "F8_E4M3", 2, shape, codes, n);
    raw_add(c, scale_name, "F32", 2, blocks, (uint8_t *)scales, blocks[0] * blocks[1] * 4);
}

static void add_bf16(struct raw_checkpoint *c, const char *name, int n_dims, const uint64_t *shape, uint64_t n, uint64_t *seed)
{
    uint16_t *values = xcalloc(n, 2);
    for (uint64_t k = 0; k < n; k++) /* between 2^-9 and 1/4, both signs */
        values[k] = (uint16_t)(0x3b00 + noise(seed) % 0x380 + (noise(seed) & 0x8000));
    raw_add(c, name, "BF16", n_dims, shape, (uint8_t *)values, n * 2);
}

struct raw_checkpoint raw_synthetic(const char *folder, const struct raw_size *sizes, int is_fp8)
{
    struct raw_checkpoint c = {0};
    struct model_config config;
    struct error err = {0};
    enum part_kind kind = PART_EMBEDDING;
    int layer = 0;
    uint64_t seed = 8;
    write_config(folder, sizes);
    if (model_config_read(&config, folder, &err))
        fail_msg("%s", err.text);
    do
        for (int e = 0; e < (kind == PART_EXPERTS ? config.n_experts : 1); e++) {
            struct tensor_spec specs[PART_TENSORS_MAX];
            int n = part_tensor_specs(&config, kind, layer, e, specs);
            for (int i = 0; i < n; i++) {
                uint64_t shape[2] = {(uint64_t)specs[i].source_rows, (uint64_t)specs[i].source_cols};
                int is_vector = !shape[0], is_layers = kind == PART_DENSE || kind == PART_EXPERTS;
                if (raw_find(&c, specs[i].source)) /* kv_b_proj is listed twice */
                    continue;
                if (is_fp8 && is_layers && specs[i].class != TENSOR_FLOAT)
                    add_fp8(&c, specs[i].source, shape, &seed);
                else
                    add_bf16(&c, specs[i].source, is_vector ? 1 : 2, is_vector ? shape + 1 : shape, (is_vector ? 1 : shape[0]) * shape[1],
                             &seed);
            }
        }
    while (part_next(&config, &kind, &layer));
    return c;
}
