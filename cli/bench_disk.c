/* hearth bench disk: what the drive gives to random reads as the expert store makes them: O_DIRECT, several in flight, records in pieces.
 * Every line of the table is measured several times in turn with the others, so that all see the same noise; rates are medians. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/commands.h"
#include "common/budget.h"
#include "common/check.h"
#include "common/huge_pages.h"
#include "common/clock.h"
#include "common/memory.h"
#include "model/pack.h"
#include "node/block_reader.h"

struct disk_options {
    const char *reader, *emulate_disk;
    int64_t depth, piece, rounds;
    int small_pages;
    double seconds;
};

enum { PIECE_BYTES_MAX = 64 << 20, ROUNDS_MAX = 99, POINTS_MAX = 32 };
static const uint64_t CLOSE_NS = 10000000000;

static const struct option_row rows[] = {
    {"reader", OPTION_CHOICE, offsetof(struct disk_options, reader), "auto", 0, 0, "auto|io_uring|pread", "KIND",
     "how to read; auto: io_uring where it is allowed"},
    {"depth", OPTION_INT, offsetof(struct disk_options, depth), "0", 0, BLOCK_READS_MAX, NULL, "N",
     "only this number of reads in flight; 0: 1, 2, 4, 8 and 16"},
    {"piece", OPTION_SIZE, offsetof(struct disk_options, piece), "0", 0, PIECE_BYTES_MAX, NULL, "SIZE",
     "only reads of this size, a multiple of 4K; 0: 256K, 1M and 4M"},
    {"seconds", OPTION_NUMBER, offsetof(struct disk_options, seconds), "0.5", 0.01, 3600, NULL, "T", "time for each measurement"},
    {"rounds", OPTION_INT, offsetof(struct disk_options, rounds), "3", 1, ROUNDS_MAX, NULL, "N", "measurements of each line"},
    {"small-pages", OPTION_FLAG, offsetof(struct disk_options, small_pages), NULL, 0, 0, NULL, NULL,
     "read into memory without huge pages, as other programs do"},
    {"emulate-disk", OPTION_TEXT, offsetof(struct disk_options, emulate_disk), NULL, 0, 0, NULL, "GB/s,us[,us]",
     "as if the drive had this rate, latency and jitter"},
};

/* ---- what is read ---- */

/* Records of one file, all of one size. record_bytes 0: no records, reads begin at any block. */
struct extent {
    int fd;
    uint64_t begin, bytes, record_bytes;
};

struct extents {
    struct extent *list;
    int n;
    uint64_t bytes;
};

static enum status extents_add(struct extents *e, const char *path, uint64_t begin, uint64_t bytes, uint64_t record_bytes,
                               struct error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0 && errno == EINVAL)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: this file system has no O_DIRECT, and a rate through the page cache says nothing of the drive", path);
    if (fd < 0)
        return error_errno(err, STATUS_IO, "%s", path);
    e->list = xrealloc(e->list, (size_t)(e->n + 1) * sizeof *e->list);
    e->list[e->n++] = (struct extent){fd, begin, bytes, record_bytes};
    e->bytes += bytes;
    return STATUS_OK;
}

/* The experts of the layers whose files are there. */
static enum status open_pack(struct extents *e, const char *dir, struct error *err)
{
    struct pack *pack;
    enum status status = pack_open(&pack, dir, err);
    if (status)
        return error_wrap(err, "a folder must be a pack");
    for (int i = 0; i < pack->n_parts && !status; i++) {
        const struct part_layout *layout = &pack->parts[i].layout;
        if (layout->kind != PART_EXPERTS)
            continue;
        char *file = xasprintf("%s/%s", dir, pack->parts[i].file);
        if (!access(file, F_OK))
            status = extents_add(e, file, PACK_HEADER_BYTES, layout->record_bytes * (uint64_t)layout->n_records, layout->record_bytes, err);
        free(file);
    }
    pack_close(&pack);
    return status || e->n ? status : error_set(err, STATUS_NOT_FOUND, "%s has no expert files", dir);
}

