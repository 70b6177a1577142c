#include "model/convert.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/check.h"
#include "common/json.h"
#include "common/log.h"
#include "common/memory.h"
#include "model/checksums.h"
#include "model/convert_journal.h"
#include "model/files.h"
#include "model/pack.h"
#include "model/part_build.h"

/* Room for directory entries, the journal and the manifest's own growth, beside what is computed exactly. */
enum { SPACE_MARGIN_BYTES = 1 << 20 };

struct copy_bytes {
    char *bytes;
    size_t n;
};

struct converter {
    const struct convert_options *options;
    const char *src, *dst;
    struct model_config config;
    struct vendor_folder *folder;
    struct part_builder builder;
    struct pack *pack;                         /* what dst will be */
    struct copy_bytes copies[PACK_COPIES_MAX]; /* in the order of pack->copies */
    struct journal journal;
    struct pack *existing; /* a finished pack in dst, to compare with */
    uint64_t done_bytes, total_bytes;
};

static void report(const struct converter *c, const char *file, int is_part_done, int is_kept)
{
    struct convert_progress progress = {file, c->done_bytes, c->total_bytes, is_part_done, is_kept, c->existing != NULL};
    if (c->options->report)
        c->options->report(c->options->ctx, &progress);
}

static enum status check_stop(const struct converter *c, struct error *err)
{
    if (!c->options->stop || !*c->options->stop)
        return STATUS_OK;
    return error_set(err, STATUS_CANCELLED, "stopped; finished files are kept, the same command goes on from there");
}

/* --- the source --- */

static enum status read_copies(struct converter *c, struct error *err)
{
    for (int i = 0; i < PACK_COPIES_MAX; i++) {
        char *path = xasprintf("%s/%s", c->src, pack_copy_names[i]);
        struct copy_bytes *copy = &c->copies[c->pack ? c->pack->n_copies : 0];
        struct error failure = {0};
        enum status status = file_read_all(&copy->bytes, &copy->n, path, PACK_COPY_MAX_BYTES, &failure);
        if (status && (status != STATUS_NOT_FOUND || i == 0)) {
            free(path);
            return error_set(err, status, "%s", failure.text);
        }
        if (!status && i == 0) {
            status = model_config_parse(&c->config, copy->bytes, copy->n, path, err);
            if (!status)
                c->pack = pack_new(c->dst, &c->config, c->options->precision);
        }
        free(path);
        if (status == STATUS_NOT_FOUND)
            continue;
        if (status)
            return status;
        c->pack->copies[c->pack->n_copies++] = (struct pack_copy){pack_copy_names[i], copy->n, XXH3_64bits(copy->bytes, copy->n)};
    }
    return STATUS_OK;
}

/* What makes two sources the same for going on with a conversion: small files by content, shards by name, size, header and time of change.
 * Not part of the pack. */
static void source_identity(const struct converter *c, char identity[33])
{
    struct text all = {0};
    for (int i = 0; i < c->pack->n_copies; i++)
        text_append(&all, c->copies[i].bytes, c->copies[i].n);
    for (int i = 0; i < c->folder->n_shards; i++) {
        const struct safetensors *s = c->folder->shards[i];
        char *line = xasprintf("\n%s %llu %016llx %lld.%09ld", strrchr(s->path, '/'), (unsigned long long)s->file_bytes,
                               (unsigned long long)s->header_checksum, (long long)s->modified.tv_sec, s->modified.tv_nsec);
        text_append_string(&all, line);
        free(line);
    }
    identity_text(identity, all.bytes, all.length);
    text_free(&all);
}

static enum status open_source(struct converter *c, struct error *err)
{
    int found;
    enum status status = read_copies(c, err);
    if (!status)
        status = vendor_folder_open(&c->folder, c->src, err);
    if (!status)
        status = checksums_load(c->folder, &found, err); /* what was trusted before is verified now */
    if (status)
        return status;
    part_builder_init(&c->builder, c->folder, &c->config, c->options->precision);
    for (int i = 0; i < c->pack->n_parts; i++) {
        struct pack_part *part = &c->pack->parts[i];
        struct part_layout layout;
        if ((status = part_build_layout(&c->builder, &layout, part->layout.kind, part->layout.layer, err)))
            return status;
        pack_set_layout(part, &layout);
        c->total_bytes += part->file_bytes;
    }
    return STATUS_OK;
}

/* --- one part --- */

/* Where the bytes of a part go: fd -1 only hashes them. */
struct sink {
    int fd;
    const char *path;
};

