#include "model/checksums.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/check.h"
#include "common/json.h"
#include "common/log.h"
#include "common/memory.h"
#include "common/paths.h"
#include "model/files.h"

enum { SIDE_FILE_MAX_BYTES = 64 << 20, SIDE_FILE_VERSION = 1, PIECE_BYTES = 4 << 20 };

void checksum_text(char out[17], uint64_t checksum)
{
    snprintf(out, 17, "%016llx", (unsigned long long)checksum);
}

int checksum_parse(const char *text, uint64_t *checksum)
{
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return 0;
    *checksum = strtoull(text, NULL, 16);
    return 1;
}

void identity_text(char out[33], const void *bytes, size_t n)
{
    XXH128_hash_t hash = XXH3_128bits(bytes, n);
    checksum_text(out, hash.high64);
    checksum_text(out + 16, hash.low64);
}

/* DIR/.hearth-checksums.json, or in the state directory a name made of the folder's real path; NULL when there is no such place. */
static char *path_in_folder(const struct vendor_folder *folder)
{
    return xasprintf("%s/%s", folder->dir, CHECKSUMS_FILE);
}

static char *path_in_state(const struct vendor_folder *folder, char **dir)
{
    char *state = paths_state_dir(), *real = realpath(folder->dir, NULL), *path = NULL;
    if (state && real) {
        char id[33];
        identity_text(id, real, strlen(real));
        path = xasprintf("%s/%s.json", state, id);
    }
    free(real);
    if (dir)
        *dir = state;
    else
        free(state);
    return path;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The sizes and headers that the checksums belong to. */
static json_t *describe_files(const struct vendor_folder *folder)
{
    json_t *files = json_object();
    for (int i = 0; i < folder->n_shards; i++) {
        char header[17];
        checksum_text(header, folder->shards[i]->header_checksum);
        json_object_set_new(files, base_name(folder->shards[i]->path),
                            json_pack("{s:I,s:s}", "bytes", (json_int_t)folder->shards[i]->file_bytes, "header_xxh3_64", header));
    }
    return files;
}

static enum status take_checksums(struct vendor_folder *folder, const json_t *root, const char *path, struct error *err)
{
    int64_t version;
    enum status status = json_get_int(root, "version", 0, INT32_MAX, -1, &version, path, err);
    if (status)
        return status;
    if (version != SIDE_FILE_VERSION)
        return error_set(err, STATUS_UNSUPPORTED, "%s: version %lld, this build knows %d", path, (long long)version, SIDE_FILE_VERSION);
    json_t *files = describe_files(folder);
    int is_same = json_equal(files, json_object_get(root, "files"));
    json_decref(files);
    if (!is_same)
        return error_set(
            err, STATUS_CORRUPT,
            "%s: the files of the folder are not those that the checksums were made of; if you replaced the model on purpose, remove %s",
            folder->dir, path);
    const json_t *tensors = json_object_get(root, "tensors");
    for (int i = 0; i < folder->n_tensors; i++) {
        struct vendor_tensor *t = &folder->tensors[i];
        if (!checksum_parse(json_string_value(json_object_get(tensors, t->at->name)), &t->checksum))
            return error_set(err, STATUS_CORRUPT, "%s: no checksum of tensor %s", path, t->at->name);
        t->has_checksum = 1;
    }
    return STATUS_OK;
}

static enum status load_from(struct vendor_folder *folder, const char *path, int *found, struct error *err)
{
    json_t *root;
    struct error failure = {0};
    *found = 0;
    enum status status = json_read_file(&root, path, SIDE_FILE_MAX_BYTES, &failure);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    if (status)
        return error_set(err, status, "%s", failure.text);
    *found = 1;
    status = take_checksums(folder, root, path, err);
    json_decref(root);
    return status;
}

enum status checksums_load(struct vendor_folder *folder, int *found, struct error *err)
{
    char *path = path_in_folder(folder);
    enum status status = load_from(folder, path, found, err);
    free(path);
    if (status || *found)
        return status;
    path = path_in_state(folder, NULL);
    if (path)
        status = load_from(folder, path, found, err);
    free(path);
    return status;
}

static int by_place(const void *a, const void *b)
{
    const struct vendor_tensor *x = *(struct vendor_tensor *const *)a, *y = *(struct vendor_tensor *const *)b;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return x->at->offset < y->at->offset ? -1 : x->at->offset > y->at->offset;
}

static enum status hash_tensor(struct vendor_folder *folder, struct vendor_tensor *t, uint8_t *piece, struct error *err)
{
    XXH3_state_t *state = XXH3_createState();
    CHECK(state && XXH3_64bits_reset(state) == XXH_OK);
    enum status status = STATUS_OK;
    for (uint64_t at = 0; at < t->at->bytes && !status; at += PIECE_BYTES) {
        uint64_t n = t->at->bytes - at < PIECE_BYTES ? t->at->bytes - at : PIECE_BYTES;
        status = vendor_folder_read(folder, t, at, n, piece, err);
        if (!status)
            XXH3_64bits_update(state, piece, n);
    }
    t->checksum = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return status;
}

static void (*report)(uint64_t done_bytes, uint64_t total_bytes);

void checksums_set_report(void (*fn)(uint64_t done_bytes, uint64_t total_bytes))
{
    report = fn;
}

/* Reads all weights once, in the order of the files. */
static enum status hash_all(struct vendor_folder *folder, struct error *err)
{
    struct vendor_tensor **order = xcalloc((size_t)folder->n_tensors, sizeof *order);
    uint8_t *piece = xcalloc(PIECE_BYTES, 1);
    enum status status = STATUS_OK;
    uint64_t done = 0, total = 0;
    for (int i = 0; i < folder->n_tensors; i++) {
        order[i] = &folder->tensors[i];
        total += order[i]->at->bytes;
    }
    qsort(order, (size_t)folder->n_tensors, sizeof *order, by_place);
    for (int i = 0; i < folder->n_tensors && !status; i++) {
        status = hash_tensor(folder, order[i], piece, err);
        done += order[i]->at->bytes;
        if (report && i + 1 < folder->n_tensors && !status)
            report(done, total);
    }
    if (report)
        report(total, total);
    for (int i = 0; i < folder->n_tensors && !status; i++)
        folder->tensors[i].has_checksum = 1;
    vendor_folder_abandon(folder);
    free(piece);
    free(order);
    return status;
}

static char *side_file_text(const struct vendor_folder *folder)
{
    json_t *tensors = json_object();
    for (int i = 0; i < folder->n_tensors; i++) {
        char text[17];
        checksum_text(text, folder->tensors[i].checksum);
        json_object_set_new(tensors, folder->tensors[i].at->name, json_string(text));
    }
    json_t *root = json_pack("{s:s,s:i,s:o,s:o}", "format", "hearth-checksums", "version", SIDE_FILE_VERSION, "files",
                             describe_files(folder), "tensors", tensors);
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_SORT_KEYS);
    CHECK(text);
    json_decref(root);
    return text;
}

