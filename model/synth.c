#include "model/synth.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/check.h"
#include "common/memory.h"
#include "kernels/parallel.h"
#include "model/checksums.h"
#include "model/convert_journal.h"
#include "model/files.h"
#include "model/pack.h"
#include "model/synth_weights.h"

enum {
    STREAM_BYTES = 32 << 20,      /* tensors go to the file in pieces of this size */
    RECORDS_BYTES_MAX = 1 << 30,  /* of all threads together */
    ROWS_BYTES = 64 << 10,        /* a thread's least share of a tensor */
    SPACE_MARGIN_BYTES = 1 << 20, /* directory entries, journal, manifest */
    N_COPIES = 3,
};

static const char *const copy_names[N_COPIES] = {"config.json", "tokenizer.json", "generation_config.json"};

struct synth {
    const struct synth_options *options;
    const char *dir;
    int is_dir_ours; /* made here */
    struct model_config config;
    struct pack *pack;
    char *copies[N_COPIES];
    struct journal journal;
    uint8_t *buffer; /* [STREAM_BYTES], page aligned */

    pthread_mutex_t lock; /* for what follows */
    uint64_t done_bytes, total_bytes;
    enum status status; /* the first failure; everything after it is skipped */
    struct error *err;
    atomic_int has_failed;
};

/* --- what all threads share --- */

static void fail(struct synth *s, enum status status, const struct error *failure)
{
    pthread_mutex_lock(&s->lock);
    if (!s->status) {
        s->status = status;
        error_set(s->err, status, "%s", failure->text);
        atomic_store(&s->has_failed, 1);
    }
    pthread_mutex_unlock(&s->lock);
}

static void advance(struct synth *s, const char *file, uint64_t bytes, int is_part_done)
{
    pthread_mutex_lock(&s->lock);
    s->done_bytes += bytes;
    struct synth_progress progress = {file, s->done_bytes, s->total_bytes, is_part_done};
    if (s->options->report)
        s->options->report(s->options->ctx, &progress);
    pthread_mutex_unlock(&s->lock);
}

static int must_stop(struct synth *s)
{
    if (s->options->stop && *s->options->stop && !atomic_load(&s->has_failed)) {
        struct error stopped;
        error_set(&stopped, STATUS_CANCELLED, "stopped; what was written is removed");
        fail(s, STATUS_CANCELLED, &stopped);
    }
    return atomic_load(&s->has_failed);
}

/* --- a part's file --- */

struct part_file {
    int fd, is_direct;
    char *path, *partial;
};

/* Direct where the file system can: a pack is larger than memory, and its pages would push out everything else. */
static enum status part_file_create(struct part_file *f, const struct synth *s, const struct pack_part *part, struct error *err)
{
    int flags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
    f->path = xasprintf("%s/%s", s->dir, part->file);
    f->partial = xasprintf("%s.partial", f->path);
    f->fd = open(f->partial, flags | O_DIRECT, 0644);
    f->is_direct = f->fd >= 0;
    if (f->fd < 0 && errno == EINVAL)
        f->fd = open(f->partial, flags, 0644);
    if (f->fd < 0)
        return error_errno(err, STATUS_IO, "%s: cannot create", f->partial);
    /* full size at once: direct writes need not extend the file, and a full disk is noticed before the work */
    if (fallocate(f->fd, 0, 0, (off_t)part->file_bytes) && errno != EOPNOTSUPP && errno != ENOSYS)
        return error_errno(err, STATUS_IO, "%s: no room for %llu bytes", f->partial, (unsigned long long)part->file_bytes);
    if (ftruncate(f->fd, (off_t)part->file_bytes))
        return error_errno(err, STATUS_IO, "%s: cannot make it %llu bytes long", f->partial, (unsigned long long)part->file_bytes);
    pack_header_fill(s->buffer, part);
    if (f->is_direct && pwrite(f->fd, s->buffer, PACK_HEADER_BYTES, 0) < 0 && errno == EINVAL)
        f->is_direct = fcntl(f->fd, F_SETFL, fcntl(f->fd, F_GETFL) & ~O_DIRECT) != 0; /* opened so, yet cannot */
    return file_write_at(f->fd, s->buffer, PACK_HEADER_BYTES, 0, f->partial, err);
}