static enum status put(const struct sink *sink, XXH3_state_t *hash, const void *bytes, uint64_t n, uint64_t image_offset, struct error *err)
{
    XXH3_64bits_update(hash, bytes, n);
    return sink->fd < 0 ? STATUS_OK : file_write_at(sink->fd, bytes, n, PACK_HEADER_BYTES + image_offset, sink->path, err);
}

/* Data block by block, scales together at the end, and the gaps after both. */
static enum status write_tensor(struct converter *c, const struct sink *sink, struct pack_part *part, int i, struct error *err)
{
    static const uint8_t zeros[TENSOR_ALIGN_BYTES];
    const struct tensor_place *t = &part->layout.tensors[i];
    int step = part_build_block_rows(t);
    uint64_t row_bytes = format_row_bytes(t->format, t->cols), scale_bytes = format_scale_row_bytes(t->format, t->cols);
    uint8_t *data = xcalloc((size_t)step, row_bytes), *scales = xcalloc(t->scales_bytes, 1);
    XXH3_state_t *hash = XXH3_createState();
    CHECK(hash && XXH3_64bits_reset(hash) == XXH_OK);
    enum status status = STATUS_OK;
    for (int row = 0; row < t->rows && !status; row += step) {
        int rows = t->rows - row < step ? t->rows - row : step;
        status = check_stop(c, err);
        if (!status)
            status = part_build_rows(&c->builder, &part->layout, i, row, rows, data, scales + (uint64_t)row * scale_bytes, err);
        if (!status)
            status = put(sink, hash, data, (uint64_t)rows * row_bytes, t->offset + (uint64_t)row * row_bytes, err);
        c->done_bytes += (uint64_t)rows * (row_bytes + scale_bytes);
        report(c, part->file, 0, 0);
    }
    uint64_t data_end = t->offset + t->data_bytes, end = t->offset + t->extent_bytes;
    uint64_t scales_begin = t->scales_bytes ? t->scales_offset : end,
             scales_end = t->scales_bytes ? t->scales_offset + t->scales_bytes : end;
    if (!status)
        status = put(sink, hash, zeros, scales_begin - data_end, data_end, err);
    if (!status && t->scales_bytes)
        status = put(sink, hash, scales, t->scales_bytes, scales_begin, err);
    if (!status)
        status = put(sink, hash, zeros, end - scales_end, scales_end, err);
    part->checksums[i] = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    free(scales);
    free(data);
    return status;
}

static enum status write_records(struct converter *c, const struct sink *sink, struct pack_part *part, struct error *err)
{
    uint64_t bytes = part->layout.record_bytes;
    uint8_t *record = xcalloc(bytes, 1);
    enum status status = STATUS_OK;
    for (int i = 0; i < part->layout.n_records && !status; i++) {
        status = check_stop(c, err);
        if (!status)
            status = part_build_record(&c->builder, &part->layout, i, record, err);
        if (!status && sink->fd >= 0)
            status = file_write_at(sink->fd, record, bytes, PACK_HEADER_BYTES + (uint64_t)i * bytes, sink->path, err);
        part->checksums[i] = XXH3_64bits(record, bytes);
        c->done_bytes += bytes;
        report(c, part->file, 0, 0);
    }
    free(record);
    return status;
}

static enum status write_image(struct converter *c, const struct sink *sink, struct pack_part *part, struct error *err)
{
    enum status status = STATUS_OK;
    if (part->layout.kind == PART_EXPERTS)
        status = write_records(c, sink, part, err);
    else
        for (int i = 0; i < part->layout.n_tensors && !status; i++)
            status = write_tensor(c, sink, part, i, err);
    if (!status)
        return vendor_folder_finish(c->folder, err);
    vendor_folder_abandon(c->folder);
    return status;
}

