/* hearth bench experts: what streaming experts costs. Decodes forced random tokens (random weights would repeat themselves), first to fill
 * the memory, then measured, and sets the rate against what is possible: the drive's rate over the bytes that were missing, and the plain
 * read rate of memory over the weights that a token touches. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/memory.h"
#include "kernels/parallel.h"
#include "kernels/probe.h"
#include "model/philox.h"
#include "node/drive_files.h"
#include "node/expert_store.h"

enum {
    MEMORY_PROBE_BYTES = 512 << 20,
    MEMORY_PROBE_PASSES = 5,
    RAW_RATE_MS = 400,
};

struct bench_options {
    struct cli_model_options model;
    int64_t tokens, warm, prompt, seed;
    int json;
};

struct result {
    double tokens_per_second, prompt_seconds;
    struct expert_stats counts;              /* of the measured part */
    double raw_rate, memory_rate;            /* bytes per second */
    double drive_limit, memory_limit, limit; /* tokens per second */
    double missed_bytes, touched_bytes;      /* per token */
};

/* ---- what the machine can do ---- */

struct read_job {
    const char *memory;
    size_t part;
};

static void read_part(void *ctx, int begin, int end)
{
    const struct read_job *job = ctx;
    volatile uint64_t sink = probe_read(job->memory + (size_t)begin * job->part, (size_t)(end - begin) * job->part);
    (void)sink;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Plain reading with all threads, the median of a few passes. */
static double memory_rate(void)
{
    double rates[MEMORY_PROBE_PASSES];
    struct read_job job = {xcalloc(MEMORY_PROBE_BYTES, 1), MEMORY_PROBE_BYTES / (size_t)parallel_threads() & ~(size_t)511};
    memset((void *)job.memory, 1, MEMORY_PROBE_BYTES);
    for (int i = 0; i < MEMORY_PROBE_PASSES; i++) {
        uint64_t begin = clock_now_ns(clock_monotonic());
        parallel_for(parallel_threads(), 1, read_part, &job);
        rates[i] = (double)job.part * parallel_threads() * 1e9 / (double)(clock_now_ns(clock_monotonic()) - begin);
    }
    free((void *)job.memory);
    qsort(rates, MEMORY_PROBE_PASSES, sizeof *rates, ascending);
    return rates[MEMORY_PROBE_PASSES / 2];
}

/* The drive itself, without emulation, read as the store reads it. */
static enum status raw_rate(const char *dir, const struct expert_options *o, double *rate, struct error *err)
{
    struct drive_files files;
    enum status status = drive_files_open(&files, dir, o->store, err);
    if (status)
        return status;
    status = drive_files_rate(&files, o, RAW_RATE_MS * UINT64_C(1000000), rate, NULL, err);
    drive_files_close(&files);
    return status;
}

/* Weights that the main layers and the head read for one token. */
static double touched_bytes(const struct model *m)
{
    const struct model_config *c = m->config;
    double bytes = (double)weights_source_part_bytes(m->source, PART_HEAD, 0);
    for (int layer = 0; layer < c->n_layers; layer++) {
        bytes += (double)weights_source_part_bytes(m->source, PART_DENSE, layer);
        if (c->is_sparse[layer])
            bytes += (double)weights_source_part_bytes(m->source, PART_EXPERTS, layer) * c->top_k / c->n_experts;
    }
    return bytes;
}

/* ---- the run ---- */

static int forced_token(const struct bench_options *o, const struct model *m, int position)
{
    uint32_t counter[4] = {(uint32_t)position}, key[2] = {(uint32_t)o->seed, (uint32_t)((uint64_t)o->seed >> 32)}, word[4];
    philox4x32(counter, key, word);
    return (int)(word[0] % (uint32_t)m->config->vocab_size);
}

static enum status decode(const struct bench_options *o, struct model *m, struct sequence_state *sequence, int n, struct error *err)
{
    enum status status = STATUS_OK;
    for (int i = 0; i < n && !status; i++) {
        int token = forced_token(o, m, sequence->length);
        status = model_forward(m, &(struct model_input){sequence, &token, 1, NULL, NULL}, 1, err);
    }
    return status;
}

static enum status prefill(const struct bench_options *o, struct model *m, struct sequence_state *sequence, struct error *err)
{
    int n = (int)o->prompt, *tokens = xcalloc((size_t)n, sizeof *tokens);
    for (int i = 0; i < n; i++)
        tokens[i] = forced_token(o, m, sequence->length + i);
    enum status status = model_forward(m, &(struct model_input){sequence, tokens, n, NULL, NULL}, 1, err);
    free(tokens);
    return status;
}

static void counts_now(const struct cli_model *m, struct expert_stats *counts)
{
    *counts = (struct expert_stats){0};
    cli_model_experts(m, counts);
}

static double seconds_since(uint64_t begin_ns)
{
    return (double)(clock_now_ns(clock_monotonic()) - begin_ns) / 1e9;
}

static enum status measure(const struct bench_options *o, struct cli_model *m, struct result *r, struct error *err)
{
    struct sequence_state sequence;
    struct expert_stats before;
    int n = o->prompt ? (int)o->prompt : (int)o->tokens;
    enum status status = model_sequence_init(m->model, &sequence, (int)o->warm + n, err);
    if (status)
        return status;
    status = decode(o, m->model, &sequence, (int)o->warm, err);
    counts_now(m, &before);
    uint64_t begin = clock_now_ns(clock_monotonic());
    if (!status)
        status = o->prompt ? prefill(o, m->model, &sequence, err) : decode(o, m->model, &sequence, n, err);
    double seconds = seconds_since(begin);
    sequence_state_release(&sequence);
    counts_now(m, &r->counts);
    r->counts = expert_stats_since(&r->counts, &before);
    r->tokens_per_second = n / seconds;
    r->missed_bytes = (double)(r->counts.bytes_read - r->counts.prefetch_wasted_bytes) / n;
    return status;
}

static void set_limits(const struct bench_options *o, struct result *r)
{
    double emulated = expert_emulated_rate(&o->model.experts), rate = emulated > 0 ? emulated : r->raw_rate;
    r->drive_limit = r->missed_bytes > 0 ? rate / r->missed_bytes : 0;
    r->memory_limit = r->memory_rate / r->touched_bytes;
    r->limit = r->drive_limit > 0 && r->drive_limit < r->memory_limit ? r->drive_limit : r->memory_limit;
}

static void print(const struct bench_options *o, const struct cli_model *m, const struct result *r)
{
    const struct expert_stats *c = &r->counts;
    uint64_t prefetch_bytes = c->prefetch_useful_bytes + c->prefetch_wasted_bytes;
    uint64_t record_bytes;
    int n_experts = expert_store_n_experts(m->model->source, 0, config_layers_with_mtp(m->model->config), &record_bytes);
    double asked = (double)(c->hits + c->misses), seconds = (double)(o->prompt ? o->prompt : o->tokens) / r->tokens_per_second;
    if (o->json) {
        printf("{\"tokens_per_second\": %.4f, \"share\": %.4f, \"limit\": %.4f, \"drive_limit\": %.4f, \"memory_limit\": %.4f, "
               "\"hit_rate\": %.4f, "
               "\"missed_bytes_per_token\": %.0f, \"bytes_read\": %llu, \"wait_share\": %.4f, \"prefetch_bytes\": %llu, "
               "\"prefetch_useful_bytes\": %llu, "
               "\"prefetch_wasted_bytes\": %llu, \"evictions\": %llu, \"slots\": %llu, \"experts\": %llu, \"raw_bytes_per_second\": %.0f, "
               "\"memory_bytes_per_second\": %.0f, \"touched_bytes_per_token\": %.0f, \"seconds\": %.4f}\n",
               r->tokens_per_second, r->tokens_per_second / r->limit, r->limit, r->drive_limit, r->memory_limit,
               asked ? (double)c->hits / asked : 1, r->missed_bytes, (unsigned long long)c->bytes_read, (double)c->wait_ns / 1e9 / seconds,
               (unsigned long long)prefetch_bytes, (unsigned long long)c->prefetch_useful_bytes,
               (unsigned long long)c->prefetch_wasted_bytes, (unsigned long long)c->evictions, (unsigned long long)c->slots,
               (unsigned long long)n_experts, r->raw_rate, r->memory_rate, r->touched_bytes, seconds);
        return;
    }
    if (o->prompt)
        printf("%.2f tokens/s in sets of %d rows; the drive alone would allow %.2f\n", r->tokens_per_second, m->model->max_rows,
               r->drive_limit);
    else
        printf("%.2f tokens/s, %.0f %% of the limit of %.2f (drive %.2f, memory %.2f)\n", r->tokens_per_second,
               100 * r->tokens_per_second / r->limit, r->limit, r->drive_limit, r->memory_limit);
    printf("experts   %llu of %llu fit in memory; %.1f %% hits, %.1f MB missing a token, %.2f GB read\n", (unsigned long long)c->slots,
           (unsigned long long)n_experts, asked ? 100 * (double)c->hits / asked : 100, r->missed_bytes / 1e6, (double)c->bytes_read / 1e9);
    printf("waiting   %.1f %% of the time for experts\n", 100 * (double)c->wait_ns / 1e9 / seconds);
    printf("prefetch  %.2f GB, %.2f GB of it useful, %.2f GB wasted\n", (double)prefetch_bytes / 1e9,
           (double)c->prefetch_useful_bytes / 1e9, (double)c->prefetch_wasted_bytes / 1e9);
    printf("machine   drive %.2f GB/s as it is%s, memory %.1f GB/s, %.0f MB of weights a token\n", r->raw_rate / 1e9,
           o->model.experts.emulate_disk ? " (an emulated one stands before it)" : "", r->memory_rate / 1e9, r->touched_bytes / 1e6);
}

static enum status run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)n_arguments;
    struct bench_options o = *(const struct bench_options *)options;
    struct cli_model m;
    struct result r = {0};
    struct error no_rate;
    int positions = (int)(o.warm + (o.prompt ? o.prompt : o.tokens));
    if (o.model.context < positions)
        o.model.context = positions;
    /* The machine first: a store that warms up from earlier runs would share drive and memory with the measuring. */
    parallel_set_threads(o.model.threads ? (int)o.model.threads : parallel_cores());
    r.memory_rate = memory_rate();
    enum status raw_status = raw_rate(arguments[0], &o.model.experts, &r.raw_rate, &no_rate);
    enum status status = cli_model_open(&m, arguments[0], &o.model, NULL, err);
    if (status)
        return status;
    r.touched_bytes = touched_bytes(m.model);
    if (!m.store) { /* then the drive does not matter, nor whether it could be read */
        r.raw_rate = 0;
    } else if (raw_status) {
        status = raw_status;
        *err = no_rate;
    }
    if (!status)
        status = measure(&o, &m, &r, err);
    if (!status) {
        set_limits(&o, &r);
        print(&o, &m, &r);
    }
    cli_model_close(&m);
    return status;
}