static enum status extents_open(struct extents *e, const char *path, struct error *err)
{
    struct stat s;
    if (stat(path, &s))
        return error_errno(err, STATUS_IO, "%s", path);
    if (S_ISDIR(s.st_mode))
        return open_pack(e, path, err);
    if (!S_ISREG(s.st_mode))
        return error_set(err, STATUS_INVALID, "%s is neither a file nor a folder", path);
    return extents_add(e, path, 0, (uint64_t)s.st_size / BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES, 0, err);
}

static void extents_close(struct extents *e)
{
    for (int i = 0; i < e->n; i++)
        close(e->list[i].fd);
    free(e->list);
}

/* Goes through random records piece by piece. */
struct walk {
    const struct extents *extents;
    uint64_t random, offset, left;
    int fd;
};

static uint64_t random_below(struct walk *w, uint64_t n)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (w->random >> 11) % n;
}

static void next_piece(struct walk *w, uint32_t piece, struct block_read *read)
{
    if (!w->left) {
        const struct extent *e = &w->extents->list[random_below(w, (uint64_t)w->extents->n)];
        uint64_t step = e->record_bytes ? e->record_bytes : BLOCK_ALIGN_BYTES;
        w->left = e->record_bytes ? e->record_bytes : piece;
        w->offset = e->begin + random_below(w, (e->bytes - w->left) / step + 1) * step;
        w->fd = e->fd;
    }
    read->fd = w->fd;
    read->offset = w->offset;
    read->bytes = w->left < piece ? (uint32_t)w->left : piece;
    w->offset += read->bytes;
    w->left -= read->bytes;
}

/* ---- one measurement ---- */

/* A line of the table. */
struct point {
    uint32_t piece;
    int depth;
    int n_rounds, n_latencies;
    double rates[ROUNDS_MAX]; /* GB/s */
    double bytes, cpu_seconds;
    float *latencies; /* microseconds, of all rounds */
};

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static uint64_t now_ns(void)
{
    return clock_now_ns(clock_monotonic());
}

static enum status take_read(struct point *p, const struct block_read *read, struct error *err)
{
    if (read->result != (int32_t)read->bytes)
        return error_set(err, STATUS_IO, "reading %u bytes at %llu: %s", read->bytes, (unsigned long long)read->offset,
                         read->result < 0 ? strerror(-read->result) : "the file has become shorter");
    if (!(p->n_latencies & (p->n_latencies - 1))) /* doubles */
        p->latencies = xrealloc(p->latencies, (size_t)(p->n_latencies ? 2 * p->n_latencies : 1) * sizeof *p->latencies);
    p->latencies[p->n_latencies++] = (float)(read->done_ns - read->submitted_ns) * 1e-3f;
    p->bytes += read->bytes;
    return STATUS_OK;
}

/* Depth reads in flight until the time is up, then none. After an error too, unless reads do not end. */
static enum status measure(struct point *p, struct block_reader *reader, struct walk *walk, uint8_t *memory, double seconds,
                           struct error *err)
{
    static struct block_read reads[BLOCK_READS_MAX]; /* outlive us: after an error some may still be in flight */
    struct block_read *done[BLOCK_READS_MAX];
    double cpu = cpu_seconds(), bytes = p->bytes;
    uint64_t start = now_ns(), now = start, end = start + (uint64_t)(seconds * 1e9);
    enum status status = STATUS_OK;
    int n_free = p->depth, n_flying = 0;
    for (int i = 0; i < p->depth; i++) {
        reads[i] = (struct block_read){.into = memory + (size_t)i * p->piece};
        done[i] = &reads[i];
    }
    walk->left = 0;
    do {
        for (int i = 0; i < n_free && now < end && !status; i++, n_flying++) {
            next_piece(walk, p->piece, done[i]);
            int rc = reader->submit(reader, done[i]);
            if (rc)
                return error_set(err, STATUS_IO, "cannot start a read: %s", strerror(-rc));
        }
        n_free = reader->reap(reader, done, p->depth, CLOSE_NS);
        now = now_ns();
        if (!n_free)
            return error_set(err, STATUS_TIMEOUT, "the drive has not answered for %d seconds", (int)(CLOSE_NS / 1000000000));
        n_flying -= n_free;
        for (int i = 0; i < n_free && !status; i++)
            status = take_read(p, done[i], err);
    } while (n_flying || (now < end && !status));
    p->rates[p->n_rounds++] = (p->bytes - bytes) / (double)(now - start);
    p->cpu_seconds += cpu_seconds() - cpu;
    return status;
}

