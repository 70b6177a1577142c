#include "node/memory_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/log.h"
#include "common/memory.h"
#include "model/part_layout.h"
#include "model/resident_experts.h"
#include "node/expert_slots.h"
#include "node/expert_store.h"
#include "node/machine_profile.h"

enum { BATCH_ROWS = 8 }; /* rows at which kernels were measured: more share a weight no better */

/* Pages that this process holds, in bytes; 0 where /proc is not there. */
static uint64_t held_bytes(void)
{
    unsigned long long size, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file)
        return 0;
    if (fscanf(file, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

enum status memory_plan_limit(uint64_t asked, uint64_t *limit, struct error *err)
{
    char text[2][32];
    uint64_t available = memory_available_bytes(), most = available > UINT64_MAX / 2 ? available : available + held_bytes();
    *limit = asked ? asked : most / 10 * 9;
    if (*limit <= most)
        return STATUS_OK;
    return error_set(err, STATUS_NO_MEMORY, "--memory %s: this machine (or its memory cgroup) has %s free: give it less, or free some",
                     bytes_text(asked, text[0]), bytes_text(most, text[1]));
}

static int asks_for_streaming(const struct expert_options *o)
{
    return o->slots || o->store || o->emulate_disk || o->pin;
}

static enum status check_pin(const struct expert_options *o, uint64_t bytes, struct error *err)
{
    struct rlimit allowed;
    char text[2][32];
    if (!o->pin || geteuid() == 0 || getrlimit(RLIMIT_MEMLOCK, &allowed) || allowed.rlim_cur == RLIM_INFINITY || bytes <= allowed.rlim_cur)
        return STATUS_OK;
    return error_set(err, STATUS_NO_MEMORY,
                     "--pin: experts take %s and this process may lock %s: raise the limit (ulimit -l, LimitMEMLOCK=infinity), lower "
                     "--memory, or leave --pin out",
                     bytes_text(bytes, text[0]), bytes_text(allowed.rlim_cur, text[1]));
}

static enum status plan_slots(struct memory_plan *plan, struct budget *budget, const struct weights_source *source, int begin, int end,
                              const struct expert_options *o, struct error *err)
{
    uint64_t used = budget_sum(budget), room = budget->limit > used ? budget->limit - used : 0;
    uint64_t tables = expert_store_overhead_bytes(source, begin, end, plan->n_experts); /* as if all of them had a slot: a kilobyte each */
    uint64_t fit = expert_slots_fit(room > tables ? room - tables : 0, plan->expert_bytes);
    plan->n_slots = o->slots ? (int)o->slots : fit < (uint64_t)plan->n_experts ? (int)fit : plan->n_experts;
    if (plan->n_slots < EXPERT_SLOTS_MIN)
        plan->n_slots = EXPERT_SLOTS_MIN; /* and the budget says no, with all its accounts */
    if (plan->n_slots > plan->n_experts)
        plan->n_slots = plan->n_experts > EXPERT_SLOTS_MIN ? plan->n_experts : EXPERT_SLOTS_MIN;
    uint64_t arena = expert_slots_arena_bytes(plan->n_slots, plan->expert_bytes);
    budget_add(budget, "expert slots", arena, o->slots ? "lower --slots" : "raise --memory: two experts are the least");
    budget_add(budget, "expert tables", tables, NULL);
    enum status status = budget_check(budget, err);
    return status ? status : check_pin(o, arena, err);
}

enum status memory_plan_experts(struct memory_plan *plan, struct budget *budget, const struct weights_source *source, int begin, int end,
                                const struct expert_options *o, struct error *err)
{
    uint64_t all = resident_experts_bytes(source, begin, end);
    *plan = (struct memory_plan){0};
    if (!all)
        return budget_check(budget, err);
    plan->n_experts = expert_store_n_experts(source, begin, end, &plan->expert_bytes);
    int is_pack = weights_source_pack(source) != NULL;
    if ((!asks_for_streaming(o) && budget_sum(budget) + all <= budget->limit) || (!is_pack && !asks_for_streaming(o))) {
        plan->n_slots = plan->n_experts;
        budget_add(budget, "experts", all, "experts stream only from a pack: hearth convert");
        return budget_check(budget, err);
    }
    if (!is_pack)
        return error_set(err, STATUS_UNSUPPORTED, "%s: experts stream only from a pack: make one of it with hearth convert",
                         weights_source_dir(source));
    plan->streams = 1;
    return plan_slots(plan, budget, source, begin, end, o, err);
}

int memory_plan_prefill_rows(const struct budget *others, uint64_t (*bytes)(const struct model_config *config, int rows),
                             const struct model_config *config, int rows_max)
{
    uint64_t used = budget_sum(others), room = others->limit > used ? others->limit - used : 0;
    uint64_t most = room / 4 < others->limit / 16 ? room / 4 : others->limit / 16;
    int rows = 64;
    while (rows * 2 <= rows_max && bytes(config, rows * 2) <= most)
        rows *= 2;
    return rows;
}

/* rows * top_k / 8 groups of 8 rows through experts against n_experts to read: the size of an expert cancels out. */
int memory_plan_balanced_rows(double read_rate, double matmul_rate, int n_experts, int top_k)
{
    double balanced = BATCH_ROWS * (double)n_experts / top_k * matmul_rate / read_rate;
    int rows = 64;
    while (rows < PREFILL_ROWS_MAX && rows < balanced)
        rows *= 2;
    return rows;
}

int memory_plan_useful_rows(const struct weights_source *source, const struct expert_options *options, const char *profile_path)
{
    const struct model_config *c = weights_source_config(source);
    struct machine_profile *profile = xcalloc(1, sizeof *profile);
    struct error ignored;
    struct part_layout layout;
    int rows = PREFILL_ROWS_MAX, layer = 0;
    while (layer < c->n_layers && !c->is_sparse[layer])
        layer++;
    if (layer < c->n_layers && !machine_profile_load(profile, profile_path, &ignored) &&
        (profile_path || machine_profile_is_of_this_machine(profile)) && !profile->is_disturbed) {
        weights_source_layout(source, PART_EXPERTS, layer, &layout);
        const struct profile_matmul *matmul = machine_profile_matmul(profile, format_info(layout.tensors[0].format)->name, BATCH_ROWS);
        double read = expert_emulated_rate(options);
        if (!(read > 0) && profile->n_stores)
            read = machine_profile_drives_rate(profile, expert_read_depth(options, profile->n_stores));
        if (matmul && read > 0)
            rows = memory_plan_balanced_rows(read, matmul->bytes_per_second, c->n_experts, c->top_k);
    }
    free(profile);
    return rows;
}

void memory_plan_log(const struct memory_plan *plan, const struct budget *budget)
{
    char bytes[32], limit[32];
    for (int i = 0; i < budget->n_accounts; i++)
        log_line(LOG_INFO, "memory: %s %s", budget->accounts[i].name, bytes_text(budget->accounts[i].bytes, bytes));
    log_line(LOG_INFO, "memory: %s in all, the limit is %s", bytes_text(budget_sum(budget), bytes), bytes_text(budget->limit, limit));
    if (plan->streams)
        log_line(LOG_INFO, "memory: %d of %d experts fit in it (%.1f %%), the others stream", plan->n_slots, plan->n_experts,
                 100.0 * plan->n_slots / plan->n_experts);
}
