#include "model/synth_part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/check.h"
#include "common/memory.h"
#include "kernels/parallel.h"
#include "model/files.h"
#include "model/synth_weights.h"

enum {
    STREAM_BYTES = 32 << 20,     /* tensors go to the file in pieces of this size */
    RECORDS_BYTES_MAX = 1 << 30, /* of all threads together */
    ROWS_BYTES = 64 << 10,       /* a thread's least share of a tensor */
};

/* --- what all threads share --- */

static void fail(struct synth_run *run, enum status status, const struct error *failure)
{
    pthread_mutex_lock(&run->lock);
    if (!run->status) {
        run->status = status;
        error_set(run->err, status, "%s", failure->text);
        atomic_store(&run->has_failed, 1);
    }
    pthread_mutex_unlock(&run->lock);
}

void synth_advance(struct synth_run *run, const char *file, uint64_t bytes, int is_part_done)
{
    pthread_mutex_lock(&run->lock);
    run->done_bytes += bytes;
    struct synth_progress progress = {file, run->done_bytes, run->total_bytes, is_part_done};
    if (run->options->report)
        run->options->report(run->options->ctx, &progress);
    pthread_mutex_unlock(&run->lock);
}

static int must_stop(struct synth_run *run)
{
    if (run->options->stop && __atomic_load_n(run->options->stop, __ATOMIC_RELAXED) && !atomic_load(&run->has_failed)) {
        struct error stopped;
        error_set(&stopped, STATUS_CANCELLED, "stopped; what was written is removed");
        fail(run, STATUS_CANCELLED, &stopped);
    }
    return atomic_load(&run->has_failed);
}

/* --- a part's file --- */

struct part_file {
    int fd, is_direct;
    char *path, *partial;
};

