/* hearth bench disk: what the drive gives to random reads as the expert store makes them: O_DIRECT, several in flight, records in pieces.
 * Every line of the table is measured several times in turn with the others, so that all see the same noise; rates and latencies are
 * medians. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/commands.h"
#include "common/budget.h"
#include "common/check.h"
#include "common/memory.h"
#include "node/drive_files.h"

struct disk_options {
    const char *reader, *emulate_disk;
    int64_t depth, piece, rounds;
    int small_pages;
    double seconds;
};

enum { PIECE_BYTES_MAX = 64 << 20, ROUNDS_MAX = 99, POINTS_MAX = 32, PLACES_MAX = 1 << 18 };
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

/* Records of a pack's experts, or a file without any. */
static enum status open_files(struct drive_files *files, const char *path, struct error *err)
{
    struct stat st;
    int is_folder = !stat(path, &st) && S_ISDIR(st.st_mode);
    enum status status = is_folder ? drive_files_open(files, path, NULL, err) : drive_files_open_file(files, path, err);
    if (status)
        return is_folder ? error_wrap(err, "a folder must be a pack") : status;
    if (is_folder && !files->is_pack)
        status = error_set(err, STATUS_INVALID, "%s: a folder must be a pack", path);
    else if (!files->n_extents)
        status = error_set(err, STATUS_INVALID, "%s is empty", path);
    for (int i = 0; i < files->n_files && !status; i++)
        if (files->files[i].direct_errno)
            status = error_set(err, STATUS_UNSUPPORTED,
                               "%s: O_DIRECT is not possible here (%s), and a rate through the page cache says nothing of the drive",
                               files->files[i].path, strerror(files->files[i].direct_errno));
    if (status)
        drive_files_close(files);
    return status;
}

/* Where a file without records is read: pieces, all over it. */
static struct drive_extent *cut(const struct drive_extent *file, uint32_t piece, int *n)
{
    uint64_t most = file->bytes / piece;
    *n = most < PLACES_MAX ? (int)most : PLACES_MAX;
    uint64_t step = file->bytes / (uint64_t)*n / BLOCK_ALIGN_BYTES * BLOCK_ALIGN_BYTES;
    struct drive_extent *places = xcalloc((size_t)*n, sizeof *places);
    for (int i = 0; i < *n; i++) {
        places[i] = *file;
        places[i].offset += (uint64_t)i * step;
        places[i].bytes = piece;
    }
    return places;
}

/* ---- one measurement ---- */

/* A line of the table. */
struct point {
    uint32_t piece;
    int depth, n_rounds;
    double rates[ROUNDS_MAX], p50_us[ROUNDS_MAX], p99_us[ROUNDS_MAX]; /* GB/s, latencies of the round */
    double bytes, cpu_seconds;
};

static enum status measure(struct point *p, struct block_reader *reader, const struct drive_files *files, const struct disk_options *o,
                           uint64_t seed, struct error *err)
{
    struct drive_load load = {.extents = files->extents,
                              .n_extents = files->n_extents,
                              .piece_bytes = p->piece,
                              .depth = p->depth,
                              .time_ns = (uint64_t)(o->seconds * 1e9),
                              .seed = seed,
                              .has_small_pages = o->small_pages};
    struct drive_extent *places = files->is_pack ? NULL : cut(files->extents, p->piece, &load.n_extents);
    if (places)
        load.extents = places;
    struct drive_rate rate = {0};
    enum status status = drive_rate_measure(&rate, reader, &load, err);
    free(places);
    p->rates[p->n_rounds] = rate.bytes_per_second / 1e9;
    p->p50_us[p->n_rounds] = (double)rate.p50_ns / 1e3;
    p->p99_us[p->n_rounds++] = (double)rate.p99_ns / 1e3;
    p->bytes += (double)rate.bytes;
    p->cpu_seconds += (double)rate.cpu_ns / 1e9;
    return status;
}

