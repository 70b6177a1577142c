/* hearth convert: a vendor's checkpoint becomes a pack. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/stop_signal.h"
#include "common/clock.h"
#include "kernels/parallel.h"
#include "model/convert.h"

struct convert_arguments {
    const char *precision;
    int64_t threads;
};

static const struct option_row rows[] = {
    {"precision", OPTION_CHOICE, offsetof(struct convert_arguments, precision), "int4", 0, 0, "int4|int8|exact", "KIND",
     "int4: routed experts 4 bit, the rest 8 bit; int8: all 8 bit; exact: nothing is rounded, several times the size"},
    {"threads", OPTION_INT, offsetof(struct convert_arguments, threads), NULL, 0, 256, NULL, "N", "threads that quantise; 0: one per core that it may use"},
};

struct display {
    int is_terminal;
    uint64_t begin_ns, shown_ns;
    uint64_t kept_bytes, part_begin_bytes; /* kept files say nothing about the rate */
};

static void show_line(struct display *d, const struct convert_progress *p, uint64_t now_ns)
{
    double seconds = (double)(now_ns - d->begin_ns) / 1e9;
    double rate = (double)(p->done_bytes - d->kept_bytes) / (seconds > 0.1 ? seconds : 0.1),
           left = rate > 0 ? (double)(p->total_bytes - p->done_bytes) / rate : 0;
    uint64_t seconds_left = left < 1e9 ? (uint64_t)left : 1000000000; /* 31 years: the first bytes of a slow disk say that */
    fprintf(stderr, "\r\033[K%5.1f%%  %s %s, %.1f MB/s, %llu:%02u left", 100.0 * (double)p->done_bytes / (double)p->total_bytes,
            p->is_comparing ? "comparing" : "writing", p->part_file, rate / 1e6, (unsigned long long)seconds_left / 60,
            (unsigned)(seconds_left % 60));
    fflush(stderr);
    d->shown_ns = now_ns;
}

/* On a terminal one line that is rewritten five times a second, else one line for every part. */
static void show(void *ctx, const struct convert_progress *p)
{
    struct display *d = ctx;
    uint64_t now_ns = clock_now_ns(clock_monotonic());
    if (p->is_kept)
        d->kept_bytes += p->done_bytes - d->part_begin_bytes;
    if (p->is_part_done)
        d->part_begin_bytes = p->done_bytes;
    if (d->is_terminal && !*p->part_file)
        fputs("\r\033[K", stderr);
    else if (d->is_terminal && now_ns - d->shown_ns > 200000000)
        show_line(d, p, now_ns);
    else if (!d->is_terminal && p->is_part_done)
        fprintf(stderr, "%5.1f%%  %s %s\n", 100.0 * (double)p->done_bytes / (double)p->total_bytes, p->part_file,
                p->is_kept        ? "kept"
                : p->is_comparing ? "is the same"
                                  : "written");
}

static enum status convert_run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    const struct convert_arguments *a = options;
    (void)n_arguments;
    parallel_set_threads(a->threads ? (int)a->threads : parallel_cores());
    stop_signal_catch();
    struct display display = {.is_terminal = isatty(STDERR_FILENO), .begin_ns = clock_now_ns(clock_monotonic())};
    struct convert_options o = {
        .precision = (enum precision)precision_by_name(a->precision), .report = show, .ctx = &display, .stop = &stop_signal};
    struct convert_result result;
    enum status status = convert_model(arguments[0], arguments[1], &o, &result, err);
    if (status && display.is_terminal)
        fputc('\n', stderr);
    if (!status)
        printf("%s: %s, %.3f GB, identity %s\n", arguments[1], result.was_complete ? "is already this pack" : "finished",
               (double)result.pack_bytes / 1e9, result.identity);
    return status;
}

const struct command convert_command = {
    .name = "convert",
    .arguments = "SRC DST",
    .summary = "Convert a vendor's checkpoint (safetensors) to a pack.",
    .details = "SRC: folder with config.json and *.safetensors (BF16, FP8 with block scales, F16 or F32). DST: a new folder.\n"
               "An interrupted conversion goes on when the same command is given again; finished files are kept.",
    .options = rows,
    .n_options = sizeof rows / sizeof *rows,
    .options_bytes = sizeof(struct convert_arguments),
    .n_arguments_min = 2,
    .n_arguments_max = 2,
    .run = convert_run,
};