/* ---- the table ---- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double median_rate(struct point *p)
{
    qsort(p->rates, (size_t)p->n_rounds, sizeof *p->rates, compare_doubles);
    return p->rates[p->n_rounds / 2];
}

static const char *size_text(uint64_t bytes, char out[32])
{
    snprintf(out, 32, bytes % (1 << 20) ? "%lluK" : "%lluM", (unsigned long long)(bytes % (1 << 20) ? bytes >> 10 : bytes >> 20));
    return out;
}

static void print_point(struct point *p)
{
    char piece[32];
    qsort(p->latencies, (size_t)p->n_latencies, sizeof *p->latencies, compare_floats);
    printf("%8s %6d %8.2f %9.0f %9.0f %10.3f\n", size_text(p->piece, piece), p->depth, median_rate(p), p->latencies[p->n_latencies / 2],
           p->latencies[(int)((double)p->n_latencies * 0.99)], p->cpu_seconds * 1e9 / p->bytes);
}

/* Of those within 5 % of the fastest, which is noise, the one with the least in flight: a read that is suddenly urgent waits behind so
 * much. */
static void print_best(struct point *points, int n)
{
    double fastest = 0;
    const struct point *best = NULL;
    char piece[32];
    for (int i = 0; i < n; i++)
        fastest = fmax(fastest, median_rate(&points[i]));
    for (int i = 0; i < n; i++) {
        const struct point *p = &points[i];
        if (median_rate(&points[i]) >= 0.95 * fastest &&
            (!best || (uint64_t)p->piece * (uint64_t)p->depth < (uint64_t)best->piece * (uint64_t)best->depth))
            best = p;
    }
    printf("\nbest: pieces of %s, %d in flight: %.2f GB/s (the least in flight within 5 %% of the fastest, %.2f GB/s)\n",
           size_text(best->piece, piece), best->depth, best->rates[best->n_rounds / 2], fastest);
}

/* Lines for what was asked; pieces larger than a record say nothing new, and there is a line only where one fits in the file. */
static int choose_points(struct point *points, const struct disk_options *o, const struct extents *e)
{
    static const uint32_t pieces[] = {256 << 10, 1 << 20, 4 << 20};
    static const int depths[] = {1, 2, 4, 8, 16};
    uint64_t piece_max = PIECE_BYTES_MAX;
    int n = 0;
    for (int i = 0; i < e->n; i++) {
        uint64_t most = e->list[i].record_bytes ? e->list[i].record_bytes : e->list[i].bytes;
        piece_max = most < piece_max ? most : piece_max;
    }
    uint32_t before = 0;
    for (int k = 0; k < (o->piece ? 1 : 3); k++) {
        uint32_t piece = o->piece ? (uint32_t)o->piece : pieces[k];
        piece = piece < piece_max ? piece : (uint32_t)piece_max;
        for (int i = 0; i < (o->depth ? 1 : 5) && piece > before; i++)
            points[n++] = (struct point){.piece = piece, .depth = o->depth ? (int)o->depth : depths[i]};
        before = piece;
    }
    CHECK(n <= POINTS_MAX);
    return n;
}

