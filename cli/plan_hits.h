/* How often an expert will be in memory when it is asked for: made-up rows that resemble the best that is known about the model's routing,
 * replayed through the store's own policy (cli/cache_replay.h). */
#ifndef HEARTH_CLI_PLAN_HITS_H
#define HEARTH_CLI_PLAN_HITS_H

#include "cli/routing_trace.h"
#include "model/weights_source.h"
#include "node/expert_options.h"

/* What the rows are made from, best first. */
enum routing_kind { ROUTING_TRACE, ROUTING_USE_COUNTS, ROUTING_BIAS, ROUTING_ZIPF, N_ROUTING_KINDS };

struct plan_hits {
    enum routing_kind kind;
    char text[160];             /* for people: what was assumed */
    struct routing_trace trace; /* of some sparse layers, evenly chosen: large models would take minutes */
    double share;               /* of all sparse layers */
    int first_row;              /* rows before it only fill the memory */
    int in_flight;              /* as the store reads ahead */
};

/* trace: a file of hearth run --trace, or NULL. Without it: use counts of earlier runs if there are any; else, of a pack that hearth synth
 * made, its router's biases; else a Zipf curve. Reads at most some MB. */
enum status plan_hits_open(struct plan_hits *hits, const struct weights_source *source, const struct expert_options *options,
                           const char *trace, uint64_t expert_bytes, struct error *err);
void plan_hits_release(struct plan_hits *hits);

/* Share of experts found with so many slots for all layers. */
double plan_hits_rate(const struct plan_hits *hits, int n_slots);

/* How many different experts of a layer n_rows rows in a row choose, on average. */
double plan_hits_distinct(const struct plan_hits *hits, int n_rows);

#endif
