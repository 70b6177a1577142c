#include "model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/memory.h"
#include "model/files.h"

static const struct {
    const char *name;
    int bytes;
    enum tensor_dtype dtype;
} dtypes[] = {
    {"F32", 4, DTYPE_F32},       {"BF16", 2, DTYPE_BF16}, {"F16", 2, DTYPE_F16},    {"F8_E4M3", 1, DTYPE_F8_E4M3},
    {"F8_E5M2", 1, DTYPE_OTHER}, {"F64", 8, DTYPE_OTHER}, {"I64", 8, DTYPE_OTHER},  {"I32", 4, DTYPE_OTHER},
    {"I16", 2, DTYPE_OTHER},     {"I8", 1, DTYPE_OTHER},  {"U64", 8, DTYPE_OTHER},  {"U32", 4, DTYPE_OTHER},
    {"U16", 2, DTYPE_OTHER},     {"U8", 1, DTYPE_OTHER},  {"BOOL", 1, DTYPE_OTHER}, {"F8_E8M0", 1, DTYPE_OTHER},
};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

const char *dtype_name(enum tensor_dtype dtype)
{
    return dtype < DTYPE_OTHER ? dtypes[dtype].name : "another dtype";
}

int dtype_bytes(enum tensor_dtype dtype)
{
    return dtype < DTYPE_OTHER ? dtypes[dtype].bytes : 0;
}

void shape_text(char *out, int out_bytes, const uint64_t *shape, int n_dims)
{
    int used = snprintf(out, (size_t)out_bytes, "[");
    for (int i = 0; i < n_dims && used < out_bytes; i++)
        used += snprintf(out + used, (size_t)(out_bytes - used), "%s%llu", i ? ", " : "", (unsigned long long)shape[i]);
    if (used < out_bytes)
        snprintf(out + used, (size_t)(out_bytes - used), "]");
}

/* bytes = product of the shape times the element size, in checked arithmetic. */
static enum status parse_shape(struct safetensors_tensor *t, const json_t *shape, int element_bytes, uint64_t *bytes, const char *path,
                               struct error *err)
{
    if (!json_is_array(shape) || json_array_size(shape) > SAFETENSORS_DIMS_MAX)
        return error_set(err, STATUS_CORRUPT, "%s: tensor %s: shape must be a list of at most %d sizes", path, t->name,
                         SAFETENSORS_DIMS_MAX);
    t->n_dims = (int)json_array_size(shape);
    *bytes = (uint64_t)element_bytes;
    for (int i = 0; i < t->n_dims; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return error_set(err, STATUS_CORRUPT, "%s: tensor %s: shape must be whole numbers, none negative", path, t->name);
        t->shape[i] = (uint64_t)json_integer_value(size);
        if (__builtin_mul_overflow(*bytes, t->shape[i], bytes))
            return error_set(err, STATUS_CORRUPT, "%s: tensor %s: the size of its shape overflows", path, t->name);
    }
    return STATUS_OK;
}

static enum status parse_range(struct safetensors_tensor *t, const json_t *range, uint64_t bytes, uint64_t data_begin, uint64_t data_bytes,
                               const char *path, struct error *err)
{
    const json_t *first = json_array_get(range, 0), *last = json_array_get(range, 1);
    if (json_array_size(range) != 2 || !json_is_integer(first) || !json_is_integer(last) || json_integer_value(first) < 0)
        return error_set(err, STATUS_CORRUPT, "%s: tensor %s: data_offsets must be two whole numbers", path, t->name);
    long long begin = json_integer_value(first), end = json_integer_value(last);
    if (end < begin || (uint64_t)end > data_bytes)
        return error_set(err, STATUS_CORRUPT, "%s: tensor %s: range %lld to %lld is outside the %llu data bytes of the file", path, t->name,
                         begin, end, (unsigned long long)data_bytes);
    if ((uint64_t)(end - begin) != bytes) {
        char shape[160];
        shape_text(shape, sizeof shape, t->shape, t->n_dims);
        return error_set(err, STATUS_CORRUPT, "%s: tensor %s: shape %s takes %llu bytes, its range has %lld", path, t->name, shape,
                         (unsigned long long)bytes, end - begin);
    }
    t->offset = data_begin + (uint64_t)begin;
    t->bytes = bytes;
    return STATUS_OK;
}

static enum status parse_tensor(struct safetensors_tensor *t, const char *name, const json_t *entry, uint64_t data_begin,
                                uint64_t data_bytes, const char *path, struct error *err)
{
    if (!*name || strlen(name) > SAFETENSORS_NAME_MAX_BYTES)
        return error_set(err, STATUS_CORRUPT, "%s: tensor name '%.40s...' has %zu bytes, allowed are 1 to %d", path, name, strlen(name),
                         SAFETENSORS_NAME_MAX_BYTES);
    t->name = xstrdup(name);
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype || json_object_size(entry) != 3)
        return error_set(err, STATUS_CORRUPT, "%s: tensor %s: expected exactly dtype, shape and data_offsets", path, name);
    int row = 0;
    while (row < N_DTYPES && strcmp(dtype, dtypes[row].name))
        row++;
    if (row == N_DTYPES)
        return error_set(err, STATUS_UNSUPPORTED, "%s: tensor %s: unknown dtype '%.32s'", path, name, dtype);
    t->dtype = dtypes[row].dtype;
    uint64_t bytes = 0;
    enum status status = parse_shape(t, json_object_get(entry, "shape"), dtypes[row].bytes, &bytes, path, err);
    if (status)
        return status;
    return parse_range(t, json_object_get(entry, "data_offsets"), bytes, data_begin, data_bytes, path, err);
}

static int by_place(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct safetensors_tensor *)a)->name, ((const struct safetensors_tensor *)b)->name);
}

