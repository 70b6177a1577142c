/* What hearth-coordinator can be told: one row per option, for the command line and the file. */
#ifndef HEARTH_COORDINATOR_OPTIONS_H
#define HEARTH_COORDINATOR_OPTIONS_H

#include "common/options.h"

struct coordinator_options {
    const char *config, *model, *model_name, *listen, *control, *rows, *advertise, *layers, *key, *trust, *api_key_file, *hosts, *cors, *log_level;
    int64_t nodes, context, sequences, queue, chunk, deadline_s, drain_s;
    int plaintext, allow_logits;
};

extern const struct option_row coordinator_option_rows[];
extern const int n_coordinator_option_rows;

#endif