static int may_write(const char *dir)
{
    struct stat st;
    return !stat(dir, &st) && (st.st_mode & 0222) && !access(dir, W_OK);
}

/* In the folder, else in the state directory. */
static enum status store(const struct vendor_folder *folder, struct error *err)
{
    char *text = side_file_text(folder), *path = path_in_folder(folder), *state = NULL;
    struct error refused = {0};
    enum status status = STATUS_IO;
    if (may_write(folder->dir))
        status = file_write_atomic(folder->dir, CHECKSUMS_FILE, text, strlen(text), &refused);
    if (status) {
        free(path);
        path = path_in_state(folder, &state);
        if (!path)
            status = error_set(err, STATUS_IO,
                               "%s: no place for its checksums: the folder is read-only and neither XDG_STATE_HOME nor HOME is set",
                               folder->dir);
        else if (!(status = paths_make_dirs(state, err)))
            status = file_write_atomic(state, base_name(path), text, strlen(text), err);
    }
    if (!status)
        log_line(LOG_WARNING, "%s: trusting these weights on first use; checksums of %d tensors are in %s", folder->dir, folder->n_tensors,
                 path);
    free(state);
    free(path);
    free(text);
    return status;
}

enum status checksums_establish(struct vendor_folder *folder, struct error *err)
{
    int found;
    enum status status = checksums_load(folder, &found, err);
    if (status || found)
        return status;
    status = hash_all(folder, err);
    return status ? status : store(folder, err);
}

enum status checksums_identity(const struct vendor_folder *folder, char identity[33], struct error *err)
{
    char *path = xasprintf("%s/config.json", folder->dir), *bytes;
    size_t length;
    enum status status = file_read_all(&bytes, &length, path, 16 << 20, err);
    free(path);
    if (status)
        return status;
    struct text all = {0};
    char line[SAFETENSORS_NAME_MAX_BYTES + 256], shape[160], hex[33];
    identity_text(hex, bytes, length);
    free(bytes);
    text_append_string(&all, hex);
    text_append_string(&all, "\n");
    for (int i = 0; i < folder->n_tensors; i++) {
        const struct vendor_tensor *t = &folder->tensors[i];
        shape_text(shape, sizeof shape, t->at->shape, t->at->n_dims);
        checksum_text(hex, t->checksum);
        snprintf(line, sizeof line, "%s %s %s %s\n", t->at->name, dtype_name(t->at->dtype), shape, hex);
        text_append_string(&all, line);
    }
    identity_text(identity, all.bytes, all.length);
    text_free(&all);
    return STATUS_OK;
}
