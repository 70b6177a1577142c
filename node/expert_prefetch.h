/* Whether reading on a guess pays, found out by trying. Pure. Time per row with and without guesses is compared in alternating windows; the
 * better arm is kept for a while and the other tried again. One engine lost a third of its speed to guesses that were never measured,
 * another won 13 % with them. */
#ifndef HEARTH_NODE_EXPERT_PREFETCH_H
#define HEARTH_NODE_EXPERT_PREFETCH_H

#include <stdint.h>

#include "node/expert_options.h"

enum {
    PREFETCH_WINDOW_PASSES = 8,  /* passes of one window */
    PREFETCH_TRIAL_WINDOWS = 8,  /* windows of a trial */
    PREFETCH_KEEP_PASSES = 1024, /* how long a decision holds */
};

/* Guesses stay unless they cost more than this share of the time: what they save while other nodes or programs keep this one waiting is not
 * in it. */
#define PREFETCH_COST_MAX 0.01

struct prefetch_trial {
    enum prefetch_mode mode;
    int is_on;
    int passes;  /* of the present window or decision */
    int windows; /* of the present trial; PREFETCH_TRIAL_WINDOWS: decided */
    uint64_t window_ns[PREFETCH_TRIAL_WINDOWS];
    uint64_t window_needed[PREFETCH_TRIAL_WINDOWS]; /* records */
    double sum_t, sum_r, sum_rr, sum_rt;            /* over the passes of the trial: times, records, their squares and products */
    double last_ratio;                              /* time with guesses / time without, of the last trial; 0: none yet */
};

void prefetch_trial_init(struct prefetch_trial *trial, enum prefetch_mode mode);

/* A decode pass through all layers of the range took so long and needed so many records from the drive, guessed or not: rows differ in that
 * far more than guesses change, so each window is judged by what its records would lead one to expect. Decides whether the next one guesses
 * (trial->is_on). */
void prefetch_trial_pass(struct prefetch_trial *trial, uint64_t pass_ns, int n_needed);

#endif
