/* The best ids of a row of logits and the logarithm of the sum of all: what the tail sends to the coordinator
 * (docs/spec/pipeline_protocol.md, "Sampling"). */
#ifndef HEARTH_NODE_CANDIDATES_H
#define HEARTH_NODE_CANDIDATES_H

#include <stdint.h>

#include "common/error.h"
#include "proto/limits.h"

struct candidates {
    double *scores; /* [vocab] scratch */
    int *heap;      /* [CANDIDATES_MAX] scratch */
    int n;
    uint32_t ids[CANDIDATES_MAX]; /* best first: score descending, then id ascending */
    float logits[CANDIDATES_MAX];
    double log_sum_exp;
};

void candidates_init(struct candidates *candidates, int vocab_size);
void candidates_release(struct candidates *candidates);

/* logits [n_tokens]: ids from n_tokens on are padding. temperature 0 counts as 1 in the log-sum-exp. Fails (STATUS_CORRUPT) naming the id
 * when a logit is not finite. */
enum status candidates_choose(struct candidates *candidates, const float *logits, int n_tokens, double temperature, struct error *err);

#endif
