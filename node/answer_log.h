/* One line in the node's log for every answer: what this machine did while it ran, and what its experts cost. Compute thread only. */
#ifndef HEARTH_NODE_ANSWER_LOG_H
#define HEARTH_NODE_ANSWER_LOG_H

#include <stdint.h>

#include "node/expert_stats.h"
#include "proto/limits.h"

/* Counts that only rise; a line shows by how much. experts: zeros where none stream. */
struct answer_figures {
    uint64_t now_ns, rows, busy_ns;
    struct expert_stats experts;
};

struct answer_log {
    struct answer_start {
        uint64_t sequence;
        int n_others; /* answers that ran at some time together with this one */
        struct answer_figures figures;
    } open[SEQUENCES_MAX];
    int n_open;
};

/* A sequence that is open already stays as it was. */
void answer_log_begin(struct answer_log *log, uint64_t sequence, const struct answer_figures *figures);

/* Writes the line; nothing for a sequence that is not open, or when no row was computed. The figures are of the machine: those of answers
 * that ran at the same time are in them, and the line says so. */
void answer_log_end(struct answer_log *log, uint64_t sequence, const struct answer_figures *figures);

/* The line's text, without its name: for tests. */
void answer_log_text(char *text, size_t bytes, const struct answer_start *start, const struct answer_figures *end);

#endif
