/* hearth plan: what fits into a machine's memory, how fast the model will run there, what bounds it and what would help. Memory is planned
 * by the code that hearth run plans with; no weights are loaded. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/plan_hits.h"
#include "cli/plan_machine.h"
#include "common/budget.h"
#include "common/check.h"
#include "common/json.h"
#include "common/memory.h"
#include "kernels/parallel.h"
#include "model/part_layout.h"
#include "node/expert_slots.h"
#include "node/expert_store.h"
#include "node/machine_profile.h"
#include "node/memory_plan.h"

struct plan_options {
    struct cli_model_options model;
    const char *profile, *trace;
    int json;
};

enum {
    ADVICE_MAX = 5,
    MORE_MEMORY = 4, /* GiB */
    SHORT_POSITIONS = 128,
    PROMPT_ROWS = 1024,
};
#define HOP_SECONDS                                                                                                                        \
    0.0015 /* a row to the next machine and its candidates back, over a home's wire: measured 0.2 to 0.5 ms a hop, Wi-Fi some ms */

struct advice {
    char what[96];
    double tokens_per_second, prompt_tokens_per_second;
};

/* Everything that is printed. */
struct plan {
    struct budget budget;
    struct memory_plan memory;
    struct speed_model model;
    struct speed_setup setup;
    struct speed_plan speed, full; /* at the beginning of a chat; when the context is full */
    int n_positions_full;
    struct plan_machine machine;
    struct plan_hits hits;
    int n_advice;
    struct advice advice[ADVICE_MAX];
};

/* ---- the model's sizes ---- */

static double shared_bytes(const struct part_layout *dense)
{
    double bytes = 0;
    for (int i = 0; i < dense->n_tensors; i++)
        if (!strncmp(dense->tensors[i].name, "shared.", 7))
            bytes += (double)(dense->tensors[i].data_bytes + dense->tensors[i].scales_bytes);
    return bytes;
}

static void measure_model(const struct model *m, struct speed_model *out)
{
    const struct model_config *c = m->config;
    *out = (struct speed_model){.top_k = c->top_k, .head_bytes = (double)weights_source_part_bytes(m->source, PART_HEAD, 0)};
    out->attended_max = c->index_topk;
    for (int layer = 0; layer < c->n_layers; layer++) {
        out->position_macs += (double)c->n_heads * (2 * c->kv_lora_rank + c->rope_dim);
        out->index_macs += c->has_indexer[layer] ? (double)c->index_heads * c->index_dim : 0;
        double bytes = (double)weights_source_part_bytes(m->source, PART_DENSE, layer);
        struct part_layout layout;
        if (!c->is_sparse[layer]) {
            out->dense_layer_bytes += bytes;
            out->n_dense_layers++;
            continue;
        }
        weights_source_layout(m->source, PART_DENSE, layer, &layout);
        double shared = shared_bytes(&layout);
        out->attention_bytes += bytes - shared;
        out->shared_bytes += shared;
        out->expert_bytes += (double)weights_source_part_bytes(m->source, PART_EXPERTS, layer) / c->n_experts;
        out->n_sparse_layers++;
    }
    out->dense_layer_bytes /= out->n_dense_layers ? out->n_dense_layers : 1;
    double n = out->n_sparse_layers ? out->n_sparse_layers : 1;
    out->attention_bytes /= n;
    out->shared_bytes /= n;
    out->expert_bytes /= n;
}

/* ---- what would help ---- */

/* Slots in `bytes` more memory than the budget has, as memory_plan would count them. */
static int slots_with(const struct plan *p, double more_bytes)
{
    double n = p->memory.n_slots + more_bytes / (double)p->memory.expert_bytes;
    return n > p->memory.n_experts ? p->memory.n_experts : n < EXPERT_SLOTS_MIN ? EXPERT_SLOTS_MIN : (int)n;
}

static struct speed_setup setup_with(const struct plan *p, int n_slots)
{
    struct speed_setup setup = p->setup;
    setup.streams = n_slots < p->memory.n_experts;
    setup.hit_rate = setup.streams ? plan_hits_rate(&p->hits, n_slots) : 1;
    /* What is guessed for the next layer takes slots from when it is queued: as many as a row asks for. */
    int n_left = n_slots - p->model.top_k;
    setup.hit_rate_guessing = setup.streams ? n_left > 0 ? plan_hits_rate(&p->hits, n_left) : 0 : 1;
    setup.resident_share = (double)n_slots / p->memory.n_experts;
    return setup;
}

