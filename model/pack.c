#include "model/pack.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/check.h"
#include "common/json.h"
#include "common/memory.h"
#include "model/checksums.h"
#include "model/files.h"

enum { MANIFEST_MAX_BYTES = 64 << 20, PIECE_BYTES = 4 << 20 };

static const char MAGIC[8] = "HEARTHPK", FORMAT[] = "hearth-pack";

const char *const pack_copy_names[PACK_COPIES_MAX] = {"config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja",
                                                      "tokenizer_config.json"};

static const char *const kind_names[N_PART_KINDS] = {"embedding", "dense", "experts", "head"};

static int has_layer(enum part_kind kind)
{
    return kind == PART_DENSE || kind == PART_EXPERTS;
}

struct pack *pack_new(const char *dir, const struct model_config *config, enum precision precision)
{
    struct pack *pack = xcalloc(1, sizeof *pack);
    pack->dir = xstrdup(dir);
    pack->config = *config;
    pack->precision = precision;
    pack->parts = xcalloc((size_t)(2 + 2 * config_layers_with_mtp(config)), sizeof *pack->parts);
    enum part_kind kind = PART_EMBEDDING;
    int layer = 0;
    do {
        struct pack_part *part = &pack->parts[pack->n_parts++];
        part->layout.kind = kind;
        part->layout.layer = layer;
        part_file_name(part->file, kind, layer);
    } while (part_next(config, &kind, &layer));
    return pack;
}

void pack_close(struct pack **pack)
{
    if (!*pack)
        return;
    for (int i = 0; i < (*pack)->n_parts; i++)
        free((*pack)->parts[i].checksums);
    free((*pack)->parts);
    free((*pack)->dir);
    free(*pack);
    *pack = NULL;
}

int pack_part_n_checksums(const struct pack_part *part)
{
    return part->layout.kind == PART_EXPERTS ? part->layout.n_records : part->layout.n_tensors;
}

void pack_set_layout(struct pack_part *part, const struct part_layout *layout)
{
    part->layout = *layout;
    part->file_bytes = PACK_HEADER_BYTES + layout->bytes;
    part->checksums = xcalloc((size_t)pack_part_n_checksums(part), sizeof *part->checksums);
}

const struct pack_part *pack_find(const struct pack *pack, enum part_kind kind, int layer)
{
    for (int i = 0; i < pack->n_parts; i++)
        if (pack->parts[i].layout.kind == kind && (!has_layer(kind) || pack->parts[i].layout.layer == layer))
            return &pack->parts[i];
    return NULL;
}

/* --- headers --- */

