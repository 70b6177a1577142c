/* What hearth-node can be told: one row per option, for the command line and the file. */
#ifndef HEARTH_NODE_OPTIONS_H
#define HEARTH_NODE_OPTIONS_H

#include "common/options.h"
#include "node/expert_options.h"

struct node_options {
    const char *config, *model, *name, *coordinator, *coordinator_key, *key, *bind, *advertise, *isa, *layers, *metrics, *log_level;
    int64_t threads, memory, slow_unit_ms;
    int plaintext;
    struct expert_options experts;
};

extern const struct option_row node_option_rows[];
extern const int n_node_option_rows;

#endif