static struct advice *advise(struct plan *p, const struct speed_machine *machine, const struct speed_setup *setup)
{
    struct speed_plan other = speed_plan(machine, &p->model, setup);
    struct advice *a = &p->advice[p->n_advice++];
    CHECK(p->n_advice <= ADVICE_MAX);
    a->tokens_per_second = other.tokens_per_second;
    a->prompt_tokens_per_second = other.prompt_tokens_per_second;
    return a;
}

/* Two such machines have twice the memory and twice the drives, but a token is in one of them at a time: it gains hits only, and pays the
 * way. */
static void advise_machine(struct plan *p)
{
    double all = (double)budget_sum(&p->budget), beside = all - (double)expert_slots_arena_bytes(p->memory.n_slots, p->memory.expert_bytes);
    struct speed_setup setup = setup_with(p, slots_with(p, all - beside / 2)); /* always-used weights are shared out */
    struct advice *a = advise(p, &p->machine.speed, &setup);
    a->tokens_per_second = 1 / (1 / a->tokens_per_second + HOP_SECONDS);
    a->prompt_tokens_per_second *= 2; /* chunks follow each other: both work */
    snprintf(a->what, sizeof a->what, "another machine like this one (one chat, no drafts)");
}

static int more_helps_first(const void *a, const void *b)
{
    double x = ((const struct advice *)a)->tokens_per_second, y = ((const struct advice *)b)->tokens_per_second;
    return (x < y) - (x > y);
}

static void find_advice(struct plan *p)
{
    if (p->memory.streams) {
        struct speed_machine faster = p->machine.speed;
        struct speed_setup setup = setup_with(p, slots_with(p, (double)MORE_MEMORY * (1 << 30)));
        snprintf(advise(p, &p->machine.speed, &setup)->what, sizeof p->advice->what, "%d GiB more memory", MORE_MEMORY);
        faster.drive_bytes_per_second *= 2;
        snprintf(advise(p, &faster, &p->setup)->what, sizeof p->advice->what, "a second drive like this one (--store DIR,DIR)");
        advise_machine(p);
    }
    struct speed_machine quicker = p->machine.speed;
    quicker.dense = (struct speed_rates){2 * quicker.dense.one_row, 2 * quicker.dense.batch};
    quicker.experts = (struct speed_rates){2 * quicker.experts.one_row, 2 * quicker.experts.batch};
    quicker.memory_bytes_per_second *= 2;
    snprintf(advise(p, &quicker, &p->setup)->what, sizeof p->advice->what, "memory and cores of twice the speed");
    qsort(p->advice, (size_t)p->n_advice, sizeof *p->advice, more_helps_first);
}

/* ---- printing ---- */

static void print_memory(const struct plan *p)
{
    char bytes[32], limit[32];
    puts("Memory");
    for (int i = 0; i < p->budget.n_accounts; i++)
        printf("  %-18s %12s\n", p->budget.accounts[i].name, bytes_text(p->budget.accounts[i].bytes, bytes));
    printf("  %-18s %12s of %s\n", "in all", bytes_text(budget_sum(&p->budget), bytes), bytes_text(p->budget.limit, limit));
    if (p->memory.streams)
        printf("  %d of %d experts fit (%.1f %%), the others are read from the drive.\n", p->memory.n_slots, p->memory.n_experts,
               100.0 * p->memory.n_slots / p->memory.n_experts);
    else
        puts("  Everything fits: no expert is read from the drive.");
}

static void print_machine(const struct plan *p)
{
    const struct speed_machine *m = &p->machine.speed;
    puts("\nThis machine");
    printf("  memory  %.1f GB/s; kernels %.1f GB/s for one row of always-used weights, %.1f of experts (%s)\n",
           m->memory_bytes_per_second / 1e9, m->dense.one_row / 1e9, m->experts.one_row / 1e9, p->machine.kernels_text);
    if (p->memory.streams)
        printf("  drive   %.2f GB/s, %.0f us (%s)\n", m->drive_bytes_per_second / 1e9, m->drive_latency_seconds * 1e6,
               p->machine.drive_text);
}