static void put_le(uint8_t *at, uint64_t value, int n)
{
    for (int i = 0; i < n; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get_le(const uint8_t *at, int n)
{
    uint64_t value = 0;
    for (int i = n - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

enum { AT_VERSION = 8, AT_KIND = 12, AT_LAYER = 16, AT_HEADER_BYTES = 20, AT_FILE_BYTES = 24 };

void pack_header_fill(uint8_t header[PACK_HEADER_BYTES], const struct pack_part *part)
{
    memset(header, 0, PACK_HEADER_BYTES);
    memcpy(header, MAGIC, sizeof MAGIC);
    put_le(header + AT_VERSION, PACK_VERSION, 4);
    put_le(header + AT_KIND, part->layout.kind, 4);
    put_le(header + AT_LAYER, has_layer(part->layout.kind) ? (uint64_t)part->layout.layer : UINT32_MAX, 4);
    put_le(header + AT_HEADER_BYTES, PACK_HEADER_BYTES, 4);
    put_le(header + AT_FILE_BYTES, part->file_bytes, 8);
}

static enum status check_header(const struct pack_part *part, const uint8_t *header, const char *path, struct error *err)
{
    uint8_t expected[PACK_HEADER_BYTES];
    pack_header_fill(expected, part);
    if (memcmp(header, MAGIC, sizeof MAGIC))
        return error_set(err, STATUS_CORRUPT, "%s: header: magic is not HEARTHPK", path);
    if (get_le(header + AT_VERSION, 4) != PACK_VERSION)
        return error_set(err, STATUS_UNSUPPORTED, "%s: header: format version %llu, this build knows %d", path,
                         (unsigned long long)get_le(header + AT_VERSION, 4), PACK_VERSION);
    if (memcmp(header + AT_KIND, expected + AT_KIND, AT_HEADER_BYTES - AT_KIND))
        return error_set(err, STATUS_CORRUPT, "%s: header: is part %llu of layer %lld, expected %d of %d", path,
                         (unsigned long long)get_le(header + AT_KIND, 4), (long long)(int32_t)get_le(header + AT_LAYER, 4),
                         part->layout.kind, has_layer(part->layout.kind) ? part->layout.layer : -1);
    if (get_le(header + AT_FILE_BYTES, 8) != part->file_bytes)
        return error_set(err, STATUS_CORRUPT, "%s: header: says %llu bytes, expected %llu", path,
                         (unsigned long long)get_le(header + AT_FILE_BYTES, 8), (unsigned long long)part->file_bytes);
    if (memcmp(header, expected, PACK_HEADER_BYTES))
        return error_set(err, STATUS_CORRUPT, "%s: header: damaged after its fields", path);
    return STATUS_OK;
}

enum status pack_part_open(const struct pack_part *part, const char *path, int *fd, struct error *err)
{
    struct stat st;
    uint8_t header[PACK_HEADER_BYTES];
    enum status status = file_open_regular(fd, path, 0, &st, err);
    if (!status && (uint64_t)st.st_size != part->file_bytes)
        status = error_set(err, STATUS_CORRUPT, "%s: %llu bytes, expected %llu", path, (unsigned long long)st.st_size,
                           (unsigned long long)part->file_bytes);
    if (!status)
        status = file_read_at(*fd, header, sizeof header, 0, path, err);
    if (!status)
        status = check_header(part, header, path, err);
    if (status && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

static enum status open_part(const struct pack *pack, const struct pack_part *part, char **path, int *fd, struct error *err)
{
    *path = xasprintf("%s/%s", pack->dir, part->file);
    return pack_part_open(part, *path, fd, err);
}

/* --- reading --- */

/* Reads [offset, offset + bytes) of the image in pieces and compares the XXH3 of all of them. into NULL: only that. */
static enum status read_extent(int fd, const char *path, uint64_t offset, uint64_t bytes, uint8_t *into, uint8_t *piece, uint64_t expected,
                               const char *what, struct error *err)
{
    XXH3_state_t *state = XXH3_createState();
    CHECK(state && XXH3_64bits_reset(state) == XXH_OK);
    enum status status = STATUS_OK;
    for (uint64_t at = 0; at < bytes && !status; at += PIECE_BYTES) {
        uint64_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        uint8_t *to = into ? into + at : piece;
        status = file_read_at(fd, to, n, PACK_HEADER_BYTES + offset + at, path, err);
        if (!status)
            XXH3_64bits_update(state, to, n);
    }
    if (!status && XXH3_64bits_digest(state) != expected)
        status = error_set(err, STATUS_CORRUPT, "%s: %s does not match its checksum: the file is damaged", path, what);
    XXH3_freeState(state);
    return status;
}

/* The bytes after the last tensor belong to no checksum, so they must be what they are written as. */
static enum status read_tail(int fd, const char *path, uint64_t begin, uint64_t end, uint8_t *into, struct error *err)
{
    uint8_t tail[PART_ALIGN_BYTES];
    CHECK(end - begin <= sizeof tail);
    enum status status = file_read_at(fd, tail, end - begin, PACK_HEADER_BYTES + begin, path, err);
    for (uint64_t i = 0; i < end - begin && !status; i++)
        if (tail[i])
            status = error_set(err, STATUS_CORRUPT, "%s: bytes after the last tensor are not zero: the file is damaged", path);
    if (!status && into)
        memset(into, 0, end - begin);
    return status;
}

enum status pack_read_part(const struct pack *pack, const struct pack_part *part, uint8_t *image, struct error *err)
{
    char *path;
    int fd;
    const struct part_layout *layout = &part->layout;
    uint8_t *piece = NULL;
    enum status status = open_part(pack, part, &path, &fd, err);
    if (status)
        goto out;
    if (!image)
        piece = xcalloc(PIECE_BYTES, 1);
    uint64_t at = 0;
    for (int i = 0; i < pack_part_n_checksums(part) && !status; i++) {
        char what[64];
        int is_record = layout->kind == PART_EXPERTS;
        uint64_t bytes = is_record ? layout->record_bytes : layout->tensors[i].extent_bytes;
        if (is_record)
            snprintf(what, sizeof what, "record %d", i);
        else
            snprintf(what, sizeof what, "tensor %s", layout->tensors[i].name);
        status = read_extent(fd, path, at, bytes, image ? image + at : NULL, piece, part->checksums[i], what, err);
        at += bytes;
    }
    if (!status)
        status = read_tail(fd, path, at, layout->bytes, image ? image + at : NULL, err);
    close(fd);
out:
    free(piece);
    free(path);
    return status;
}

/* --- manifest --- */

static json_t *checksum_json(uint64_t checksum)
{
    char text[17];
    checksum_text(text, checksum);
    return json_string(text);
}

static json_t *tensors_json(const struct pack_part *part)
{
    json_t *list = json_array();
    for (int i = 0; i < part->layout.n_tensors; i++) {
        const struct tensor_place *t = &part->layout.tensors[i];
        json_array_append_new(list, json_pack("{s:s,s:s,s:i,s:i,s:I,s:I,s:o}", "name", t->name, "format", format_info(t->format)->name,
                                              "rows", t->rows, "cols", t->cols, "offset", (json_int_t)(PACK_HEADER_BYTES + t->offset),
                                              "bytes", (json_int_t)t->extent_bytes, "xxh3_64", checksum_json(part->checksums[i])));
    }
    return list;
}

static json_t *records_json(const struct pack_part *part)
{
    json_t *list = json_array();
    for (int i = 0; i < part->layout.n_records; i++)
        json_array_append_new(list, checksum_json(part->checksums[i]));
    return json_pack("{s:i,s:I,s:s,s:o}", "count", part->layout.n_records, "bytes", (json_int_t)part->layout.record_bytes, "format",
                     format_info(part->layout.tensors[0].format)->name, "xxh3_64", list);
}

static json_t *part_json(const struct pack_part *part)
{
    json_t *object =
        json_pack("{s:s,s:s,s:I}", "kind", kind_names[part->layout.kind], "file", part->file, "bytes", (json_int_t)part->file_bytes);
    if (has_layer(part->layout.kind))
        json_object_set_new(object, "layer", json_integer(part->layout.layer));
    if (part->layout.kind == PART_EXPERTS)
        json_object_set_new(object, "records", records_json(part));
    else
        json_object_set_new(object, "tensors", tensors_json(part));
    return object;
}

/* The canonical form: keys sorted, no spaces, ASCII, whole numbers only. */
static void identity_of(const json_t *manifest, char identity[33])
{
    json_t *copy = json_copy((json_t *)manifest);
    json_object_del(copy, "identity");
    char *text = json_dumps(copy, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENSURE_ASCII);
    CHECK(text);
    identity_text(identity, text, strlen(text));
    free(text);
    json_decref(copy);
}

static json_t *manifest_json(const struct pack *pack)
{
    json_t *files = json_object(), *parts = json_array();
    for (int i = 0; i < pack->n_copies; i++)
        json_object_set_new(
            files, pack->copies[i].name,
            json_pack("{s:I,s:o}", "bytes", (json_int_t)pack->copies[i].bytes, "xxh3_64", checksum_json(pack->copies[i].checksum)));
    for (int i = 0; i < pack->n_parts; i++)
        json_array_append_new(parts, part_json(&pack->parts[i]));
    return json_pack("{s:s,s:i,s:s,s:o,s:o}", "format", FORMAT, "version", PACK_VERSION, "precision", precision_name(pack->precision),
                     "files", files, "parts", parts);
}

char *pack_manifest_text(struct pack *pack)
{
    json_t *root = manifest_json(pack);
    CHECK(root);
    identity_of(root, pack->identity);
    json_object_set_new(root, "identity", json_string(pack->identity));
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_SORT_KEYS | JSON_ENSURE_ASCII);
    CHECK(text);
    json_decref(root);
    return text;
}

/* --- opening --- */

static enum status check_manifest(const json_t *root, struct pack *pack, const char *path, struct error *err)
{
    const char *format = json_string_value(json_object_get(root, "format")),
               *precision = json_string_value(json_object_get(root, "precision"));
    const char *identity = json_string_value(json_object_get(root, "identity"));
    if (!format || strcmp(format, FORMAT))
        return error_set(err, STATUS_INVALID, "%s: format is '%.32s', expected '%s'", path, format ? format : "", FORMAT);
    int64_t version;
    enum status status = json_get_int(root, "version", 0, INT32_MAX, -1, &version, path, err);
    if (status)
        return status;
    if (version != PACK_VERSION)
        return error_set(err, STATUS_UNSUPPORTED, "%s: format version %lld, this build knows %d", path, (long long)version, PACK_VERSION);
    identity_of(root, pack->identity);
    if (!identity || strcmp(identity, pack->identity))
        return error_set(err, STATUS_CORRUPT, "%s: its content gives identity %s, it says %.32s: the file is damaged", path, pack->identity,
                         identity ? identity : "none");
    if (!precision || precision_by_name(precision) < 0)
        return error_set(err, STATUS_UNSUPPORTED, "%s: unknown precision '%.32s'", path, precision ? precision : "");
    pack->precision = precision_by_name(precision);
    return STATUS_OK;
}

/* Reads one of the copied files whole and compares size and checksum. keep: gives the bytes to the caller. */
static enum status check_copy(const char *dir, const struct pack_copy *copy, char **keep, size_t *keep_bytes, struct error *err)
{
    char *path = xasprintf("%s/%s", dir, copy->name), *bytes = NULL;
    size_t n = 0;
    enum status status = file_read_all(&bytes, &n, path, PACK_COPY_MAX_BYTES, err);
    if (!status && (n != copy->bytes || XXH3_64bits(bytes, n) != copy->checksum))
        status = error_set(err, STATUS_CORRUPT, "%s: does not match the checksum in %s: the file was changed or is damaged", path,
                           PACK_MANIFEST);
    if (!status && keep) {
        *keep = bytes;
        *keep_bytes = n;
        bytes = NULL;
    }
    free(bytes);
    free(path);
    return status;
}

static enum status parse_copies(const json_t *root, struct pack *pack, const char *path, struct error *err)
{
    const json_t *files = json_object_get(root, "files");
    for (int i = 0; i < PACK_COPIES_MAX; i++) {
        const json_t *entry = json_object_get(files, pack_copy_names[i]);
        if (!entry)
            continue;
        struct pack_copy *copy = &pack->copies[pack->n_copies++];
        copy->name = pack_copy_names[i];
        copy->bytes = (uint64_t)json_integer_value(json_object_get(entry, "bytes"));
        if (!checksum_parse(json_string_value(json_object_get(entry, "xxh3_64")), &copy->checksum))
            return error_set(err, STATUS_CORRUPT, "%s: files: no checksum of %s", path, copy->name);
    }
    if (json_object_size(files) != (size_t)pack->n_copies)
        return error_set(err, STATUS_CORRUPT, "%s: files: names a file that is none of a pack's", path);
    if (!pack->n_copies || strcmp(pack->copies[0].name, "config.json"))
        return error_set(err, STATUS_CORRUPT, "%s: files: config.json is missing", path);
    return STATUS_OK;
}

/* docs/FORMATS.md, "Precisions". */
static int format_is_allowed(enum precision precision, enum tensor_class class, int format)
{
    if (class == TENSOR_FLOAT)
        return format == FORMAT_F32;
    if (precision == PRECISION_EXACT)
        return format == FORMAT_F32 || format == FORMAT_BF16;
    return format == (precision == PRECISION_INT4 && class == TENSOR_EXPERT ? FORMAT_INT4 : FORMAT_INT8);
}

static enum status parse_formats(const struct pack *pack, const struct pack_part *part, const json_t *entry, enum weight_format *formats,
                                 const char *path, struct error *err)
{
    struct tensor_spec specs[PART_TENSORS_MAX];
    int n = part_tensor_specs(&pack->config, part->layout.kind, part->layout.layer, 0, specs);
    const json_t *records = json_object_get(entry, "records"), *tensors = json_object_get(entry, "tensors");
    for (int i = 0; i < n; i++) {
        const json_t *of = part->layout.kind == PART_EXPERTS ? records : json_array_get(tensors, (size_t)i);
        const char *name = json_string_value(json_object_get(of, "format"));
        int format = name ? format_by_name(name) : -1;
        if (format < 0 || !format_is_allowed(pack->precision, specs[i].class, format))
            return error_set(err, STATUS_CORRUPT, "%s: %s: %s has format '%.32s', which no %s pack has there", path, part->file,
                             specs[i].name, name ? name : "", precision_name(pack->precision));
        formats[i] = (enum weight_format)format;
    }
    return STATUS_OK;
}

static enum status parse_checksums(struct pack_part *part, const json_t *entry, const char *path, struct error *err)
{
    const json_t *records = json_object_get(json_object_get(entry, "records"), "xxh3_64"), *tensors = json_object_get(entry, "tensors");
    for (int i = 0; i < pack_part_n_checksums(part); i++) {
        const json_t *text = part->layout.kind == PART_EXPERTS ? json_array_get(records, (size_t)i)
                                                               : json_object_get(json_array_get(tensors, (size_t)i), "xxh3_64");
        if (!checksum_parse(json_string_value(text), &part->checksums[i]))
            return error_set(err, STATUS_CORRUPT, "%s: %s: no checksum of %s %d", path, part->file,
                             part->layout.kind == PART_EXPERTS ? "record" : "tensor", i);
    }
    return STATUS_OK;
}

/* Everything of a part follows from config.json and its formats; what the manifest says beyond its checksums must be exactly that. */
static enum status parse_part(const struct pack *pack, struct pack_part *part, const json_t *entry, const char *path, struct error *err)
{
    enum weight_format formats[PART_TENSORS_MAX];
    struct part_layout layout;
    const char *file = json_string_value(json_object_get(entry, "file"));
    if (!file || strcmp(file, part->file))
        return error_set(err, STATUS_CORRUPT, "%s: parts: found file '%.64s', expected %s", path, file ? file : "", part->file);
    enum status status = parse_formats(pack, part, entry, formats, path, err);
    if (!status)
        status = part_layout_init(&layout, &pack->config, part->layout.kind, part->layout.layer, formats, err);
    if (status)
        return status;
    pack_set_layout(part, &layout);
    int64_t bytes = json_integer_value(json_object_get(entry, "bytes"));
    if ((uint64_t)bytes != part->file_bytes)
        return error_set(err, STATUS_CORRUPT, "%s: %s has %lld bytes, by config.json it has %llu", path, part->file, (long long)bytes,
                         (unsigned long long)part->file_bytes);
    if ((status = parse_checksums(part, entry, path, err)))
        return status;
    json_t *expected = part_json(part);
    if (!json_equal(expected, entry))
        status = error_set(err, STATUS_CORRUPT, "%s: %s is not laid out as config.json and its formats say", path, part->file);
    json_decref(expected);
    return status;
}

static enum status check_file(const struct pack *pack, const struct pack_part *part, struct error *err)
{
    char *path;
    int fd;
    struct error failure = {0};
    enum status status = open_part(pack, part, &path, &fd, &failure);
    free(path);
    if (!status)
        close(fd);
    return status == STATUS_OK || status == STATUS_NOT_FOUND ? STATUS_OK : error_set(err, status, "%s", failure.text);
}

static enum status parse_parts(struct pack *pack, const json_t *root, const char *path, struct error *err)
{
    const json_t *parts = json_object_get(root, "parts");
    if (json_array_size(parts) != (size_t)pack->n_parts || json_object_size(root) != 6)
        return error_set(err, STATUS_CORRUPT, "%s: %zu parts, by config.json there are %d", path, json_array_size(parts), pack->n_parts);
    for (int i = 0; i < pack->n_parts; i++) {
        enum status status = parse_part(pack, &pack->parts[i], json_array_get(parts, (size_t)i), path, err);
        if (!status)
            status = check_file(pack, &pack->parts[i], err);
        if (status)
            return status;
    }
    return STATUS_OK;
}

/* The manifest's head and the small files into `head`, then the configuration decides what the parts must be. */
static enum status open_manifest(struct pack **out, const json_t *root, const char *dir, const char *path, struct error *err)
{
    struct pack head = {0};
    struct model_config config;
    char *text = NULL, *config_path = xasprintf("%s/config.json", dir);
    size_t length = 0;
    enum status status = check_manifest(root, &head, path, err);
    if (!status)
        status = parse_copies(root, &head, path, err);
    for (int i = 0; i < head.n_copies && !status; i++)
        status = check_copy(dir, &head.copies[i], i ? NULL : &text, &length, err);
    if (!status)
        status = model_config_parse(&config, text, length, config_path, err);
    free(text);
    free(config_path);
    if (status)
        return status;
    struct pack *pack = *out = pack_new(dir, &config, head.precision);
    memcpy(pack->identity, head.identity, sizeof pack->identity);
    memcpy(pack->copies, head.copies, sizeof pack->copies);
    pack->n_copies = head.n_copies;
    return parse_parts(pack, root, path, err);
}

enum status pack_open(struct pack **out, const char *dir, struct error *err)
{
    char *path = xasprintf("%s/%s", dir, PACK_MANIFEST);
    json_t *root = NULL;
    *out = NULL;
    enum status status = json_read_file(&root, path, MANIFEST_MAX_BYTES, err);
    if (!status)
        status = open_manifest(out, root, dir, path, err);
    json_decref(root);
    free(path);
    if (status)
        pack_close(out);
    return status;
}
