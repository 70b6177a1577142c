#include "cli/model_options.h"

#ifdef HEARTH_NETWORK
#include "node/expert_store.h"
#include "node/memory_plan.h"

enum status cli_model_plan(struct model *m, const struct cli_model_options *o, const char *profile, struct memory_plan *plan,
                           struct budget *budget, struct error *err)
{
    struct budget empty = *budget;
    model_budget(m, budget);
    if (!o->chunk) { /* each expert is read once for all rows of a set, from the drive or from RAM, so long ones are better */
        int useful = memory_plan_useful_rows(m->source, &o->experts, profile);
        model_set_max_rows(m, memory_plan_prefill_rows(budget, model_prefill_bytes, m->config, useful));
        *budget = empty;
        model_budget(m, budget);
    }
    return memory_plan_experts(plan, budget, m->source, 0, config_layers_with_mtp(m->config), &o->experts, err);
}

/* Plans the memory, opens the expert store when experts are to stream, and loads the rest. */
static enum status load(struct cli_model *m, const struct cli_model_options *o, struct error *err)
{
    struct budget budget = {0};
    struct memory_plan plan;
    int layers = config_layers_with_mtp(m->model->config);
    enum status status = memory_plan_limit((uint64_t)o->memory, &budget.limit, err);
    if (!status)
        status = cli_model_plan(m->model, o, NULL, &plan, &budget, err);
    if (status)
        return status;
    memory_plan_log(&plan, &budget);
    if (!plan.streams)
        return model_load_resident(m->model, err);
    struct expert_store_config config = {m->model->source, 0, layers, plan.n_slots, &o->experts, 0, NULL, NULL};
    status = expert_store_open(&m->store, &config, err);
    return status ? status : model_load(m->model, expert_store_source(m->store), err);
}

int cli_model_experts(const struct cli_model *m, struct expert_stats *stats)
{
    if (m->store)
        expert_store_stats(m->store, stats, NULL);
    return m->store != NULL;
}

void cli_model_close(struct cli_model *m)
{
    expert_store_close(&m->store);
    model_close(&m->model);
}

#else

static enum status load(struct cli_model *m, const struct cli_model_options *o, struct error *err)
{
    struct budget budget = {.limit = o->memory ? (uint64_t)o->memory : memory_available_bytes()};
    model_budget(m->model, &budget);
    budget_add(&budget, "experts", resident_experts_bytes(m->model->source, 0, config_layers_with_mtp(m->model->config)), NULL);
    enum status status = budget_check(&budget, err);
    return status ? status : model_load_resident(m->model, err);
}

int cli_model_experts(const struct cli_model *m, struct expert_stats *stats)
{
    (void)m, (void)stats;
    return 0;
}

void cli_model_close(struct cli_model *m)
{
    model_close(&m->model);
}
#endif

enum status cli_model_open(struct cli_model *m, const char *dir, const struct cli_model_options *o, const struct layer_observer *observer,
                           struct error *err)
{
    struct model_options options = {
        .isa = o->isa, .n_threads = (int)o->threads, .max_rows = (int)o->chunk, .max_positions = (int)o->context, .observer = observer};
    *m = (struct cli_model){0};
    enum status status = model_prepare(&m->model, dir, &options, err);
    if (status)
        return status;
    status = load(m, o, err);
    if (!status)
        return STATUS_OK;
    cli_model_close(m);
    return error_wrap(err, "open model %s", dir);
}
