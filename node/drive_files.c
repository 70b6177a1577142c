#include "node/drive_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/check.h"
#include "common/memory.h"
#include "model/files.h"
#include "model/pack.h"
#include "model/vendor_folder.h"
#include "node/expert_store.h"

enum {
    VENDOR_EXTENT_BYTES = 16 << 20, /* about a record of GLM-5.2 in int4 */
    WRITE_BYTES = VENDOR_EXTENT_BYTES,
};

static const uint64_t LATENCY_NS = 150000000, CLOSE_NS = 5000000000;

/* Tries O_DIRECT as the readers use it: 4096 bytes, aligned to 4096. Some file systems refuse the flag, others the read. */
static int try_direct(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    void *block;
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT))
        return errno;
    CHECK(!posix_memalign(&block, BLOCK_ALIGN_BYTES, BLOCK_ALIGN_BYTES));
    int result = pread(fd, block, BLOCK_ALIGN_BYTES, BLOCK_ALIGN_BYTES) < 0 ? errno : 0;
    free(block);
    if (result)
        fcntl(fd, F_SETFL, flags);
    return result;
}

static enum status add_file(struct drive_files *f, const char *path, int store, struct stat *st, struct error *err)
{
    int fd;
    enum status status = file_open_regular(&fd, path, 1, st, err);
    if (status)
        return status;
    f->files = xrealloc(f->files, (size_t)(f->n_files + 1) * sizeof *f->files);
    f->files[f->n_files++] = (struct drive_file){xstrdup(path), fd, store, try_direct(fd)};
    return STATUS_OK;
}

/* n extents of the last file, one after the other. */
static void add_extents(struct drive_files *f, uint64_t offset, uint64_t bytes, int n)
{
    const struct drive_file *file = &f->files[f->n_files - 1];
    f->extents = xrealloc(f->extents, (size_t)(f->n_extents + n) * sizeof *f->extents);
    for (int i = 0; i < n; i++)
        f->extents[f->n_extents++] = (struct drive_extent){file->fd, file->store, offset + (uint64_t)i * bytes, bytes, file->path};
}

/* ---- a pack and its stores ---- */

static int is_experts(const struct pack_part *part)
{
    return part->layout.kind == PART_EXPERTS;
}

/* Every experts file of the pack that the folder has. */
static enum status add_store(struct drive_files *f, const struct pack *pack, const char *dir, struct error *err)
{
    if (f->n_stores == BLOCK_STORES_MAX)
        return error_set(err, STATUS_INVALID, "more than %d stores", BLOCK_STORES_MAX);
    int store = f->n_stores, before = f->n_files;
    f->stores[f->n_stores++] = xstrdup(dir);
    enum status status = STATUS_OK;
    for (int i = 0; i < pack->n_parts && !status; i++) {
        const struct pack_part *part = &pack->parts[i];
        char *path = xasprintf("%s/%s", dir, part->file);
        struct stat st;
        if (is_experts(part) && !access(path, F_OK))
            status = add_file(f, path, store, &st, err);
        if (!status && f->n_files && !strcmp(f->files[f->n_files - 1].path, path)) {
            if ((uint64_t)st.st_size == part->file_bytes)
                add_extents(f, PACK_HEADER_BYTES, part->layout.record_bytes, part->layout.n_records);
            else
                status = error_set(err, STATUS_CORRUPT, "%s: %lld bytes, the pack's manifest says %llu", path, (long long)st.st_size,
                                   (unsigned long long)part->file_bytes);
        }
        free(path);
    }
    if (!status && f->n_files == before)
        status = error_set(err, STATUS_NOT_FOUND, "%s: has none of the experts files of %s", dir, pack->dir);
    return status;
}

