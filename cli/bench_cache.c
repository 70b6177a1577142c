/* hearth bench cache: what share of the experts that rows choose a cache would have had, by policy and by number of slots. */
#include <stddef.h>
#include <stdio.h>

#include "cli/cache_replay.h"
#include "cli/commands.h"
#include "cli/routing_generator.h"

struct bench_cache_options {
    const char *trace;
    int64_t slots, in_flight, layers, experts, top_k, tokens, drift, seed;
    double synthetic, correlation, warm;
};

#define AT(member) offsetof(struct bench_cache_options, member)
static const struct option_row rows[] = {
    {"trace", OPTION_TEXT, AT(trace), .metavar = "FILE", .help = "what hearth run --trace or hearth logits --trace recorded"},
    {"synthetic", OPTION_NUMBER, AT(synthetic), "-1", -1, 10, .metavar = "SKEW",
     .help = "instead of --trace: random rows; the expert of rank r has a bias of -SKEW*ln(r)"},
    {"layers", OPTION_INT, AT(layers), "11", 1, LAYERS_MAX, .metavar = "N", .help = "with --synthetic: sparse layers"},
    {"experts", OPTION_INT, AT(experts), "64", 1, EXPERTS_MAX, .metavar = "N", .help = "with --synthetic: experts of a layer"},
    {"top-k", OPTION_INT, AT(top_k), "8", 1, TOP_K_MAX, .metavar = "N", .help = "with --synthetic: experts that a row chooses"},
    {"tokens", OPTION_INT, AT(tokens), "2000", 1, 1e6, .metavar = "N", .help = "with --synthetic: rows"},
    {"correlation", OPTION_NUMBER, AT(correlation), "0", 0, 0.999, .metavar = "R",
     .help = "with --synthetic: correlation of an expert's logits in one row and the next"},
    {"drift", OPTION_INT, AT(drift), "0", 0, 1e6, .metavar = "N", .help = "with --synthetic: a new ranking after N rows; 0: never"},
    {"seed", OPTION_INT, AT(seed), "1", 0, 9e15, .metavar = "N", .help = "with --synthetic: the same seed gives the same rows"},
    {"slots", OPTION_INT, AT(slots), "0", 0, 1 << 22, .metavar = "N",
     .help = "slots in all; 0: a table from a quarter of top_k a layer to half of the experts"},
    {"in-flight", OPTION_INT, AT(in_flight), "0", 0, TOP_K_MAX, .metavar = "N",
     .help = "reads of one request that are under way together, so that it takes its own slots again; 0: all"},
    {"warm", OPTION_NUMBER, AT(warm), "0.25", 0, 0.99, .metavar = "SHARE", .help = "share of the rows that only fill the caches"},
};

static const char *const kind_names[N_REPLAY_KINDS] = {
    [REPLAY_LRU] = "LRU", [REPLAY_LFU] = "LFU", [REPLAY_POLICY] = "ours", [REPLAY_STATIC] = "static", [REPLAY_OPTIMUM] = "optimum"};

static void print_line(const struct routing_trace *trace, const char *name, struct replay_setup setup)
{
    printf("%-18s %7d %8.2f |", name, setup.n_slots, (double)setup.n_slots / routing_trace_used_layers(trace));
    for (int kind = 0; kind < N_REPLAY_KINDS; kind++) {
        setup.kind = (enum replay_kind)kind;
        struct replay_result r = cache_replay(trace, &setup);
        printf(" %7.2f", r.uses ? 100.0 * (double)r.hits / (double)r.uses : 0.0);
        fflush(stdout);
    }
    putchar('\n');
}

static void print_table(const struct routing_trace *trace, const struct bench_cache_options *o)
{
    int layers = routing_trace_used_layers(trace), n_rows = routing_trace_rows(trace), first_row = (int)(o->warm * n_rows);
    printf("%d rows through %d layers, top_k %d of %d experts; hits in percent over rows %d to %d\n"
           "static: the best fixed set of these rows; optimum: clairvoyant (Belady)\n\n%-18s %7s %8s |",
           n_rows, layers, trace->top_k, trace->n_experts, first_row, n_rows - 1, "slots of a layer", "slots", "a layer");
    for (int kind = 0; kind < N_REPLAY_KINDS; kind++)
        printf(" %7s", kind_names[kind]);
    putchar('\n');
    struct replay_setup setup = {.n_slots = (int)o->slots, .first_row = first_row, .in_flight = (int)o->in_flight};
    if (o->slots) {
        print_line(trace, "--slots", setup);
        return;
    }
    const struct {
        const char *name;
        int slots;
    } points[] = {{"top_k / 4", layers * trace->top_k / 4},
                  {"top_k / 2", layers * trace->top_k / 2},
                  {"top_k", layers * trace->top_k},
                  {"1/4 of experts", layers * trace->n_experts / 4},
                  {"1/2 of experts", layers * trace->n_experts / 2}};
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        setup.n_slots = points[i].slots ? points[i].slots : 1;
        print_line(trace, points[i].name, setup);
    }
}

static enum status run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)arguments, (void)n_arguments;
    const struct bench_cache_options *o = options;
    struct routing_trace trace;
    if (!o->trace == (o->synthetic < 0))
        return command_usage(err, "either --trace or --synthetic is needed");
    if (!o->trace && o->top_k > o->experts)
        return command_usage(err, "--top-k %d of --experts %d", (int)o->top_k, (int)o->experts);
    if (o->trace) {
        enum status status = routing_trace_read(&trace, o->trace, err);
        if (status)
            return status;
    } else {
        routing_generate(&(struct routing_generator){.n_layers = (int)o->layers,
                                                     .n_experts = (int)o->experts,
                                                     .top_k = (int)o->top_k,
                                                     .n_rows = (int)o->tokens,
                                                     .seed = (uint64_t)o->seed,
                                                     .skew = o->synthetic,
                                                     .correlation = o->correlation,
                                                     .drift_rows = (int)o->drift},
                         &trace);
    }
    print_table(&trace, o);
    routing_trace_release(&trace);
    return STATUS_OK;
}

const struct command bench_cache_command = {
    .name = "bench cache",
    .arguments = "",
    .summary = "Replay which experts rows chose against cache policies.",
    .details =
        "Prints hit rates of least recently used, least often used, this program's policy, the best fixed set chosen with hindsight, and "
        "the clairvoyant optimum. All layers share the slots.",
    .options = rows,
    .n_options = sizeof rows / sizeof *rows,
    .options_bytes = sizeof(struct bench_cache_options),
    .run = run,
};