#define AT(member) offsetof(struct bench_options, member)
static const struct option_row options[] = {
    {"tokens", OPTION_INT, AT(tokens), "64", 1, 1 << 20, .metavar = "N", .help = "tokens to decode, measured"},
    {"warm", OPTION_INT, AT(warm), "64", 0, 1 << 20, .metavar = "N", .help = "tokens to decode before, so that the memory is full"},
    {"prompt", OPTION_INT, AT(prompt), "0", 0, 1 << 20, .metavar = "N", .help = "instead of decoding, measure a prompt of so many tokens"},
    {"seed", OPTION_INT, AT(seed), "1", 0, 9e15, .metavar = "N", .help = "which tokens"},
    {"json", OPTION_FLAG, AT(json), .help = "one line of JSON"},
    CLI_MODEL_OPTION_ROWS(struct bench_options, model),
};

const struct command bench_experts_command = {
    .name = "bench experts",
    .arguments = "PACK",
    .summary = "Measure what streaming experts from the drive costs, against what is possible.",
    .details = "Use --slots or --memory for how many experts are kept, --emulate-disk to try another drive, --prefetch on|off to compare.",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .options_bytes = sizeof(struct bench_options),
    .n_arguments_min = 1,
    .n_arguments_max = 1,
    .run = run,
};
