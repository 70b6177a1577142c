/* hearth synth: a pack of random weights for performance work. */
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/stop_signal.h"
#include "common/clock.h"
#include "kernels/parallel.h"
#include "model/config.h"
#include "model/synth.h"

struct synth_arguments {
    const char *like, *precision;
    int64_t layers, dense_layers, hidden, experts, top_k, moe_intermediate, vocab, seed, threads;
    double skew;
    int no_mtp;
};

#define AT(member) offsetof(struct synth_arguments, member)
static const struct option_row rows[] = {
    {"like", OPTION_CHOICE, AT(like), "bench", 0, 0, SYNTH_SHAPES, "NAME",
     "whose sizes it has where nothing else is said; bench: hidden 2048, 64 experts a layer, 3.3 MB each"},
    {"layers", OPTION_INT, AT(layers), NULL, 0, LAYERS_MAX - 1, NULL, "N",
     "decoder layers, the dense ones included, the MTP layer not; 0, here and below: as --like has it"},
    {"dense-layers", OPTION_INT, AT(dense_layers), "-1", -1, LAYERS_MAX - 1, NULL, "N",
     "how many of them, from the first, have no routed experts; -1: as --like has it"},
    {"hidden", OPTION_INT, AT(hidden), NULL, 0, 1 << 16, NULL, "N", "hidden size"},
    {"experts", OPTION_INT, AT(experts), NULL, 0, EXPERTS_MAX, NULL, "N", "routed experts a layer"},
    {"top-k", OPTION_INT, AT(top_k), NULL, 0, TOP_K_MAX, NULL, "N", "experts a token uses in a layer"},
    {"moe-intermediate", OPTION_INT, AT(moe_intermediate), NULL, 0, 1 << 18, NULL, "N", "inner width of an expert"},
    {"vocab", OPTION_INT, AT(vocab), NULL, 0, 1 << 21, NULL, "N", "rows of embedding and head"},
    {"skew", OPTION_NUMBER, AT(skew), "-1", -1, 10, NULL, "A",
     "how unevenly experts are used: the router's bias is -A ln(rank + 1); 0: evenly; -1: 0.12, but 0.05 for glm-5.2 with its 256 experts"},
    {"no-mtp", OPTION_FLAG, AT(no_mtp), NULL, 0, 0, NULL, NULL, "without the MTP layer"},
    {"seed", OPTION_INT, AT(seed), "1", 0, 9007199254740992.0, NULL, "N", "the same seed gives the same pack on any machine"},
    {"precision", OPTION_CHOICE, AT(precision), "int4", 0, 0, "int4|int8", "KIND",
     "int4: routed experts 4 bit, the rest 8 bit; int8: all 8 bit"},
    {"threads", OPTION_INT, AT(threads), NULL, 0, 256, NULL, "N", "threads that make and write; 0: two more than cores that it may use"},
};

struct display {
    int is_terminal;
    uint64_t begin_ns, shown_ns;
};

/* On a terminal one line that is rewritten five times a second, else one line for every part. */
static void show(void *ctx, const struct synth_progress *p)
{
    struct display *d = ctx;
    uint64_t now_ns = clock_now_ns(clock_monotonic());
    double percent = 100.0 * (double)p->done_bytes / (double)p->total_bytes, seconds = (double)(now_ns - d->begin_ns) / 1e9;
    if (d->is_terminal && !*p->part_file) {
        fputs("\r\033[K", stderr);
    } else if (d->is_terminal && now_ns - d->shown_ns > 200000000) {
        double rate = (double)p->done_bytes / (seconds > 0.1 ? seconds : 0.1), left = (double)(p->total_bytes - p->done_bytes) / (rate + 1);
        fprintf(stderr, "\r\033[K%5.1f%%  writing %s, %.1f MB/s, %.0f:%02.0f left", percent, p->part_file, rate / 1e6,
                (double)((uint64_t)left / 60), (double)((uint64_t)left % 60));
        fflush(stderr);
        d->shown_ns = now_ns;
    } else if (!d->is_terminal && p->is_part_done) {
        fprintf(stderr, "%5.1f%%  %s written\n", percent, p->part_file);
    }
}

static void set(int *size, int64_t given)
{
    if (given > 0)
        *size = (int)given;
}

static struct synth_shape shape_of(const struct synth_arguments *a)
{
    struct synth_shape shape = *synth_shape_find(a->like);
    set(&shape.n_layers, a->layers);
    if (shape.n_dense_layers > shape.n_layers)
        shape.n_dense_layers = shape.n_layers; /* the first layers of the model */
    if (a->dense_layers >= 0)
        shape.n_dense_layers = (int)a->dense_layers;
    set(&shape.hidden_size, a->hidden);
    set(&shape.n_experts, a->experts);
    set(&shape.top_k, a->top_k);
    set(&shape.moe_intermediate_size, a->moe_intermediate);
    set(&shape.vocab_size, a->vocab);
    if (a->no_mtp)
        shape.n_mtp_layers = 0;
    if (a->skew >= 0)
        shape.skew = a->skew;
    return shape;
}

static enum status synth_run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)n_arguments;
    const struct synth_arguments *a = options;
    parallel_set_threads(a->threads ? (int)a->threads : parallel_cores() + 2);
    stop_signal_catch();
    struct display display = {.is_terminal = isatty(STDERR_FILENO), .begin_ns = clock_now_ns(clock_monotonic())};
    struct synth_options o = {.shape = shape_of(a),
                              .precision = (enum precision)precision_by_name(a->precision),
                              .seed = (uint64_t)a->seed,
                              .report = show,
                              .ctx = &display,
                              .stop = &stop_signal};
    struct synth_result result;
    enum status status = synth_pack(arguments[0], &o, &result, err);
    if (status) {
        if (display.shown_ns)
            fputc('\n', stderr);
        return status;
    }
    double seconds = (double)(clock_now_ns(clock_monotonic()) - display.begin_ns) / 1e9;
    printf("%s: %.3f GB, %.3f GB of it routed experts, written in %.1f s (%.2f GB/s); identity %s\n", arguments[0],
           (double)result.pack_bytes / 1e9, (double)result.expert_bytes / 1e9, seconds, (double)result.pack_bytes / 1e9 / seconds,
           result.identity);
    return STATUS_OK;
}

const struct command synth_command = {
    .name = "synth",
    .arguments = "DIR",
    .summary = "Write a pack of random weights, for performance work.",
    .details = "DIR: a new folder. The pack is valid in every way and answers with random words. It is written at the speed of the disk, "
               "past the\n"
               "page cache; when it does not succeed, nothing is left. Options that are not given come from --like.",
    .options = rows,
    .n_options = sizeof rows / sizeof *rows,
    .options_bytes = sizeof(struct synth_arguments),
    .n_arguments_min = 1,
    .n_arguments_max = 1,
    .run = synth_run,
};
