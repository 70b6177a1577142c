/* Which expert is worth its memory. Pure: no I/O, no locks, no clock; time is counted in rows that passed a layer. One policy per store. Its figure for an
 * expert estimates how likely the next row will choose it, comparable across layers: giving up the least one anywhere is giving each layer slots by
 * its marginal hit rate. How the estimate comes about stands in the .c file. */
#ifndef HEARTH_NODE_EXPERT_POLICY_H
#define HEARTH_NODE_EXPERT_POLICY_H

#include <stdint.h>

struct expert_policy_config {
    int n_layers; /* sparse layers of the range, numbered 0.. in here */
    int n_experts, top_k;
};

struct expert_policy;

struct expert_policy *expert_policy_new(const struct expert_policy_config *config);
void expert_policy_free(struct expert_policy **policy);
/* What expert_policy_new allocates; mostly n_experts^2 floats a layer (0.26 MB at 256 experts) of which expert follows which. */
uint64_t expert_policy_bytes(const struct expert_policy_config *config);

/* n_rows rows passed the layer; experts [n] distinct ids that any of them chose, rows [n] how many rows chose each. For rows that are not committed
 * (drafts) the caller waits until they are. Otherwise it comes before the victims for the same rows are chosen: a choice then knows who was just not
 * wanted, and whose turn is next. Rows one at a time teach most; a set of many (prefill) is weighed as fewer than it has, so that a long prompt leaves the
 * memory of what is always hot. */
void expert_policy_observe(struct expert_policy *policy, int layer, const int *experts, const int *rows, int n, int n_rows);

/* Likelihood that the layer's next row chooses the expert. */
float expert_policy_value(const struct expert_policy *policy, int layer, int expert);

/* One slot as the policy sees it. */
struct policy_slot {
    int layer, expert;
    unsigned char may_go;      /* holds an expert that nobody uses now */
    unsigned char is_probation; /* brought in by rows that are not committed (or by prefetch) and not used by a committed one since */
};

/* The slot to give up: probation first, else the one with the least value for the time until its layer's turn comes round; equal ones by layer and
 * expert, whatever the order of slots. -1: none may go. */
int expert_policy_victim(const struct expert_policy *policy, const struct policy_slot *slots, int n_slots);

/* Counts that outlive the process: [n_layers * n_experts], uses per row of its layer over thousands of rows. Getting and setting gives the same counts,
 * and values in their order; what is no share of rows (a damaged file) is taken as the nearest that is. */
void expert_policy_export(const struct expert_policy *policy, float *uses);
void expert_policy_import(struct expert_policy *policy, const float *uses);

#endif