/* Direct where the file system can: a pack is larger than memory, and its pages would push out everything else. */
static enum status part_file_create(struct part_file *f, const struct synth_run *run, const struct pack_part *part, struct error *err)
{
    int flags = O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
    f->path = xasprintf("%s/%s", run->dir, part->file);
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
    pack_header_fill(run->buffer, part);
    if (f->is_direct && pwrite(f->fd, run->buffer, PACK_HEADER_BYTES, 0) < 0 && errno == EINVAL)
        f->is_direct = fcntl(f->fd, F_SETFL, fcntl(f->fd, F_GETFL) & ~O_DIRECT) != 0; /* opened so, yet cannot */
    return file_write_at(f->fd, run->buffer, PACK_HEADER_BYTES, 0, f->partial, err);
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

static enum status part_file_finish(struct part_file *f, const struct synth_run *run, enum status status, struct error *err)
{
    if (!status)
        status = file_publish(&f->fd, f->partial, f->path, run->dir, err);
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

uint8_t *synth_buffer(void)
{
    return aligned_zeros(STREAM_BYTES);
}

/* --- experts: every thread makes a record, sums it up and writes it, then takes the next --- */

struct records_job {
    struct synth_run *run;
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
        struct synth_key key = {j->run->options->seed, PART_EXPERTS, layout->layer, expert, m};
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
    for (int i; !must_stop(j->run) && (i = atomic_fetch_add(&j->next, 1)) < j->part->layout.n_records;) {
        struct error failure;
        make_record(j, i, record);
        j->part->checksums[i] = XXH3_64bits(record, bytes);
        enum status status = part_file_write(j->file, record, bytes, (uint64_t)i * bytes, &failure);
        if (status)
            fail(j->run, status, &failure);
        else
            synth_advance(j->run, j->part->file, bytes, 0);
    }
    free(record);
}

static enum status write_records(struct synth_run *run, struct pack_part *part, const struct part_file *file)
{
    const struct part_layout *layout = &part->layout;
    struct records_job *job = xcalloc(1, sizeof *job);
    *job = (struct records_job){.run = run, .part = part, .file = file};
    for (int m = 0; m < layout->n_tensors; m++)
        synth_fill_init(&job->fills[m], &run->config, &layout->tensors[m], run->options->shape.skew);
    uint64_t n = RECORDS_BYTES_MAX / layout->record_bytes, threads = (uint64_t)parallel_threads();
    n = n < 1 ? 1 : n < threads ? n : threads;
    parallel_for((int)n, 1, run_records, job);
    free(job);
    return run->status;
}

/* --- tensors: threads fill a piece of the image, which is then summed up and written --- */

struct stream {
    struct synth_run *run;
    struct pack_part *part;
    const struct part_file *file;
    uint64_t offset, used; /* buffer[0 .. used) belongs at image[offset ...) */
    XXH3_state_t *hash;    /* of the tensor */
};

/* Writes the whole pages of the buffer; the rest moves to its front. */
static enum status stream_flush(struct stream *stream, struct error *err)
{
    uint8_t *buffer = stream->run->buffer;
    uint64_t n = stream->used / PART_ALIGN_BYTES * PART_ALIGN_BYTES;
    enum status status = part_file_write(stream->file, buffer, n, stream->offset, err);
    memmove(buffer, buffer + n, stream->used - n);
    stream->offset += n;
    stream->used -= n;
    if (!status)
        synth_advance(stream->run, stream->part->file, n, 0);
    return status;
}

/* Room for at least one of n rows; says for how many. */
static enum status stream_room(struct stream *stream, uint64_t row_bytes, int *n, struct error *err)
{
    enum status status = STATUS_OK;
    if (must_stop(stream->run))
        return stream->run->status;
    if (stream->used + row_bytes > STREAM_BYTES)
        status = stream_flush(stream, err);
    uint64_t rows = (STREAM_BYTES - stream->used) / row_bytes;
    CHECK(rows > 0);
    *n = (uint64_t)*n < rows ? *n : (int)rows;
    return status;
}

static void stream_take(struct stream *stream, uint64_t n)
{
    XXH3_64bits_update(stream->hash, stream->run->buffer + stream->used, n);
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
        uint8_t *to = stream->run->buffer + stream->used;
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
    struct synth_run *run = stream->run;
    const struct tensor_place *t = &stream->part->layout.tensors[i];
    uint64_t row_bytes = format_row_bytes(t->format, t->cols), scale_bytes = format_scale_row_bytes(t->format, t->cols);
    uint8_t *scales = xcalloc(t->scales_bytes + 1, 1);
    struct synth_fill fill;
    synth_fill_init(&fill, &run->config, t, run->options->shape.skew);
    struct rows_job job = {
        .fill = &fill, .tensor = t, .key = {run->options->seed, stream->part->layout.kind, stream->part->layout.layer, i, 0}};
    CHECK(XXH3_64bits_reset(stream->hash) == XXH_OK);
    enum status status = STATUS_OK;
    for (int n; job.first < t->rows && !status; job.first += n) {
        n = t->rows - job.first;
        if ((status = stream_room(stream, row_bytes, &n, err)))
            break;
        job.data = run->buffer + stream->used;
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

static enum status write_tensors(struct synth_run *run, struct pack_part *part, const struct part_file *file, struct error *err)
{
    struct stream stream = {.run = run, .part = part, .file = file, .hash = XXH3_createState()};
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

enum status synth_part(struct synth_run *run, struct pack_part *part)
{
    struct part_file file;
    struct error failure;
    enum status status = part_file_create(&file, run, part, &failure);
    if (!status && part->layout.kind == PART_EXPERTS) {
        status = write_records(run, part, &file);
    } else if (!status) {
        status = write_tensors(run, part, &file, &failure);
    }
    status = part_file_finish(&file, run, status, &failure);
    if (status)
        fail(run, status, &failure); /* unless a thread said so already */
    else
        synth_advance(run, part->file, PACK_HEADER_BYTES, 1);
    return run->status;
}