/* bytes page aligned, n and image_offset multiples of 4096. */
static enum status part_file_write(const struct part_file *f, const uint8_t *bytes, uint64_t n, uint64_t image_offset, struct error *err)
{
    uint64_t at = PACK_HEADER_BYTES + image_offset;
    enum status status = file_write_at(f->fd, bytes, n, at, f->partial, err);
    if (status || f->is_direct)
        return status;
    const unsigned now = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (sync_file_range(f->fd, (off_t)at, (off_t)n, now) && errno != ENOSYS && errno != ESPIPE)
        return error_errno(err, STATUS_IO, "%s: cannot write out", f->partial);
    posix_fadvise(f->fd, (off_t)at, (off_t)n, POSIX_FADV_DONTNEED);
    return STATUS_OK;
}

static enum status part_file_finish(struct part_file *f, const struct synth *s, enum status status, struct error *err)
{
    if (!status)
        status = file_publish(&f->fd, f->partial, f->path, s->dir, err);
    if (f->fd >= 0) {
        close(f->fd);
        unlink(f->partial);
    }
    free(f->partial);
    free(f->path);
    return status;
}

static uint8_t *aligned_zeros(size_t bytes)
{
    void *memory;
    CHECK(!posix_memalign(&memory, PART_ALIGN_BYTES, bytes));
    return memset(memory, 0, bytes);
}

/* --- experts: every thread makes a record, sums it up and writes it, then takes the next --- */

struct records_job {
    struct synth *synth;
    struct pack_part *part;
    const struct part_file *file;
    struct synth_fill fills[3]; /* gate, up, down */
    atomic_int next;
};

static void make_record(const struct records_job *j, int expert, uint8_t *record)
{
    const struct part_layout *layout = &j->part->layout;
    for (int m = 0; m < layout->n_tensors; m++) {
        const struct tensor_place *t = &layout->tensors[m];
        struct synth_key key = {j->synth->options->seed, PART_EXPERTS, layout->layer, expert, m};
        synth_rows(&j->fills[m], t, &key, 0, t->rows, record + t->offset, record + t->scales_offset);
        int32_t exponent = j->fills[m].exponent;
        if (t->format == FORMAT_INT4)
            memcpy(record + layout->exponents_offset + 4 * m, &exponent, 4);
    }
}

static void run_records(void *ctx, int begin, int end)
{
    (void)begin, (void)end; /* a thread each; the records are shared out one by one, because writes take unequal times */
    struct records_job *j = ctx;
    uint64_t bytes = j->part->layout.record_bytes;
    uint8_t *record = aligned_zeros(bytes);
    for (int i; !must_stop(j->synth) && (i = atomic_fetch_add(&j->next, 1)) < j->part->layout.n_records;) {
        struct error failure;
        make_record(j, i, record);
        j->part->checksums[i] = XXH3_64bits(record, bytes);
        enum status status = part_file_write(j->file, record, bytes, (uint64_t)i * bytes, &failure);
        if (status)
            fail(j->synth, status, &failure);
        else
            advance(j->synth, j->part->file, bytes, 0);
    }
    free(record);
}

static enum status write_records(struct synth *s, struct pack_part *part, const struct part_file *file)
{
    const struct part_layout *layout = &part->layout;
    struct records_job *job = xcalloc(1, sizeof *job);
    *job = (struct records_job){.synth = s, .part = part, .file = file};
    for (int m = 0; m < layout->n_tensors; m++)
        synth_fill_init(&job->fills[m], &s->config, &layout->tensors[m], s->options->skew);
    uint64_t n = RECORDS_BYTES_MAX / layout->record_bytes, threads = (uint64_t)parallel_threads();
    n = n < 1 ? 1 : n < threads ? n : threads;
    parallel_for((int)n, 1, run_records, job);
    free(job);
    return s->status;
}

/* --- tensors: threads fill a piece of the image, which is then summed up and written --- */

struct stream {
    struct synth *synth;
    struct pack_part *part;
    const struct part_file *file;
    uint64_t offset, used; /* buffer[0 .. used) belongs at image[offset ...) */
    XXH3_state_t *hash;    /* of the tensor */
};

/* Writes the whole pages of the buffer; the rest moves to its front. */
static enum status stream_flush(struct stream *stream, struct error *err)
{
    uint8_t *buffer = stream->synth->buffer;
    uint64_t n = stream->used / PART_ALIGN_BYTES * PART_ALIGN_BYTES;
    enum status status = part_file_write(stream->file, buffer, n, stream->offset, err);
    memmove(buffer, buffer + n, stream->used - n);
    stream->offset += n;
    stream->used -= n;
    if (!status)
        advance(stream->synth, stream->part->file, n, 0);
    return status;
}