/* Huge pages, as the store's arena. */
static uint8_t *map_memory(size_t bytes, int has_small_pages)
{
    uint8_t *memory = huge_pages_map(bytes, !has_small_pages);
    if (memory)
        memset(memory, 1, bytes);
    return memory;
}

static enum status open_reader(struct block_reader **reader, const struct disk_options *o, int depth, struct error *err)
{
    struct emulated_drive drive;
    struct error why;
    if (emulated_drive_parse(o->emulate_disk, &drive, &why))
        return command_usage(err, "--emulate-disk: %s", why.text);
    enum status status = block_reader_open(reader, o->reader, depth, err);
    if (!status)
        *reader = emulated_reader_new(reader, &drive, 1);
    return status;
}

static enum status bench(struct point *points, int n, const struct extents *e, const struct disk_options *o, const char *path,
                         struct error *err)
{
    struct block_reader *reader = NULL;
    struct walk walk = {.extents = e, .random = 88172645463325252u};
    size_t bytes = 0;
    int depth = 0;
    char total[32];
    for (int i = 0; i < n; i++) {
        size_t needed = (size_t)points[i].depth * points[i].piece;
        bytes = needed > bytes ? needed : bytes;
        depth = points[i].depth > depth ? points[i].depth : depth;
    }
    uint8_t *memory = map_memory(bytes, o->small_pages); /* never unmapped: the process ends here, and reads that hang would write to it */
    if (!memory)
        return error_errno(err, STATUS_NO_MEMORY, "cannot map %zu MiB", bytes >> 20);
    enum status status = open_reader(&reader, o, depth, err);
    if (status)
        return status;
    printf("%s: %s%s by %s, O_DIRECT at random places; %d times %g s a line, medians\n\n", path, bytes_text(e->bytes, total),
           e->list[0].record_bytes ? " of experts" : "", reader->name, (int)o->rounds, o->seconds);
    printf("%8s %6s %8s %9s %9s %10s\n", "piece", "depth", "GB/s", "p50 us", "p99 us", "CPU s/GB");
    fflush(stdout);
    for (int round = 0; round < o->rounds && !status; round++)
        for (int i = 0; i < n && !status; i++)
            status = measure(&points[i], reader, &walk, memory, o->seconds, err);
    reader->close(reader, CLOSE_NS);
    for (int i = 0; i < n && !status; i++)
        print_point(&points[i]);
    if (!status && n > 1)
        print_best(points, n);
    return status;
}

static enum status run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)n_arguments;
    const struct disk_options *o = options;
    static struct point points[POINTS_MAX];
    struct extents extents = {0};
    if (o->piece % BLOCK_ALIGN_BYTES)
        return command_usage(err, "--piece: a multiple of %d bytes, not %lld", BLOCK_ALIGN_BYTES, (long long)o->piece);
    enum status status = extents_open(&extents, arguments[0], err);
    int n = status ? 0 : choose_points(points, o, &extents);
    if (!status && !n)
        status = error_set(err, STATUS_INVALID, "%s is empty", arguments[0]);
    if (!status)
        status = bench(points, n, &extents, o, arguments[0], err);
    for (int i = 0; i < n; i++)
        free(points[i].latencies);
    extents_close(&extents);
    return status;
}

const struct command bench_disk_command = {
    .name = "bench disk",
    .arguments = "FILE|PACK",
    .summary = "Measure random reads of a file, or of a pack's experts, by size and number in flight.",
    .details = "Reads past the page cache and writes nothing. Take a file much larger than the drive's own cache; other programs disturb "
               "the figures.",
    .options = rows,
    .n_options = sizeof rows / sizeof *rows,
    .options_bytes = sizeof(struct disk_options),
    .n_arguments_min = 1,
    .n_arguments_max = 1,
    .run = run,
};