static void print_speed(const struct plan *p)
{
    const struct speed_plan *s = &p->speed;
    puts("\nPrediction, one chat");
    if (p->memory.streams)
        printf("  hits    %.1f %% of a token's experts are in memory, %.1f MB a token are not; %s\n", 100 * p->setup.hit_rate,
               s->missed_bytes / 1e6, p->hits.text);
    printf("  answer  %.2f tokens/s (%.1f ms a token, %.1f ms of them computing); %s bounds it\n", s->tokens_per_second,
           s->token_seconds * 1e3, s->computing_seconds * 1e3, speed_bound_names[s->bound]);
    printf("          %.2f tokens/s after %d positions\n", p->full.tokens_per_second, p->n_positions_full);
    printf("  prompt  %.1f tokens/s over %d tokens in sets of %d; %s bounds it\n", s->prompt_tokens_per_second, p->setup.prompt_rows,
           p->setup.chunk_rows, speed_bound_names[s->prompt_bound]);
    puts("\nWhat would help");
    for (int i = 0; i < p->n_advice; i++)
        printf("  %-52s %8.2f tokens/s (%+.0f %%), prompt %.1f (%+.0f %%)\n", p->advice[i].what, p->advice[i].tokens_per_second,
               100 * (p->advice[i].tokens_per_second / s->tokens_per_second - 1), p->advice[i].prompt_tokens_per_second,
               100 * (p->advice[i].prompt_tokens_per_second / s->prompt_tokens_per_second - 1));
}

static void print_json(const struct plan *p)
{
    static const char *const kinds[N_ROUTING_KINDS] = {"trace", "use counts", "router bias", "zipf"};
    const struct speed_plan *s = &p->speed;
    const struct speed_machine *m = &p->machine.speed;
    json_t *accounts = json_object(), *advice = json_array();
    for (int i = 0; i < p->budget.n_accounts; i++)
        json_object_set_new(accounts, p->budget.accounts[i].name, json_integer((json_int_t)p->budget.accounts[i].bytes));
    for (int i = 0; i < p->n_advice; i++)
        json_array_append_new(advice,
                              json_pack("{s:s, s:f, s:f}", "what", p->advice[i].what, "tokens_per_second", p->advice[i].tokens_per_second,
                                        "prompt_tokens_per_second", p->advice[i].prompt_tokens_per_second));
    json_t *machine = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:b}", "memory_bytes_per_second", m->memory_bytes_per_second,
                                "dense_bytes_per_second", m->dense.one_row, "expert_bytes_per_second", m->experts.one_row, "region_seconds",
                                m->region_seconds, "drive_bytes_per_second", m->drive_bytes_per_second, "drive_latency_seconds",
                                m->drive_latency_seconds, "check_bytes_per_second", m->check_bytes_per_second, "landing_seconds_per_byte",
                                m->landing_seconds_per_byte, "profile", p->machine.is_profile);
    json_t *root =
        json_pack("{s:o, s:I, s:I, s:b, s:i, s:i, s:f, s:s, s:f, s:f, s:f, s:f, s:s, s:f, s:s, s:i, s:o, s:o}", "memory", accounts,
                  "memory_bytes", (json_int_t)budget_sum(&p->budget), "memory_limit", (json_int_t)p->budget.limit, "streams",
                  p->memory.streams, "slots", p->memory.n_slots, "experts", p->memory.n_experts, "hit_rate", p->setup.hit_rate, "hits_from",
                  kinds[p->hits.kind], "missed_bytes_per_token", s->missed_bytes, "tokens_per_second", s->tokens_per_second,
                  "tokens_per_second_full_context", p->full.tokens_per_second, "computing_seconds_per_token", s->computing_seconds, "bound",
                  speed_bound_names[s->bound], "prompt_tokens_per_second", s->prompt_tokens_per_second, "prompt_bound",
                  speed_bound_names[s->prompt_bound], "set_rows", p->setup.chunk_rows, "machine", machine, "advice", advice);
    char *text = json_dumps(root, JSON_INDENT(2));
    puts(text);
    free(text);
    json_decref(root);
}

/* ---- the command ---- */