/* Room for at least one of n rows; says for how many. */
static enum status stream_room(struct stream *stream, uint64_t row_bytes, int *n, struct error *err)
{
    enum status status = STATUS_OK;
    if (must_stop(stream->synth))
        return stream->synth->status;
    if (stream->used + row_bytes > STREAM_BYTES)
        status = stream_flush(stream, err);
    uint64_t rows = (STREAM_BYTES - stream->used) / row_bytes;
    CHECK(rows > 0);
    *n = (uint64_t)*n < rows ? *n : (int)rows;
    return status;
}

static void stream_take(struct stream *stream, uint64_t n)
{
    XXH3_64bits_update(stream->hash, stream->synth->buffer + stream->used, n);
    stream->used += n;
}

/* bytes NULL: zeros. */
static enum status stream_put(struct stream *stream, const uint8_t *bytes, uint64_t n, struct error *err)
{
    enum status status = STATUS_OK;
    for (uint64_t done = 0; done < n && !status;) {
        int piece = n - done < STREAM_BYTES / 2 ? (int)(n - done) : STREAM_BYTES / 2;
        if ((status = stream_room(stream, 1, &piece, err)))
            break;
        uint8_t *to = stream->synth->buffer + stream->used;
        if (bytes)
            memcpy(to, bytes + done, (size_t)piece);
        else
            memset(to, 0, (size_t)piece);
        stream_take(stream, (uint64_t)piece);
        done += (uint64_t)piece;
    }
    return status;
}

struct rows_job {
    const struct synth_fill *fill;
    const struct tensor_place *tensor;
    struct synth_key key;
    int first;
    uint8_t *data, *scales; /* of row `first` */
};

static void run_rows(void *ctx, int begin, int end)
{
    const struct rows_job *j = ctx;
    const struct tensor_place *t = j->tensor;
    synth_rows(j->fill, t, &j->key, j->first + begin, end - begin, j->data + (size_t)begin * format_row_bytes(t->format, t->cols),
               j->scales + (size_t)begin * format_scale_row_bytes(t->format, t->cols));
}

static enum status stream_tensor(struct stream *stream, int i, struct error *err)
{
    struct synth *s = stream->synth;
    const struct tensor_place *t = &stream->part->layout.tensors[i];
    uint64_t row_bytes = format_row_bytes(t->format, t->cols), scale_bytes = format_scale_row_bytes(t->format, t->cols);
    uint8_t *scales = xcalloc(t->scales_bytes + 1, 1);
    struct synth_fill fill;
    synth_fill_init(&fill, &s->config, t, s->options->skew);
    struct rows_job job = {
        .fill = &fill, .tensor = t, .key = {s->options->seed, stream->part->layout.kind, stream->part->layout.layer, i, 0}};
    CHECK(XXH3_64bits_reset(stream->hash) == XXH_OK);
    enum status status = STATUS_OK;
    for (int n; job.first < t->rows && !status; job.first += n) {
        n = t->rows - job.first;
        if ((status = stream_room(stream, row_bytes, &n, err)))
            break;
        job.data = s->buffer + stream->used;
        job.scales = scales + (uint64_t)job.first * scale_bytes;
        parallel_for(n, 1 + (int)(ROWS_BYTES / row_bytes), run_rows, &job);
        stream_take(stream, (uint64_t)n * row_bytes);
    }
    uint64_t begin = t->scales_bytes ? t->scales_offset - t->offset : t->extent_bytes;
    if (!status)
        status = stream_put(stream, NULL, begin - t->data_bytes, err);
    if (!status)
        status = stream_put(stream, scales, t->scales_bytes, err);
    if (!status)
        status = stream_put(stream, NULL, t->extent_bytes - begin - t->scales_bytes, err);
    stream->part->checksums[i] = XXH3_64bits_digest(stream->hash);
    free(scales);
    return status;
}

static enum status write_tensors(struct synth *s, struct pack_part *part, const struct part_file *file, struct error *err)
{
    struct stream stream = {.synth = s, .part = part, .file = file, .hash = XXH3_createState()};
    CHECK(stream.hash);
    enum status status = STATUS_OK;
    for (int i = 0; i < part->layout.n_tensors && !status; i++)
        status = stream_tensor(&stream, i, err);
    if (!status)
        status = stream_put(&stream, NULL, part->layout.bytes - stream.offset - stream.used, err);
    if (!status)
        status = stream_flush(&stream, err);
    CHECK(status || (stream.offset == part->layout.bytes && !stream.used));
    XXH3_freeState(stream.hash);
    return status;
}