static enum status open_pack(struct drive_files *f, const char *dir, const char *stores, struct error *err)
{
    struct pack *pack;
    enum status status = pack_open(&pack, dir, err);
    if (status)
        return status;
    f->is_pack = 1;
    for (int i = 0; i < pack->n_parts; i++)
        if (is_experts(&pack->parts[i]) && pack->parts[i].layout.layer < pack->config.n_layers)
            f->token_bytes += pack->parts[i].layout.record_bytes * (uint64_t)pack->config.top_k;
    char *list = xstrdup(stores ? stores : dir), *rest = list;
    for (char *store; !status && (store = strsep(&rest, ","));)
        if (*store)
            status = add_store(f, pack, store, err);
    if (!status && !f->n_stores)
        status = error_set(err, STATUS_INVALID, "the list of stores is empty");
    free(list);
    pack_close(&pack);
    return status;
}

/* ---- other files ---- */

/* Headers only: checksums of a folder's first opening would read all of it. */
static enum status open_vendor(struct drive_files *f, const char *dir, struct error *err)
{
    struct vendor_folder *folder;
    struct model_config config;
    enum status status = model_config_read(&config, dir, err);
    if (!status)
        status = vendor_folder_open(&folder, dir, err);
    if (status)
        return status;
    f->stores[f->n_stores++] = xstrdup(dir);
    for (int i = 0; i < folder->n_shards && !status; i++) {
        struct stat st;
        status = add_file(f, folder->shards[i]->path, 0, &st, err);
        if (status)
            break;
        uint64_t bytes = (uint64_t)st.st_size / BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES;
        if (bytes >= VENDOR_EXTENT_BYTES)
            add_extents(f, 0, VENDOR_EXTENT_BYTES, (int)(bytes / VENDOR_EXTENT_BYTES));
        else if (bytes)
            add_extents(f, 0, bytes, 1);
    }
    if (!status && !f->n_extents)
        status = error_set(err, STATUS_INVALID, "%s: its files are too small to measure", dir);
    vendor_folder_close(&folder);
    return status;
}

enum status drive_files_open(struct drive_files *out, const char *model, const char *stores, struct error *err)
{
    *out = (struct drive_files){0};
    char *manifest = xasprintf("%s/%s", model, PACK_MANIFEST);
    int is_pack = !access(manifest, F_OK);
    free(manifest);
    enum status status = is_pack  ? open_pack(out, model, stores, err)
                         : stores ? error_set(err, STATUS_INVALID, "%s: not a pack (no %s): only packs have stores", model, PACK_MANIFEST)
                                  : open_vendor(out, model, err);
    if (status)
        drive_files_close(out);
    return status;
}

enum status drive_files_open_file(struct drive_files *out, const char *path, struct error *err)
{
    struct stat st;
    *out = (struct drive_files){.n_stores = 1, .stores = {xstrdup(path)}};
    enum status status = add_file(out, path, 0, &st, err);
    if (status) {
        drive_files_close(out);
        return status;
    }
    uint64_t bytes = (uint64_t)st.st_size / BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES;
    if (bytes)
        add_extents(out, 0, bytes, 1);
    return STATUS_OK;
}

/* Random, so that a file system or a drive which compresses gains nothing. */
static enum status fill(int fd, const char *dir, uint64_t bytes, void (*report)(uint64_t, uint64_t), struct error *err)
{
    uint64_t *block, random = 88172645463325252u;
    enum status status = STATUS_OK;
    CHECK(!posix_memalign((void **)&block, BLOCK_ALIGN_BYTES, WRITE_BYTES));
    for (uint64_t done = 0; done < bytes && !status; done += WRITE_BYTES) {
        for (size_t i = 0; i < WRITE_BYTES / sizeof *block; i++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            block[i] = random;
        }
        status = file_write_at(fd, block, WRITE_BYTES, done, dir, err);
        if (report)
            report(done + WRITE_BYTES, bytes);
    }
    free(block);
    if (!status && fsync(fd))
        status = error_errno(err, STATUS_IO, "%s: cannot sync the temporary file", dir);
    return status;
}