static enum status create_partial(const char *partial, const struct pack_part *part, int *fd, struct error *err)
{
    uint8_t header[PACK_HEADER_BYTES];
    *fd = open(partial, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (*fd < 0)
        return error_errno(err, STATUS_IO, "%s: cannot create", partial);
    /* full size at once: gaps are zero, and a full disk is noticed before the work */
    if (fallocate(*fd, 0, 0, (off_t)part->file_bytes) && errno != EOPNOTSUPP && errno != ENOSYS)
        return error_errno(err, STATUS_IO, "%s: no room for %llu bytes", partial, (unsigned long long)part->file_bytes);
    if (ftruncate(*fd, (off_t)part->file_bytes))
        return error_errno(err, STATUS_IO, "%s: cannot make it %llu bytes long", partial, (unsigned long long)part->file_bytes);
    pack_header_fill(header, part);
    return file_write_at(*fd, header, sizeof header, 0, partial, err);
}

static enum status write_part(struct converter *c, struct pack_part *part, struct error *err)
{
    char *path = xasprintf("%s/%s", c->dst, part->file), *partial = xasprintf("%s.partial", path);
    int fd;
    enum status status = create_partial(partial, part, &fd, err);
    struct sink sink = {fd, partial};
    if (!status)
        status = write_image(c, &sink, part, err);
    if (!status)
        status = file_publish(&fd, partial, path, c->dst, err);
    if (fd >= 0) {
        close(fd);
        unlink(partial);
    }
    free(partial);
    free(path);
    return status;
}

/* A file that the journal lists is kept when its bytes still are what they were. */
static int keep_part(struct converter *c, struct pack_part *part)
{
    struct error damage = {0};
    int n = pack_part_n_checksums(part);
    if (!journal_find(&c->journal, part->file, part->file_bytes, part->checksums, n))
        return 0;
    if (!pack_read_part(c->pack, part, NULL, &damage))
        return 1;
    log_line(LOG_WARNING, "%s; converting it again", damage.text);
    return 0;
}

static enum status convert_part(struct converter *c, struct pack_part *part, struct error *err)
{
    uint64_t end_bytes = c->done_bytes + part->file_bytes;
    int is_kept = keep_part(c, part);
    enum status status = check_stop(c, err);
    if (!status && !is_kept) {
        status = write_part(c, part, err);
        if (!status)
            status = journal_append(&c->journal, part->file, part->file_bytes, part->checksums, pack_part_n_checksums(part), err);
    }
    if (status)
        return status;
    c->done_bytes = end_bytes;
    report(c, part->file, 1, is_kept);
    return STATUS_OK;
}

/* --- the target --- */

/* Bytes that are still to be written: parts that no journal entry covers. */
static enum status check_space(const struct converter *c, struct error *err)
{
    struct statvfs fs;
    if (statvfs(c->dst, &fs))
        return error_errno(err, STATUS_IO, "%s: cannot ask for its free space", c->dst);
    uint64_t needed = SPACE_MARGIN_BYTES, n_free = (uint64_t)fs.f_bavail * fs.f_frsize;
    for (int i = 0; i < c->pack->n_copies; i++)
        needed += c->pack->copies[i].bytes;
    for (int i = 0; i < c->pack->n_parts; i++) {
        struct pack_part *part = &c->pack->parts[i];
        int n = pack_part_n_checksums(part);
        needed += 24 * (uint64_t)n; /* its lines in the manifest */
        if (!journal_find(&c->journal, part->file, part->file_bytes, part->checksums, n))
            needed += part->file_bytes;
    }
    if (needed > n_free)
        return error_set(err, STATUS_IO, "%s: the pack needs %.2f GB (%llu bytes) more, %.2f GB (%llu bytes) are free", c->dst,
                         (double)needed / 1e9, (unsigned long long)needed, (double)n_free / 1e9, (unsigned long long)n_free);
    return STATUS_OK;
}

/* The largest scratch: an expert's matrix as source and as f32 beside its record, or a kv_b. Exact packs of large models need most. */
static enum status check_memory(const struct converter *c, struct error *err)
{
    uint64_t needed = 64 << 20, physical = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE), most = 0;
    for (int i = 0; i < c->pack->n_parts; i++) {
        const struct part_layout *l = &c->pack->parts[i].layout;
        uint64_t record = l->record_bytes + (l->n_records ? 8 * (uint64_t)l->tensors[0].rows * (uint64_t)l->tensors[0].cols : 0);
        most = record > most ? record : most;
    }
    needed += most + 8 * (uint64_t)c->config.n_heads * (uint64_t)(c->config.nope_dim + c->config.v_dim) * (uint64_t)c->config.kv_lora_rank;
    if (needed > physical)
        return error_set(err, STATUS_NO_MEMORY, "converting needs %.2f GB of memory, this machine has %.2f GB", (double)needed / 1e9,
                         (double)physical / 1e9);
    return STATUS_OK;
}

static int is_empty_for_us(const char *dir)
{
    DIR *d = opendir(dir);
    int is_empty = 1;
    if (!d)
        return 0;
    for (struct dirent *entry; (entry = readdir(d));)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && strcmp(entry->d_name, "lost+found") &&
            strcmp(entry->d_name, PACK_JOURNAL ".partial"))
            is_empty = 0;
    closedir(d);
    return is_empty;
}

static int is_there(const char *dir, const char *name)
{
    char *path = xasprintf("%s/%s", dir, name);
    int found = !access(path, F_OK);
    free(path);
    return found;
}

