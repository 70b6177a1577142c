/* What goes where in this machine's memory, summed and refused before anything is allocated. */
#ifndef HEARTH_NODE_MEMORY_PLAN_H
#define HEARTH_NODE_MEMORY_PLAN_H

#include "common/budget.h"
#include "model/weights_source.h"
#include "node/expert_options.h"

/* How the experts of a layer range are held. */
struct memory_plan {
    int streams;   /* 0: all of them in RAM, loaded at start */
    int n_slots;   /* experts in memory at once, when they stream */
    int n_experts; /* of the range */
    uint64_t expert_bytes;
};

/* The limit to plan for. asked: what --memory says, refused when the machine (or its cgroup) has not that much; 0: nine tenths of what is
 * free, because other programs grow too. What this process already holds counts as free. */
enum status memory_plan_limit(uint64_t asked, uint64_t *limit, struct error *err);

/* budget: the limit, and accounts for everything but experts. Adds the experts' accounts: all of them if they fit and nothing in options
 * asks for streaming, else as many slots as there is room for. STATUS_NO_MEMORY with the table of accounts when not even EXPERT_SLOTS_MIN
 * fit; STATUS_UNSUPPORTED when they would have to stream from a vendor folder. */
enum status memory_plan_experts(struct memory_plan *plan, struct budget *budget, const struct weights_source *source, int layer_begin,
                                int layer_end, const struct expert_options *options, struct error *err);

/* Rows of a prompt that go through a layer together: as many as a sixteenth of the limit and a quarter of what the accounts of `others`
 * (all but experts and these rows) leave of it will hold, a power of two from 64 to rows_max. */
enum { PREFILL_ROWS_MAX = 2048 };
int memory_plan_prefill_rows(const struct budget *others, uint64_t (*bytes)(const struct model_config *config, int rows),
                             const struct model_config *config, int rows_max);

/* How many rows are worth going together: longer sets read less as long as reading all experts of a layer takes longer than computing the
 * rows. From the drives (or the one that options emulates) and the kernels that `hearth probe` measured: as the file `profile` says, whatever
 * machine it is of, or with NULL this machine's own; PREFILL_ROWS_MAX while nothing was measured. */
int memory_plan_useful_rows(const struct weights_source *source, const struct expert_options *options, const char *profile);

/* The same from rates: read_rate of all drives together, matmul_rate of the experts' format at 8 rows, both in bytes of weights a second. A
 * power of two from 64 to PREFILL_ROWS_MAX. */
int memory_plan_balanced_rows(double read_rate, double matmul_rate, int n_experts, int top_k);

/* One line per account, and what was decided. */
void memory_plan_log(const struct memory_plan *plan, const struct budget *budget);

#endif
