/* hearth probe: measures this machine once and keeps the figures (node/machine_profile.h). */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/kernel_rates.h"
#include "common/budget.h"
#include "common/check.h"
#include "common/memory.h"
#include "common/paths.h"
#include "node/drive_files.h"
#include "node/machine_profile.h"

struct probe_options {
    const char *model, *stores, *reader, *output;
    int json, quick;
};

static const struct option_row rows[] = {
    {"model", OPTION_TEXT, offsetof(struct probe_options, model), .metavar = "DIR",
     .help = "read this model's files; without it a temporary file of 1 GiB in the state directory"},
    {"store", OPTION_TEXT, offsetof(struct probe_options, stores), .metavar = "DIR,...",
     .help = "folders, on several drives, with the pack's experts-NN files; default: the model's own folder"},
    {"reader", OPTION_CHOICE, offsetof(struct probe_options, reader), "auto", .choices = "auto|io_uring|pread", .metavar = "KIND",
     .help = "how files are read"},
    {"quick", OPTION_FLAG, offsetof(struct probe_options, quick), .help = "about 5 s and less sure, instead of 20 to 30 s"},
    {"output", OPTION_TEXT, offsetof(struct probe_options, output), .metavar = "FILE",
     .help = "keep the profile there; default: profile.json in the state directory"},
    {"json", OPTION_FLAG, offsetof(struct probe_options, json), .help = "print the profile as JSON"},
};

/* How long things take. */
struct effort {
    double depth_seconds, latency_seconds, matmul_seconds;
    uint64_t file_bytes;    /* of a temporary file */
    uint64_t weights_bytes; /* well above any last cache of a home machine */
};
static const struct effort thorough = {2, 1, 2, 1024ull << 20, 512 << 20};
static const struct effort quick = {0.4, 0.3, 0.3, 256ull << 20, 192 << 20};