/* ---- the table ---- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    return values[n / 2];
}

static const char *size_text(uint64_t bytes, char out[32])
{
    snprintf(out, 32, bytes % (1 << 20) ? "%lluK" : "%lluM", (unsigned long long)(bytes % (1 << 20) ? bytes >> 10 : bytes >> 20));
    return out;
}

static void print_point(struct point *p)
{
    char piece[32];
    printf("%8s %6d %8.2f %9.0f %9.0f %10.3f\n", size_text(p->piece, piece), p->depth, median(p->rates, p->n_rounds),
           median(p->p50_us, p->n_rounds), median(p->p99_us, p->n_rounds), p->cpu_seconds * 1e9 / p->bytes);
}

/* Of those within 5 % of the fastest, which is noise, the one with the least in flight: a read that is suddenly urgent waits behind so
 * much. */
static void print_best(struct point *points, int n)
{
    double fastest = 0;
    const struct point *best = NULL;
    char piece[32];
    for (int i = 0; i < n; i++)
        fastest = fmax(fastest, median(points[i].rates, points[i].n_rounds));
    for (int i = 0; i < n; i++) {
        struct point *p = &points[i];
        if (median(p->rates, p->n_rounds) >= 0.95 * fastest &&
            (!best || (uint64_t)p->piece * (uint64_t)p->depth < (uint64_t)best->piece * (uint64_t)best->depth))
            best = p;
    }
    printf("\nbest: pieces of %s, %d in flight: %.2f GB/s (the least in flight within 5 %% of the fastest, %.2f GB/s)\n",
           size_text(best->piece, piece), best->depth, best->rates[best->n_rounds / 2], fastest);
}

/* Lines for what was asked; pieces larger than a record say nothing new, and there is a line only where one fits in the file. */
static int choose_points(struct point *points, const struct disk_options *o, const struct drive_files *files)
{
    static const uint32_t pieces[] = {256 << 10, 1 << 20, 4 << 20};
    static const int depths[] = {1, 2, 4, 8, 16};
    uint64_t piece_max = PIECE_BYTES_MAX;
    int n = 0;
    for (int i = 0; i < files->n_extents; i++)
        piece_max = files->extents[i].bytes < piece_max ? files->extents[i].bytes : piece_max;
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

static enum status bench(struct point *points, int n, const struct drive_files *files, const struct disk_options *o, const char *path,
                         struct error *err)
{
    struct block_reader *reader = NULL;
    uint64_t bytes = 0;
    int depth = 0;
    char total[32];
    for (int i = 0; i < files->n_extents; i++)
        bytes += files->extents[i].bytes;
    for (int i = 0; i < n; i++)
        depth = points[i].depth > depth ? points[i].depth : depth;
    enum status status = open_reader(&reader, o, depth, err);
    if (status)
        return status;
    printf("%s: %s%s by %s, O_DIRECT at random places; %d times %g s a line, medians\n\n", path, bytes_text(bytes, total),
           files->is_pack ? " of experts" : "", reader->name, (int)o->rounds, o->seconds);
    printf("%8s %6s %8s %9s %9s %10s\n", "piece", "depth", "GB/s", "p50 us", "p99 us", "CPU s/GB");
    fflush(stdout);
    for (int round = 0; round < o->rounds && !status; round++)
        for (int i = 0; i < n && !status; i++)
            status = measure(&points[i], reader, files, o, (uint64_t)(round * n + i + 1), err);
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
    struct drive_files files;
    if (o->piece % BLOCK_ALIGN_BYTES)
        return command_usage(err, "--piece: a multiple of %d bytes, not %lld", BLOCK_ALIGN_BYTES, (long long)o->piece);
    enum status status = open_files(&files, arguments[0], err);
    if (status)
        return status;
    status = bench(points, choose_points(points, o, &files), &files, o, arguments[0], err);
    drive_files_close(&files);
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
