#include "model/vendor_folder.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/check.h"
#include "common/json.h"
#include "common/memory.h"
#include "model/files.h"
#include "model/fp8.h"

enum { INDEX_MAX_BYTES = 64 << 20, SHARDS_MAX = 10000 };

static const char INDEX_NAME[] = "model.safetensors.index.json", SINGLE_NAME[] = "model.safetensors";

/* A list of file names, ascending and without repetition once sorted. */
struct names {
    char **list;
    int n;
};

static void names_add(struct names *names, const char *name)
{
    names->list = xrealloc(names->list, (size_t)(names->n + 1) * sizeof *names->list);
    names->list[names->n++] = xstrdup(name);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_free(struct names *names)
{
    for (int i = 0; i < names->n; i++)
        free(names->list[i]);
    free(names->list);
}

static int names_find(const struct names *names, const char *name)
{
    char **at = bsearch(&name, names->list, (size_t)names->n, sizeof *names->list, by_text);
    return at ? (int)(at - names->list) : -1;
}

/* Shards of an index: every distinct value of weight_map. */
static enum status names_from_index(struct names *names, const json_t *index, const char *path, struct error *err)
{
    const json_t *map = json_object_get(index, "weight_map");
    const char *tensor;
    json_t *shard;
    if (!json_is_object(map) || !json_object_size(map))
        return error_set(err, STATUS_CORRUPT, "%s: weight_map is missing or empty", path);
    json_t *seen = json_object();
    enum status status = STATUS_OK;
    json_object_foreach((json_t *)map, tensor, shard)
    {
        const char *name = json_string_value(shard);
        if (!file_name_is_plain(name))
            status = error_set(err, STATUS_CORRUPT, "%s: tensor %.256s: '%.80s' is not a file name inside the folder", path, tensor,
                               name ? name : "(no text)");
        else if (!json_object_get(seen, name) && json_object_size(seen) >= SHARDS_MAX)
            status = error_set(err, STATUS_CORRUPT, "%s: names more than %d files", path, SHARDS_MAX);
        if (status)
            break;
        json_object_set_new(seen, name, json_true());
    }
    json_object_foreach(seen, tensor, shard)
    {
        names_add(names, tensor);
    }
    json_decref(seen);
    return status;
}

/* Without an index: model.safetensors alone, or every *.safetensors. */
static enum status names_from_directory(struct names *names, const char *dir, struct error *err)
{
    DIR *d = opendir(dir);
    if (!d)
        return error_errno(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%s: cannot open the folder", dir);
    int has_single = 0;
    for (struct dirent *entry; (entry = readdir(d)) && names->n <= SHARDS_MAX;) {
        const char *suffix = strrchr(entry->d_name, '.');
        if (!suffix || strcmp(suffix, ".safetensors") || !file_name_is_plain(entry->d_name))
            continue;
        has_single |= !strcmp(entry->d_name, SINGLE_NAME);
        names_add(names, entry->d_name);
    }
    closedir(d);
    if (has_single) {
        names_free(names);
        *names = (struct names){0};
        names_add(names, SINGLE_NAME);
    }
    if (!names->n)
        return error_set(err, STATUS_NOT_FOUND, "%s: no *.safetensors in the folder", dir);
    if (names->n > SHARDS_MAX)
        return error_set(err, STATUS_INVALID, "%s: more than %d *.safetensors in the folder", dir, SHARDS_MAX);
    return STATUS_OK;
}

static void add_tensor(struct vendor_folder *folder, const struct safetensors_tensor *at, int shard)
{
    folder->tensors[folder->n_tensors++] = (struct vendor_tensor){.at = at, .shard = shard};
}

static enum status add_indexed(struct vendor_folder *folder, const json_t *map, const struct names *names, struct error *err)
{
    const char *tensor;
    json_t *shard;
    folder->tensors = xcalloc(json_object_size(map), sizeof *folder->tensors);
    json_object_foreach((json_t *)map, tensor, shard)
    {
        int i = names_find(names, json_string_value(shard));
        const struct safetensors_tensor *at = safetensors_find(folder->shards[i], tensor);
        if (!at)
            return error_set(err, STATUS_CORRUPT, "%s: tensor %.256s is not in it, though %s says so", folder->shards[i]->path, tensor,
                             INDEX_NAME);
        add_tensor(folder, at, i);
    }
    return STATUS_OK;
}

static void add_all(struct vendor_folder *folder)
{
    size_t n = 0;
    for (int i = 0; i < folder->n_shards; i++)
        n += (size_t)folder->shards[i]->n_tensors;
    folder->tensors = xcalloc(n, sizeof *folder->tensors);
    for (int i = 0; i < folder->n_shards; i++)
        for (int j = 0; j < folder->shards[i]->n_tensors; j++)
            add_tensor(folder, &folder->shards[i]->tensors[j], i);
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const struct vendor_tensor *)a)->at->name, ((const struct vendor_tensor *)b)->at->name);
}