static enum status predict(struct plan *p, const struct model *m, const struct plan_options *o, struct error *err)
{
    struct plan_machine_request request = {o->model.dir, m->source,          &o->model.experts, o->profile,
                                           o->model.isa, parallel_threads(), p->memory.streams};
    measure_model(m, &p->model);
    enum status status = plan_hits_open(&p->hits, m->source, &o->model.experts, o->trace, p->memory.expert_bytes, err);
    if (status)
        return status;
    status = plan_machine_look(&p->machine, &request, err);
    if (!status) {
        int prompt_rows = m->max_positions < PROMPT_ROWS ? m->max_positions : PROMPT_ROWS,
            chunk_rows = m->max_rows < prompt_rows ? m->max_rows : prompt_rows;
        p->setup = (struct speed_setup){.guesses = expert_prefetch_mode(&o->model.experts),
                                        .n_positions = SHORT_POSITIONS,
                                        .prompt_rows = prompt_rows,
                                        .chunk_rows = chunk_rows,
                                        .chunk_experts = plan_hits_distinct(&p->hits, chunk_rows)};
        p->setup = setup_with(p, p->memory.n_slots);
        p->speed = speed_plan(&p->machine.speed, &p->model, &p->setup);
        struct speed_setup full = p->setup;
        p->n_positions_full = full.n_positions = m->max_positions;
        p->full = speed_plan(&p->machine.speed, &p->model, &full);
        find_advice(p);
    }
    if (!status && o->json) {
        print_json(p);
    } else if (!status) {
        print_memory(p);
        print_machine(p);
        print_speed(p);
    }
    plan_hits_release(&p->hits);
    return status;
}

/* The limit that hearth run would have; with a profile of another machine, what that one has. */
static enum status find_limit(struct plan *p, const struct plan_options *o, struct error *err)
{
    if (!o->profile)
        return memory_plan_limit((uint64_t)o->model.memory, &p->budget.limit, err);
    struct machine_profile *profile = xcalloc(1, sizeof *profile);
    enum status status = machine_profile_load(profile, o->profile, err);
    uint64_t has = profile->memory_bytes;
    char asked[32], there[32];
    free(profile);
    p->budget.limit = o->model.memory ? (uint64_t)o->model.memory : has / 10 * 9;
    if (!status && p->budget.limit > has)
        status = error_set(err, STATUS_NO_MEMORY, "--memory %s: the machine of %s has %s", bytes_text(p->budget.limit, asked), o->profile,
                           bytes_text(has, there));
    return status;
}


static enum status run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)arguments, (void)n_arguments;
    const struct plan_options *o = options;
    struct model_options how = {
        .isa = o->model.isa, .n_threads = (int)o->model.threads, .max_rows = (int)o->model.chunk, .max_positions = (int)o->model.context};
    struct plan plan = {0};
    struct model *model = NULL;
    if (!o->model.dir)
        return command_usage(err, "--model DIR is needed");
    enum status status = model_prepare(&model, o->model.dir, &how, err);
    if (!status)
        status = find_limit(&plan, o, err);
    if (!status)
        status = cli_model_plan(model, &o->model, o->profile, &plan.memory, &plan.budget, err);
    if (!status)
        status = predict(&plan, model, o, err);
    model_close(&model);
    return status;
}

#define AT(member) offsetof(struct plan_options, member)
static const struct option_row rows[] = {
    {"model", OPTION_TEXT, AT(model.dir), .metavar = "DIR", .help = "pack or vendor folder"},
    {"profile", OPTION_TEXT, AT(profile), .metavar = "FILE",
     .help = "memory, kernels and drives of a machine, as hearth probe writes them; default: this machine's kernels from its profile or "
             "measured now, drives measured now"},
    {"trace", OPTION_TEXT, AT(trace), .metavar = "FILE",
     .help = "predict hits from what hearth run --trace or hearth logits --trace recorded"},
    {"json", OPTION_FLAG, AT(json), .help = "the same for programs"},
    CLI_MODEL_OPTION_ROWS(struct plan_options, model),
};

const struct command plan_command = {
    .name = "plan",
    .arguments = "",
    .summary = "Say what fits into memory, how fast the model will run here, and what would help.",
    .details = "Loads no weights. --memory as for hearth run; --emulate-disk predicts for another drive.",
    .options = rows,
    .n_options = sizeof rows / sizeof *rows,
    .options_bytes = sizeof(struct plan_options),
    .run = run,
};
