/* What goes where in this machine's memory, summed and refused before anything is allocated. */
#ifndef HEARTH_NODE_MEMORY_PLAN_H
#define HEARTH_NODE_MEMORY_PLAN_H

#include "common/budget.h"
#include "model/weights_source.h"
#include "node/expert_options.h"

/* How the experts of a layer range are held. */
struct memory_plan {
    int streams;         /* 0: all of them in RAM, loaded at start */
    int n_slots;         /* experts in memory at once, when they stream */
    int n_experts;       /* of the range */
    uint64_t expert_bytes;
};

/* The limit to plan for. asked: what --memory says, refused when the machine (or its cgroup) has not that much; 0: nine tenths of what is free, because
 * other programs grow too. What this process already holds counts as free. */
enum status memory_plan_limit(uint64_t asked, uint64_t *limit, struct error *err);

/* budget: the limit, and accounts for everything but experts. Adds the experts' accounts: all of them if they fit and nothing in options asks for streaming,
 * else as many slots as there is room for. STATUS_NO_MEMORY with the table of accounts when not even EXPERT_SLOTS_MIN fit; STATUS_UNSUPPORTED when
 * they would have to stream from a vendor folder. */
enum status memory_plan_experts(struct memory_plan *plan, struct budget *budget, const struct weights_source *source, int layer_begin, int layer_end,
                                const struct expert_options *options, struct error *err);

/* One line per account, and what was decided. */
void memory_plan_log(const struct memory_plan *plan, const struct budget *budget);

#endif
