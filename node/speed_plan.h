/* How fast one machine will run a model, predicted from sizes and measured rates: time of a token, what it is spent on, and what it would
 * be if something were different. Pure: no I/O, no clock. Every constant of the model has its reason in the .c file. */
#ifndef HEARTH_NODE_SPEED_PLAN_H
#define HEARTH_NODE_SPEED_PLAN_H

#include "node/expert_options.h"

/* Bytes of weights per second that go through the matrix kernels, all threads together, from memory. */
struct speed_rates {
    double one_row; /* decode */
    double batch;   /* SPEED_BATCH_ROWS rows at once; bytes are counted once, not once a row */
};

enum { SPEED_BATCH_ROWS = 8 };

struct speed_machine {
    struct speed_rates dense, experts; /* in the formats of the model's always-used weights and of its experts */
    double memory_bytes_per_second;    /* plain reading */
    double macs_per_second;            /* multiply-adds of attention over cached positions, all threads */
    double region_seconds;             /* starting and ending one parallel region */
    double drive_bytes_per_second;     /* all drives together, read as the expert store reads */
    double drive_latency_seconds;      /* of one read, nothing else in flight */
    double check_bytes_per_second;     /* checksums of what has landed, one thread; 0: free */
    double landing_seconds_per_byte;   /* CPU time of the I/O thread, taken from computing; 0 where it has a core of its own */
};

struct speed_model {
    int n_dense_layers, n_sparse_layers; /* the MTP layer is in neither: a token is computed without it */
    int top_k;
    double expert_bytes;
    double dense_layer_bytes; /* of one dense layer */
    double attention_bytes;   /* of one sparse layer, everything before its experts: attention and router */
    double shared_bytes;      /* of one sparse layer: its shared experts */
    double head_bytes;
    double position_macs; /* multiply-adds of all layers for one position that a row attends to */
    double index_macs;    /* and for one that indexers look at, when there are more than attended_max */
    int attended_max;     /* positions that a row attends to at most */
};

struct speed_setup {
    int streams;           /* 0: all experts are in memory */
    double hit_rate;       /* share of a row's experts that are in memory when they are asked for, decode */
    double resident_share; /* slots over experts */
    enum prefetch_mode guesses; /* PREFETCH_AUTO: where that is faster */
    double hit_rate_guessing; /* hit_rate while the experts that are guessed take slots */
    int n_positions;          /* before a decoded row */
    int prompt_rows;          /* of a long prompt */
    int chunk_rows;           /* of a prompt that go through a layer together */
    double chunk_experts;     /* how many different experts these choose */
};

enum speed_bound { BOUND_DRIVE, BOUND_MEMORY, BOUND_COMPUTING, N_SPEED_BOUNDS };
extern const char *const speed_bound_names[N_SPEED_BOUNDS]; /* "the drive", "memory", "computing" */

struct speed_plan {
    double token_seconds, tokens_per_second;             /* decode, one row at a time */
    double computing_seconds;                            /* of these, were all experts in memory */
    double missed_bytes;                                 /* a token */
    enum speed_bound bound;                              /* which of them, done in no time, would help most */
    double prompt_row_seconds, prompt_tokens_per_second; /* in a long prompt */
    double prompt_missed_bytes;                          /* a row of it */
    enum speed_bound prompt_bound;
};

struct speed_plan speed_plan(const struct speed_machine *machine, const struct speed_model *model, const struct speed_setup *setup);

/* One sparse layer of a decoded row of which n_missed experts are not in memory. ahead_bytes: of these, what guesses have read before;
 * becomes what guesses read for the next layer meanwhile. */
double speed_layer_seconds(const struct speed_machine *machine, const struct speed_model *model, const struct speed_setup *setup,
                           int n_missed, double *ahead_bytes);

#endif