/* A file without a name: nothing is left over, however the process ends. Not every file system can; then the name is gone at once. */
static int open_nameless(const char *dir)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    char *path = xasprintf("%s/drive.XXXXXX", dir);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    free(path);
    return fd;
}

enum status drive_files_make(struct drive_files *out, const char *dir, uint64_t bytes, void (*report)(uint64_t, uint64_t),
                             struct error *err)
{
    CHECK(bytes && bytes % WRITE_BYTES == 0);
    *out = (struct drive_files){.n_stores = 1, .stores = {xstrdup(dir)}};
    int fd = open_nameless(dir);
    if (fd < 0) {
        enum status status = error_errno(err, STATUS_IO, "%s: cannot create a file there", dir);
        drive_files_close(out);
        return status;
    }
    int flags = fcntl(fd, F_GETFL), is_direct = !fcntl(fd, F_SETFL, flags | O_DIRECT);
    enum status status = fill(fd, dir, bytes, report, err);
    if (is_direct)
        fcntl(fd, F_SETFL, flags);
    out->files = xcalloc(1, sizeof *out->files);
    out->files[out->n_files++] = (struct drive_file){xasprintf("%s: temporary file", dir), fd, 0, try_direct(fd)};
    add_extents(out, 0, VENDOR_EXTENT_BYTES, (int)(bytes / VENDOR_EXTENT_BYTES));
    if (status)
        drive_files_close(out);
    return status;
}

void drive_files_close(struct drive_files *f)
{
    for (int i = 0; i < f->n_files; i++) {
        close(f->files[i].fd);
        free(f->files[i].path);
    }
    for (int i = 0; i < f->n_stores; i++)
        free(f->stores[i]);
    free(f->files);
    free(f->extents);
    *f = (struct drive_files){0};
}

/* ---- questions ---- */

const struct drive_extent *drive_files_store(const struct drive_files *f, int store, int *n_extents)
{
    int begin = 0;
    while (begin < f->n_extents && f->extents[begin].store < store)
        begin++;
    int end = begin;
    while (end < f->n_extents && f->extents[end].store == store)
        end++;
    *n_extents = end - begin;
    return f->extents + begin;
}

uint32_t drive_files_piece_bytes(const struct drive_files *f)
{
    uint64_t largest = BLOCK_ALIGN_BYTES;
    for (int i = 0; i < f->n_extents; i++)
        largest = f->extents[i].bytes > largest ? f->extents[i].bytes : largest;
    return (uint32_t)(largest < EXPERT_PIECE_BYTES ? largest : EXPERT_PIECE_BYTES);
}

void drive_files_forget(const struct drive_files *f)
{
    for (int i = 0; i < f->n_files; i++)
        posix_fadvise(f->files[i].fd, 0, 0, POSIX_FADV_DONTNEED);
}

/* ---- the rate ---- */

enum status drive_files_rate(const struct drive_files *f, const struct expert_options *o, uint64_t time_ns, double *bytes_per_second,
                             uint64_t *latency_p50_ns, struct error *err)
{
    int depth = expert_read_depth(o, f->n_stores);
    struct block_reader *reader;
    enum status status = block_reader_open(&reader, o->reader, depth * f->n_stores, err);
    if (status)
        return status;
    struct drive_load load = {f->extents, f->n_extents, EXPERT_PIECE_BYTES, depth, time_ns, 1, 0};
    struct drive_rate rate = {0};
    drive_files_forget(f);
    status = drive_rate_measure(&rate, reader, &load, err);
    if (!status && latency_p50_ns) {
        drive_files_forget(f);
        status = drive_latency_measure(latency_p50_ns, reader, f->extents, f->n_extents, LATENCY_NS, err);
    }
    *bytes_per_second = rate.bytes_per_second;
    reader->close(reader, CLOSE_NS);
    return status;
}