static enum status write_part(struct synth *s, struct pack_part *part)
{
    struct part_file file;
    struct error failure;
    enum status status = part_file_create(&file, s, part, &failure);
    if (!status && part->layout.kind == PART_EXPERTS) {
        status = write_records(s, part, &file);
    } else if (!status) {
        status = write_tensors(s, part, &file, &failure);
    }
    status = part_file_finish(&file, s, status, &failure);
    if (status)
        fail(s, status, &failure); /* unless a thread said so already */
    else
        advance(s, part->file, PACK_HEADER_BYTES, 1);
    return s->status;
}

/* --- the plan: everything that is known before a byte is written --- */

/* docs/FORMATS.md, "Precisions". */
static enum weight_format stored_format(enum precision precision, enum tensor_class class)
{
    if (class == TENSOR_FLOAT)
        return FORMAT_F32;
    return precision == PRECISION_INT4 && class == TENSOR_EXPERT ? FORMAT_INT4 : FORMAT_INT8;
}

static enum status plan_part(struct synth *s, struct pack_part *part, struct error *err)
{
    struct tensor_spec specs[PART_TENSORS_MAX];
    enum weight_format formats[PART_TENSORS_MAX];
    struct part_layout layout;
    int n = part_tensor_specs(&s->config, part->layout.kind, part->layout.layer, 0, specs);
    for (int i = 0; i < n; i++)
        formats[i] = stored_format(s->options->precision, specs[i].class);
    enum status status = part_layout_init(&layout, &s->config, part->layout.kind, part->layout.layer, formats, err);
    if (status)
        return status;
    pack_set_layout(part, &layout);
    s->total_bytes += part->file_bytes;
    return STATUS_OK;
}

static enum status plan(struct synth *s, struct error *err)
{
    const struct synth_shape *shape = &s->options->shape;
    if (shape->n_dense_layers > shape->n_layers)
        return error_set(err, STATUS_INVALID, "%d dense layers are asked for, but only %d layers in all", shape->n_dense_layers,
                         shape->n_layers);
    if (shape->vocab_size < synth_shape_vocab_min(shape))
        return error_set(err, STATUS_INVALID, "a vocabulary of %d is too small: bytes and special tokens need %d", shape->vocab_size,
                         synth_shape_vocab_min(shape));
    s->copies[0] = synth_config_text(shape);
    enum status status = model_config_parse(&s->config, s->copies[0], strlen(s->copies[0]), "what is asked for", err);
    if (status)
        return status;
    s->copies[1] = synth_tokenizer_text(shape);
    s->copies[2] = synth_generation_text(shape);
    s->pack = pack_new(s->dir, &s->config, s->options->precision);
    for (int i = 0; i < N_COPIES; i++)
        s->pack->copies[s->pack->n_copies++] =
            (struct pack_copy){copy_names[i], strlen(s->copies[i]), XXH3_64bits(s->copies[i], strlen(s->copies[i]))};
    for (int i = 0; i < s->pack->n_parts && !status; i++)
        status = plan_part(s, &s->pack->parts[i], err);
    return status;
}

/* --- the target --- */

static int is_there(const char *dir, const char *name)
{
    char *path = xasprintf("%s/%s", dir, name);
    int found = !access(path, F_OK);
    free(path);
    return found;
}

static int is_empty(const char *dir)
{
    DIR *d = opendir(dir);
    int found = !d;
    for (struct dirent *entry; d && (entry = readdir(d));)
        found |= strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") && strcmp(entry->d_name, "lost+found") &&
                 strcmp(entry->d_name, PACK_JOURNAL ".partial");
    if (d)
        closedir(d);
    return !found;
}

static void remove_file(const struct synth *s, const char *name)
{
    char *partial = xasprintf("%s/%s.partial", s->dir, name);
    unlink(partial);
    partial[strlen(partial) - strlen(".partial")] = 0;
    unlink(partial);
    free(partial);
}

/* The manifest first, so that at no moment half a pack looks whole. */
static void remove_files(const struct synth *s)
{
    remove_file(s, PACK_MANIFEST);
    for (int i = 0; i < N_COPIES; i++)
        remove_file(s, copy_names[i]);
    for (int i = 0; i < s->pack->n_parts; i++)
        remove_file(s, s->pack->parts[i].file);
}