static enum status open_shards(struct vendor_folder *folder, const struct names *names, struct error *err)
{
    folder->shards = xcalloc((size_t)names->n, sizeof *folder->shards);
    folder->fds = xcalloc((size_t)names->n, sizeof *folder->fds);
    for (; folder->n_shards < names->n; folder->n_shards++) {
        char *path = xasprintf("%s/%s", folder->dir, names->list[folder->n_shards]);
        enum status status = safetensors_open(&folder->shards[folder->n_shards], path, err);
        free(path);
        if (status)
            return status;
        folder->fds[folder->n_shards] = -1;
    }
    return STATUS_OK;
}

static enum status fill(struct vendor_folder *folder, const json_t *index, const char *index_path, struct names *names, struct error *err)
{
    enum status status = index ? names_from_index(names, index, index_path, err) : names_from_directory(names, folder->dir, err);
    if (status)
        return status;
    qsort(names->list, (size_t)names->n, sizeof *names->list, by_text);
    if ((status = open_shards(folder, names, err)))
        return status;
    if (!index)
        add_all(folder);
    else if ((status = add_indexed(folder, json_object_get(index, "weight_map"), names, err)))
        return status;
    qsort(folder->tensors, (size_t)folder->n_tensors, sizeof *folder->tensors, by_tensor_name);
    for (int i = 1; i < folder->n_tensors; i++)
        if (!by_tensor_name(&folder->tensors[i - 1], &folder->tensors[i]))
            return error_set(err, STATUS_CORRUPT, "%s: tensor %s is also in %s", folder->shards[folder->tensors[i].shard]->path,
                             folder->tensors[i].at->name, folder->shards[folder->tensors[i - 1].shard]->path);
    folder->touched = xcalloc((size_t)folder->n_tensors, sizeof *folder->touched);
    return STATUS_OK;
}

enum status vendor_folder_open(struct vendor_folder **out, const char *dir, struct error *err)
{
    struct vendor_folder *folder = xcalloc(1, sizeof *folder);
    folder->dir = xstrdup(dir);
    char *index_path = xasprintf("%s/%s", dir, INDEX_NAME);
    json_t *index = NULL;
    struct names names = {0};
    struct error ignored = {0};
    enum status status = json_read_file(&index, index_path, INDEX_MAX_BYTES, &ignored);
    if (status == STATUS_NOT_FOUND)
        status = STATUS_OK;
    else if (status)
        status = error_set(err, status, "%s", ignored.text);
    if (!status)
        status = fill(folder, index, index_path, &names, err);
    names_free(&names);
    json_decref(index);
    free(index_path);
    if (status)
        vendor_folder_close(&folder);
    *out = folder;
    return status;
}

void vendor_folder_close(struct vendor_folder **folder)
{
    struct vendor_folder *f = *folder;
    if (!f)
        return;
    vendor_folder_abandon(f);
    for (int i = 0; i < f->n_shards; i++)
        safetensors_close(&f->shards[i]);
    free(f->shards);
    free(f->fds);
    free(f->tensors);
    free(f->touched);
    free(f->dir);
    free(f);
    *folder = NULL;
}

struct vendor_tensor *vendor_folder_find(struct vendor_folder *folder, const char *name)
{
    struct safetensors_tensor named = {.name = (char *)name};
    struct vendor_tensor key = {.at = &named};
    return bsearch(&key, folder->tensors, (size_t)folder->n_tensors, sizeof key, by_tensor_name);
}

/* Hashes bytes that continue what was hashed of this tensor; any other read is not counted. */
static void hash_along(struct vendor_folder *folder, struct vendor_tensor *t, uint64_t begin, uint64_t n, const void *bytes)
{
    if (!t->has_checksum || begin != t->hash_bytes)
        return;
    if (!t->hash) {
        t->hash = XXH3_createState();
        CHECK(t->hash && XXH3_64bits_reset(t->hash) == XXH_OK);
        folder->touched[folder->n_touched++] = (int)(t - folder->tensors);
    }
    XXH3_64bits_update(t->hash, bytes, n);
    t->hash_bytes += n;
}