/* A line on a terminal that says what is being measured; nothing elsewhere. */
static void show(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void show(const char *format, ...)
{
    va_list args;
    if (!isatty(STDERR_FILENO))
        return;
    fputs("\r\033[K", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fflush(stderr);
}

/* ---- drives ---- */

static void show_written(uint64_t done_bytes, uint64_t bytes)
{
    show("writing a file to read: %llu of %llu MiB", (unsigned long long)(done_bytes >> 20), (unsigned long long)(bytes >> 20));
}

static enum status make_file(struct drive_files *files, const struct effort *effort, struct error *err)
{
    char *dir = paths_state_dir(), need[32], have[32];
    struct statvfs room;
    enum status status = STATUS_OK;
    if (!dir)
        return error_set(err, STATUS_NOT_FOUND,
                         "there is no state directory for a file to read: set HOME or XDG_STATE_HOME, or give --model");
    status = paths_make_dirs(dir, err);
    if (!status && !statvfs(dir, &room) && (uint64_t)room.f_bavail * room.f_frsize < effort->file_bytes + (64u << 20))
        status = error_set(err, STATUS_IO, "%s: %s free, a file of %s is needed to read from: give --model, or --quick", dir,
                           bytes_text((uint64_t)room.f_bavail * room.f_frsize, have), bytes_text(effort->file_bytes, need));
    if (!status)
        status = drive_files_make(files, dir, effort->file_bytes, show_written, err);
    free(dir);
    return status;
}

static int is_direct(const struct drive_files *files, int store)
{
    for (int i = 0; i < files->n_files; i++)
        if (files->files[i].store == store && files->files[i].direct_errno)
            return 0;
    return 1;
}

static enum status measure_store(struct profile_store *out, struct block_reader *reader, const struct drive_files *files, int store,
                                 const struct effort *effort, struct error *err)
{
    int n;
    const struct drive_extent *extents = drive_files_store(files, store, &n);
    if (strlen(files->stores[store]) >= sizeof out->dir)
        return error_set(err, STATUS_INVALID, "%.80s...: the name is longer than a profile can hold", files->stores[store]);
    strcpy(out->dir, files->stores[store]);
    out->is_direct = is_direct(files, store);
    out->piece_bytes = drive_files_piece_bytes(files);
    enum status status = STATUS_OK;
    for (int i = 0; i < PROFILE_DEPTHS && !status; i++) {
        struct drive_rate rate = {0};
        struct drive_load load = {extents,         n, out->piece_bytes, profile_depths[i], (uint64_t)(effort->depth_seconds * 1e9),
                                  (uint64_t)i + 1, 0};
        show("reading %s with %d pieces in flight", out->dir, profile_depths[i]);
        drive_files_forget(files);
        status = drive_rate_measure(&rate, reader, &load, err);
        out->bytes_per_second[i] = rate.bytes_per_second;
    }
    if (!status) {
        show("reading %s, small reads one by one", out->dir);
        drive_files_forget(files);
        status = drive_latency_measure(&out->latency_p50_ns, reader, extents, n, (uint64_t)(effort->latency_seconds * 1e9), err);
    }
    return status;
}

static enum status measure_drives(struct machine_profile *p, const struct probe_options *o, const struct effort *effort, struct error *err)
{
    struct drive_files files;
    struct block_reader *reader;
    enum status status = o->model ? drive_files_open(&files, o->model, o->stores, err) : make_file(&files, effort, err);
    if (status)
        return status;
    status = block_reader_open(&reader, o->reader, profile_depths[PROFILE_DEPTHS - 1], err);
    if (!status) {
        snprintf(p->reader, sizeof p->reader, "%s", reader->name);
        for (int store = 0; store < files.n_stores && !status; store++) {
            p->stores[store].is_temporary = !o->model;
            status = measure_store(&p->stores[store], reader, &files, store, effort, err);
        }
        p->n_stores = files.n_stores;
        reader->close(reader, 1000000000);
    }
    drive_files_close(&files);
    return status;
}

/* ---- memory and kernels ---- */

static enum status measure_kernels(struct machine_profile *p, const struct effort *effort, struct error *err)
{
    static const struct {
        enum weight_format format;
        int n_x;
    } points[] = {{FORMAT_INT4, 1}, {FORMAT_INT4, 8}, {FORMAT_INT8, 1}, {FORMAT_INT8, 8}};
    struct kernels kernels;
    struct rates_weights weights;
    struct rates_inputs inputs;
    enum status status = kernels_select(&kernels, "auto", err);
    if (!status)
        status = rates_weights_open(&weights, effort->weights_bytes, err);
    if (status)
        return status;
    rates_inputs_init(&inputs);
    rates_set_threads(p->n_cores);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        const char *name = format_info(points[i].format)->name;
        show("computing %s with %d rows", name, points[i].n_x);
        if (i == 0 || points[i].format != points[i - 1].format)
            rates_weights_fill(&weights, points[i].format);
        struct rates_usual usual = rates_measure_usual(&weights, &inputs, &kernels, points[i].n_x, p->n_cores, effort->matmul_seconds);
        struct profile_matmul *out = &p->matmuls[p->n_matmuls++];
        *out = (struct profile_matmul){.n_rows = points[i].n_x, .bytes_per_second = usual.kernel};
        snprintf(out->format, sizeof out->format, "%s", name);
        p->memory_bytes_per_second = fmax(p->memory_bytes_per_second, usual.read);
        p->is_disturbed |= usual.is_disturbed;
    }
    CHECK(p->n_matmuls <= PROFILE_MATMULS_MAX);
    rates_inputs_release(&inputs);
    rates_weights_release(&weights);
    return STATUS_OK;
}

/* ---- the command ---- */

static void print(const struct machine_profile *p)
{
    char memory[32];
    printf("%s, %d cores, %s\n", p->cpu, p->n_cores, bytes_text(p->memory_bytes, memory));
    printf("memory        %6.1f GB/s plain reading\n", p->memory_bytes_per_second / 1e9);
    for (int i = 0; i < p->n_matmuls; i++)
        printf("%s, S = %d   %6.1f GB/s of weights\n", p->matmuls[i].format, p->matmuls[i].n_rows, p->matmuls[i].bytes_per_second / 1e9);
    for (int i = 0; i < p->n_stores; i++) {
        const struct profile_store *s = &p->stores[i];
        printf("%s (%s%s%s)\n ", s->dir, p->reader, s->is_direct ? "" : ", through the page cache",
               s->is_temporary ? ", a temporary file" : "");
        for (int d = 0; d < PROFILE_DEPTHS; d++)
            printf(" %.3f GB/s at depth %d%s", s->bytes_per_second[d] / 1e9, profile_depths[d], d + 1 < PROFILE_DEPTHS ? "," : "\n");
        printf("  4 KiB in %.0f us\n", (double)s->latency_p50_ns / 1e3);
    }
    if (p->is_disturbed)
        puts("Other programs were using the cores: measure again when the machine is quiet.");
}

static enum status run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)arguments, (void)n_arguments;
    const struct probe_options *o = options;
    if (o->stores && !o->model)
        return command_usage(err, "--store needs --model: the pack says which files a store has");
    const struct effort *effort = o->quick ? &quick : &thorough;
    struct machine_profile *profile = xcalloc(1, sizeof *profile);
    machine_profile_init(profile);
    /* Drives first: measuring kernels pins this thread to a core, and a reader's threads would inherit that. */
    enum status status = measure_drives(profile, o, effort, err);
    if (!status)
        status = measure_kernels(profile, effort, err);
    show("%s", "");
    if (!status)
        status = machine_profile_save(profile, o->output, err);
    if (!status && o->json) {
        char *text = machine_profile_text(profile);
        fputs(text, stdout);
        free(text);
    } else if (!status) {
        print(profile);
    }
    free(profile);
    return status;
}

const struct command probe_command = {
    .name = "probe",
    .arguments = "",
    .summary = "Measure this machine once and keep its profile.",
    .details = "Memory, kernels and drives, 20 to 30 s; other programs disturb the figures: run it on a quiet machine.",
    .options = rows,
    .n_options = sizeof rows / sizeof *rows,
    .options_bytes = sizeof(struct probe_options),
    .run = run,
};