/* The tensors tile the data: each begins where the one before ends, the last ends with the file. */
static enum status check_coverage(struct safetensors *file, uint64_t data_begin, struct error *err)
{
    qsort(file->tensors, (size_t)file->n_tensors, sizeof *file->tensors, by_place);
    uint64_t at = data_begin;
    for (int i = 0; i < file->n_tensors; i++) {
        const struct safetensors_tensor *t = &file->tensors[i];
        if (t->offset != at)
            return error_set(err, STATUS_CORRUPT, "%s: tensor %s begins at data byte %llu, %s %llu", file->path, t->name,
                             (unsigned long long)(t->offset - data_begin),
                             t->offset < at ? "overlapping what ends at" : "leaving a hole from", (unsigned long long)(at - data_begin));
        at += t->bytes;
    }
    if (at != file->file_bytes)
        return error_set(err, STATUS_CORRUPT, "%s: the last tensor ends at byte %llu, the file has %llu", file->path,
                         (unsigned long long)at, (unsigned long long)file->file_bytes);
    qsort(file->tensors, (size_t)file->n_tensors, sizeof *file->tensors, by_name);
    return STATUS_OK;
}

static enum status check_metadata(const json_t *metadata, const char *path, struct error *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return error_set(err, STATUS_CORRUPT, "%s: __metadata__ must be an object", path);
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (!json_is_string(value))
            return error_set(err, STATUS_CORRUPT, "%s: __metadata__: every value must be a string", path);
    }
    return STATUS_OK;
}

static enum status parse_header(struct safetensors *file, const char *header, uint64_t header_bytes, struct error *err)
{
    json_error_t where;
    json_t *root = *header == '{' ? json_loadb(header, header_bytes, JSON_REJECT_DUPLICATES, &where) : NULL;
    if (!root)
        return error_set(err, STATUS_CORRUPT, "%s: header is not a JSON object%s%s", file->path, *header == '{' ? ": " : "",
                         *header == '{' ? where.text : "");
    enum status status = STATUS_OK;
    uint64_t data_begin = 8 + header_bytes;
    file->tensors = xcalloc(json_object_size(root), sizeof *file->tensors);
    const char *name;
    json_t *entry;
    json_object_foreach(root, name, entry)
    {
        if (!strcmp(name, "__metadata__"))
            status = check_metadata(entry, file->path, err);
        else
            status =
                parse_tensor(&file->tensors[file->n_tensors++], name, entry, data_begin, file->file_bytes - data_begin, file->path, err);
        if (status)
            break;
    }
    json_decref(root);
    return status ? status : check_coverage(file, data_begin, err);
}

static enum status read_header(struct safetensors *file, int fd, struct error *err)
{
    unsigned char length[8];
    if (file->file_bytes < 8)
        return error_set(err, STATUS_CORRUPT, "%s: %llu bytes are too few for a safetensors file", file->path,
                         (unsigned long long)file->file_bytes);
    enum status status = file_read_at(fd, length, 8, 0, file->path, err);
    if (status)
        return status;
    uint64_t header_bytes = 0;
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | length[i];
    if (!header_bytes || header_bytes > SAFETENSORS_HEADER_MAX_BYTES)
        return error_set(err, STATUS_CORRUPT, "%s: header of %llu bytes, allowed are 1 to %d", file->path, (unsigned long long)header_bytes,
                         SAFETENSORS_HEADER_MAX_BYTES);
    if (header_bytes > file->file_bytes - 8)
        return error_set(err, STATUS_CORRUPT, "%s: header of %llu bytes in a file of %llu: the file is cut short", file->path,
                         (unsigned long long)header_bytes, (unsigned long long)file->file_bytes);
    char *header = xcalloc(header_bytes + 8, 1);
    memcpy(header, length, 8);
    status = file_read_at(fd, header + 8, header_bytes, 8, file->path, err);
    if (!status) {
        file->header_checksum = XXH3_64bits(header, header_bytes + 8);
        status = parse_header(file, header + 8, header_bytes, err);
    }
    free(header);
    return status;
}

enum status safetensors_open(struct safetensors **out, const char *path, struct error *err)
{
    struct stat st;
    int fd;
    *out = NULL;
    enum status status = file_open_regular(&fd, path, 1, &st, err);
    if (status)
        return status;
    struct safetensors *file = xcalloc(1, sizeof *file);
    file->path = xstrdup(path);
    file->file_bytes = (uint64_t)st.st_size;
    file->device = st.st_dev;
    file->inode = st.st_ino;
    file->modified = st.st_mtim;
    status = read_header(file, fd, err);
    close(fd);
    if (status)
        safetensors_close(&file);
    *out = file;
    return status;
}

void safetensors_close(struct safetensors **file)
{
    if (!*file)
        return;
    for (int i = 0; i < (*file)->n_tensors; i++)
        free((*file)->tensors[i].name);
    free((*file)->tensors);
    free((*file)->path);
    free(*file);
    *file = NULL;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name)
{
    struct safetensors_tensor key = {.name = (char *)name};
    return bsearch(&key, file->tensors, (size_t)file->n_tensors, sizeof key, by_name);
}

enum status safetensors_open_data(const struct safetensors *file, int *fd, struct error *err)
{
    struct stat st;
    enum status status = file_open_regular(fd, file->path, 1, &st, err);
    if (status)
        return status;
    if (st.st_dev == file->device && st.st_ino == file->inode && (uint64_t)st.st_size == file->file_bytes &&
        st.st_mtim.tv_sec == file->modified.tv_sec && st.st_mtim.tv_nsec == file->modified.tv_nsec)
        return STATUS_OK;
    close(*fd);
    *fd = -1;
    return error_set(err, STATUS_CORRUPT, "%s: the file changed while it was in use", file->path);
}