enum status vendor_folder_read(struct vendor_folder *folder, struct vendor_tensor *t, uint64_t begin, uint64_t n, void *out,
                               struct error *err)
{
    CHECK(begin <= t->at->bytes && n <= t->at->bytes - begin);
    const struct safetensors *shard = folder->shards[t->shard];
    int *fd = &folder->fds[t->shard];
    enum status status = *fd < 0 ? safetensors_open_data(shard, fd, err) : STATUS_OK;
    if (!status)
        status = file_read_at(*fd, out, n, t->at->offset + begin, shard->path, err);
    if (!status)
        hash_along(folder, t, begin, n, out);
    return status;
}

static enum status finish_tensor(struct vendor_folder *folder, struct vendor_tensor *t, void *piece, uint64_t piece_bytes,
                                 struct error *err)
{
    while (t->hash_bytes < t->at->bytes) {
        uint64_t left = t->at->bytes - t->hash_bytes;
        enum status status = vendor_folder_read(folder, t, t->hash_bytes, left < piece_bytes ? left : piece_bytes, piece, err);
        if (status)
            return status;
    }
    if (XXH3_64bits_digest(t->hash) == t->checksum)
        return STATUS_OK;
    return error_set(err, STATUS_CORRUPT, "%s: tensor %s does not match its recorded checksum: the file is damaged or was replaced",
                     folder->shards[t->shard]->path, t->at->name);
}

enum status vendor_folder_finish(struct vendor_folder *folder, struct error *err)
{
    enum { PIECE = 1 << 20 };
    enum status status = STATUS_OK;
    void *piece = folder->n_touched ? xcalloc(1, PIECE) : NULL;
    for (int i = 0; i < folder->n_touched && !status; i++)
        status = finish_tensor(folder, &folder->tensors[folder->touched[i]], piece, PIECE, err);
    free(piece);
    vendor_folder_abandon(folder);
    return status;
}

void vendor_folder_abandon(struct vendor_folder *folder)
{
    for (int i = 0; i < folder->n_touched; i++) {
        struct vendor_tensor *t = &folder->tensors[folder->touched[i]];
        XXH3_freeState(t->hash);
        t->hash = NULL;
        t->hash_bytes = 0;
    }
    folder->n_touched = 0;
    for (int i = 0; i < folder->n_shards; i++)
        if (folder->fds[i] >= 0) {
            close(folder->fds[i]);
            folder->fds[i] = -1;
        }
}

static enum status check_shape(const struct vendor_folder *folder, const struct vendor_tensor *t, const uint64_t *shape, int n_dims,
                               struct error *err)
{
    if (t->at->n_dims == n_dims && !memcmp(t->at->shape, shape, (size_t)n_dims * sizeof *shape))
        return STATUS_OK;
    char expected[160], found[160];
    shape_text(expected, sizeof expected, shape, n_dims);
    shape_text(found, sizeof found, t->at->shape, t->at->n_dims);
    return error_set(err, STATUS_INVALID, "%s: tensor %s: expected shape %s by config.json, the file has %s",
                     folder->shards[t->shard]->path, t->at->name, expected, found);
}

/* The scale that belongs to an FP8 tensor: its name and "_scale_inv", one value per block, for every matrix of a fused tensor. */
static enum status find_scale(struct vendor_matrix *m, struct vendor_folder *folder, struct error *err)
{
    const struct safetensors_tensor *t = m->tensor->at;
    const char *path = folder->shards[m->tensor->shard]->path;
    char name[SAFETENSORS_NAME_MAX_BYTES + 16];
    snprintf(name, sizeof name, "%s_scale_inv", t->name);
    m->scale = vendor_folder_find(folder, name);
    if (!m->scale)
        return error_set(err, STATUS_NOT_FOUND, "%s: tensor %s is F8_E4M3, but its scale %s is in no file", path, t->name, name);
    if (m->scale->at->dtype != DTYPE_F32)
        return error_set(err, STATUS_INVALID, "%s: tensor %s: expected dtype F32, found %s", folder->shards[m->scale->shard]->path, name,
                         dtype_name(m->scale->at->dtype));
    if (t->n_dims < 2)
        return error_set(err, STATUS_UNSUPPORTED, "%s: tensor %s is a vector in F8_E4M3", path, t->name);
    uint64_t shape[3];
    memcpy(shape, t->shape, (size_t)t->n_dims * sizeof *shape);
    for (int i = t->n_dims - 2; i < t->n_dims; i++)
        shape[i] = (shape[i] + FP8_BLOCK - 1) / FP8_BLOCK;
    return check_shape(folder, m->scale, shape, t->n_dims, err);
}

