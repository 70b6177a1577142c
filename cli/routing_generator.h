/* Routing without a model: rows that choose experts as a synthetic checkpoint with random weights and a skewed router bias does. */
#ifndef HEARTH_CLI_ROUTING_GENERATOR_H
#define HEARTH_CLI_ROUTING_GENERATOR_H

#include "cli/routing_trace.h"

struct routing_generator {
    int n_layers, n_experts, top_k, n_rows;
    uint64_t seed;
    double skew;        /* the expert of rank r gets the bias -skew*ln(r) beside scores in (0, 1); 0.12 resembles real traffic */
    double correlation; /* of an expert's logits in one row and the next, [0, 1) */
    int drift_rows;     /* a new random ranking after so many rows; 0: never */
};

/* Fills an empty trace: score = sigmoid(N(0,1)) + bias, the top_k best are chosen. The same values give the same trace. */
void routing_generate(const struct routing_generator *g, struct routing_trace *trace);

#endif