/* Leaves either an open journal, or an existing pack to compare with. */
static enum status open_target(struct converter *c, struct error *err)
{
    char source[33];
    source_identity(c, source);
    if (mkdir(c->dst, 0755) && errno != EEXIST)
        return error_errno(err, STATUS_IO, "%s: cannot create the folder", c->dst);
    if (is_there(c->dst, PACK_MANIFEST) && !is_there(c->dst, PACK_JOURNAL))
        return pack_open(&c->existing, c->dst, err);
    if (!is_there(c->dst, PACK_JOURNAL)) {
        if (!is_empty_for_us(c->dst))
            return error_set(err, STATUS_INVALID, "%s: is not empty and no unfinished conversion; give a new folder", c->dst);
        enum status status = journal_create(c->dst, source, c->options->precision, err);
        if (status)
            return status;
    }
    return journal_open(&c->journal, c->dst, source, c->options->precision, err);
}

/* --- all of it --- */

static enum status write_copies(struct converter *c, struct error *err)
{
    enum status status = STATUS_OK;
    for (int i = 0; i < c->pack->n_copies && !status; i++)
        status = file_write_atomic(c->dst, c->pack->copies[i].name, c->copies[i].bytes, c->copies[i].n, err);
    return status;
}

/* What a killed run was writing: its room counts as free. */
static void remove_partials(const struct converter *c)
{
    for (int i = 0; i < c->pack->n_parts; i++) {
        char *partial = xasprintf("%s/%s.partial", c->dst, c->pack->parts[i].file);
        unlink(partial);
        free(partial);
    }
}

static enum status write_pack(struct converter *c, struct error *err)
{
    remove_partials(c);
    enum status status = check_memory(c, err);
    if (!status)
        status = check_space(c, err);
    if (!status)
        status = write_copies(c, err);
    for (int i = 0; i < c->pack->n_parts && !status; i++)
        status = convert_part(c, &c->pack->parts[i], err);
    if (status)
        return status;
    char *manifest = pack_manifest_text(c->pack);
    status = file_write_atomic(c->dst, PACK_MANIFEST, manifest, strlen(manifest), err);
    free(manifest);
    return status ? status : journal_finish(&c->journal, err);
}

static enum status is_another(const struct converter *c, const char *what, struct error *err)
{
    return error_set(err, STATUS_INVALID, "%s: holds another finished pack (%s differs); give a new folder", c->dst, what);
}

/* The target is a finished pack: it must be the one that we would write. */
static enum status compare_pack(struct converter *c, struct error *err)
{
    if (c->existing->precision != c->pack->precision)
        return is_another(c, "precision", err);
    if (c->existing->n_copies != c->pack->n_copies)
        return is_another(c, "number of small files", err);
    for (int i = 0; i < c->pack->n_copies; i++)
        if (c->existing->copies[i].checksum != c->pack->copies[i].checksum || c->existing->copies[i].name != c->pack->copies[i].name)
            return is_another(c, c->pack->copies[i].name, err);
    for (int i = 0; i < c->pack->n_parts; i++) {
        struct pack_part *part = &c->pack->parts[i];
        struct sink nowhere = {-1, NULL};
        enum status status = write_image(c, &nowhere, part, err);
        if (status)
            return status;
        if (part->file_bytes != c->existing->parts[i].file_bytes ||
            memcmp(part->checksums, c->existing->parts[i].checksums, (size_t)pack_part_n_checksums(part) * sizeof *part->checksums))
            return is_another(c, part->file, err);
        report(c, part->file, 1, 0);
    }
    free(pack_manifest_text(c->pack));
    return STATUS_OK;
}

static void release(struct converter *c)
{
    for (int i = 0; i < PACK_COPIES_MAX; i++)
        free(c->copies[i].bytes);
    journal_close(&c->journal);
    part_builder_release(&c->builder);
    vendor_folder_close(&c->folder);
    pack_close(&c->existing);
    pack_close(&c->pack);
}

enum status convert_model(const char *src, const char *dst, const struct convert_options *options, struct convert_result *result,
                          struct error *err)
{
    struct converter c = {.options = options, .src = src, .dst = dst, .journal = {.fd = -1}};
    enum status status = open_source(&c, err);
    if (!status)
        status = open_target(&c, err);
    if (!status)
        status = c.existing ? compare_pack(&c, err) : write_pack(&c, err);
    if (!status) {
        *result = (struct convert_result){.pack_bytes = c.total_bytes, .was_complete = c.existing != NULL};
        memcpy(result->identity, c.pack->identity, sizeof result->identity);
        report(&c, "", 0, 0);
    }
    release(&c);
    return status;
}