static enum status check_dtype(struct vendor_matrix *m, struct vendor_folder *folder, struct error *err)
{
    if (m->tensor->at->dtype == DTYPE_OTHER)
        return error_set(err, STATUS_UNSUPPORTED, "%s: tensor %s: dtype must be F32, BF16, F16 or F8_E4M3",
                         folder->shards[m->tensor->shard]->path, m->tensor->at->name);
    return m->tensor->at->dtype == DTYPE_F8_E4M3 ? find_scale(m, folder, err) : STATUS_OK;
}

/* An expert's matrix inside the fused tensors: gate rows, then up rows in the one, down in the other. */
static enum status find_fused(struct vendor_matrix *m, struct vendor_folder *folder, const struct model_config *c,
                              const struct tensor_spec *spec, int layer, int expert, struct error *err)
{
    char gate_up[112], down[112];
    fused_expert_names(layer, gate_up, down);
    int is_down = !strcmp(spec->name, "down_proj"), is_up = !strcmp(spec->name, "up_proj");
    const char *name = is_down ? down : gate_up;
    m->tensor = vendor_folder_find(folder, name);
    if (!m->tensor)
        return error_set(err, STATUS_NOT_FOUND, "%s: tensor %s (or the fused %s) is in no file", folder->dir, spec->source, name);
    uint64_t rows = (uint64_t)spec->source_rows * (is_down ? 1 : 2);
    uint64_t shape[3] = {(uint64_t)c->n_experts, rows, (uint64_t)spec->source_cols};
    enum status status = check_shape(folder, m->tensor, shape, 3, err);
    if (status)
        return status;
    m->block_row = is_up ? spec->source_rows : 0;
    m->first_row = (uint64_t)expert * rows + (uint64_t)m->block_row;
    m->first_scale_row = (uint64_t)expert * ((rows + FP8_BLOCK - 1) / FP8_BLOCK);
    return check_dtype(m, folder, err);
}

enum status vendor_matrix_find(struct vendor_matrix *m, struct vendor_folder *folder, const struct model_config *config,
                               const struct tensor_spec *spec, enum part_kind part, int layer, int expert, struct error *err)
{
    int is_vector = spec->source_rows == 0;
    *m = (struct vendor_matrix){.rows = is_vector ? 1 : spec->source_rows, .cols = spec->source_cols};
    m->tensor = vendor_folder_find(folder, spec->source);
    if (!m->tensor && part == PART_EXPERTS)
        return find_fused(m, folder, config, spec, layer, expert, err);
    if (!m->tensor)
        return error_set(err, STATUS_NOT_FOUND, "%s: tensor %s is in no file", folder->dir, spec->source);
    uint64_t shape[2] = {(uint64_t)spec->source_rows, (uint64_t)spec->source_cols};
    enum status status = check_shape(folder, m->tensor, is_vector ? shape + 1 : shape, is_vector ? 1 : 2, err);
    return status ? status : check_dtype(m, folder, err);
}

enum status vendor_matrix_read(struct vendor_folder *folder, const struct vendor_matrix *m, int begin, int n, void *out, struct error *err)
{
    CHECK(begin >= 0 && n >= 0 && n <= m->rows - begin);
    uint64_t row_bytes = (uint64_t)m->cols * (uint64_t)dtype_bytes(m->tensor->at->dtype);
    return vendor_folder_read(folder, m->tensor, (m->first_row + (uint64_t)begin) * row_bytes, (uint64_t)n * row_bytes, out, err);
}

int vendor_matrix_scale_rows(const struct vendor_matrix *m)
{
    return (m->block_row + m->rows - 1) / FP8_BLOCK - m->block_row / FP8_BLOCK + 1;
}

enum status vendor_matrix_read_scales(struct vendor_folder *folder, const struct vendor_matrix *m, float *out, struct error *err)
{
    CHECK(m->scale);
    uint64_t cols = ((uint64_t)m->cols + FP8_BLOCK - 1) / FP8_BLOCK, first = m->first_scale_row + (uint64_t)(m->block_row / FP8_BLOCK);
    uint64_t n = (uint64_t)vendor_matrix_scale_rows(m) * cols;
    enum status status = vendor_folder_read(folder, m->scale, first * cols * 4, n * 4, out, err);
    if (!status && !f32_all_finite(out, (int64_t)n))
        status = error_set(err, STATUS_CORRUPT, "%s: tensor %s has a value that is not finite", folder->shards[m->scale->shard]->path,
                           m->scale->at->name);
    return status;
}