/* A journal marks the folder as unfinished, names what it will be, and its lock keeps others out. Nothing is entered in it: writing a part
 * again is as fast as verifying it. */
static enum status open_target(struct synth *s, struct error *err)
{
    char source[33], *text = xasprintf("hearth synth %llu %.17g\n%s", (unsigned long long)s->options->seed, s->options->skew, s->copies[0]);
    identity_text(source, text, strlen(text));
    free(text);
    s->is_dir_ours = !mkdir(s->dir, 0755);
    if (!s->is_dir_ours && errno != EEXIST)
        return error_errno(err, STATUS_IO, "%s: cannot create the folder", s->dir);
    if (!is_there(s->dir, PACK_JOURNAL)) {
        if (!is_empty(s->dir))
            return error_set(err, STATUS_INVALID, "%s: is not an empty folder; give a new one", s->dir);
        enum status status = journal_create(s->dir, source, s->options->precision, err);
        if (status)
            return status;
    }
    return journal_open(&s->journal, s->dir, source, s->options->precision, err);
}

static enum status check_space(const struct synth *s, struct error *err)
{
    struct statvfs fs;
    if (statvfs(s->dir, &fs))
        return error_errno(err, STATUS_IO, "%s: cannot ask for its free space", s->dir);
    uint64_t needed = SPACE_MARGIN_BYTES + s->total_bytes, n_free = (uint64_t)fs.f_bavail * fs.f_frsize;
    for (int i = 0; i < N_COPIES; i++)
        needed += s->pack->copies[i].bytes;
    for (int i = 0; i < s->pack->n_parts; i++)
        needed += 24 * (uint64_t)pack_part_n_checksums(&s->pack->parts[i]); /* its lines in the manifest */
    if (needed <= n_free)
        return STATUS_OK;
    return error_set(err, STATUS_IO, "%s: the pack needs %.2f GB (%llu bytes), %.2f GB (%llu bytes) are free; ask for fewer --layers",
                     s->dir, (double)needed / 1e9, (unsigned long long)needed, (double)n_free / 1e9, (unsigned long long)n_free);
}

static enum status write_pack(struct synth *s, struct error *err)
{
    remove_files(s);
    enum status status = check_space(s, err);
    if (status)
        return status;
    s->buffer = aligned_zeros(STREAM_BYTES);
    for (int i = 0; i < s->pack->n_parts && !status; i++)
        status = write_part(s, &s->pack->parts[i]);
    for (int i = 0; i < N_COPIES && !status; i++)
        status = file_write_atomic(s->dir, copy_names[i], s->copies[i], strlen(s->copies[i]), err);
    if (status)
        return status;
    char *manifest = pack_manifest_text(s->pack);
    status = file_write_atomic(s->dir, PACK_MANIFEST, manifest, strlen(manifest), err);
    free(manifest);
    return status ? status : journal_finish(&s->journal, err);
}

static void tell_result(const struct synth *s, struct synth_result *result)
{
    *result = (struct synth_result){.pack_bytes = s->total_bytes};
    memcpy(result->identity, s->pack->identity, sizeof result->identity);
    for (int i = 0; i < s->pack->n_parts; i++)
        if (s->pack->parts[i].layout.kind == PART_EXPERTS)
            result->expert_bytes += s->pack->parts[i].layout.bytes;
}

static void release(struct synth *s)
{
    for (int i = 0; i < N_COPIES; i++)
        free(s->copies[i]);
    free(s->buffer);
    journal_close(&s->journal);
    pack_close(&s->pack);
    pthread_mutex_destroy(&s->lock);
}

enum status synth_pack(const char *dir, const struct synth_options *options, struct synth_result *result, struct error *err)
{
    CHECK(options->precision == PRECISION_INT4 || options->precision == PRECISION_INT8);
    struct synth s = {.options = options, .dir = dir, .journal = {.fd = -1}, .lock = PTHREAD_MUTEX_INITIALIZER, .err = err};
    enum status status = plan(&s, err);
    if (!status)
        status = open_target(&s, err);
    if (!status && (status = write_pack(&s, err))) {
        remove_files(&s);
        remove_file(&s, PACK_JOURNAL);
    }
    if (status && s.is_dir_ours)
        rmdir(dir);
    if (!status) {
        tell_result(&s, result);
        advance(&s, "", 0, 0);
    }
    release(&s);
    return status;
}
