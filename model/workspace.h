/* Scratch of the layers, all of it allocated once for the largest set of rows (and counted in the memory budget). Overwritten by every layer. */
#ifndef HEARTH_MODEL_WORKSPACE_H
#define HEARTH_MODEL_WORKSPACE_H

#include <stddef.h>

#include "common/error.h"
#include "model/config.h"

/* Up to this many rows the outputs of all chosen experts are kept until the last one is there, so that experts may arrive in any order; above it
 * experts are added one by one in ascending id (docs/ARCHITECTURE.md, section 5). */
enum { BUFFERED_ROWS_MAX = 8, THREAD_SCRATCH_MAX = 256 };

struct thread_scratch {
    float *scores;         /* [HEADS_AT_ONCE][selected] attention scores */
    const float **latents; /* [selected] */
    void *head_q;          /* quantized rows of one head: [max_rows][max(nope, kv_lora)] */
};

/* Which experts the rows of a set chose, and the way from an expert to its rows. */
struct routing {
    float *logits;        /* [rows][experts] */
    int *chosen;          /* [rows][top_k] ascending ids */
    float *weight;        /* [rows][top_k] */
    int *expert_rows;     /* [rows * top_k] row numbers, grouped by expert */
    int *place;           /* [rows * top_k] where in expert_rows the row's choice stands */
    int *first;           /* [experts + 1] where an expert's rows begin in expert_rows */
    int *list, *uses;     /* [experts] chosen by any row, ascending; how many rows chose each */
    struct expert_view *views; /* [experts] of those that have come */
    unsigned char *landed;     /* [experts] */
};

struct workspace {
    void *memory;
    int max_rows, max_positions, n_threads;
    int selected_max; /* positions that one row can attend to */

    float *normed;      /* [rows][H] */
    void *normed_q;
    float *query_low;   /* [rows][q_lora] */
    void *query_low_q;
    float *kv;          /* [rows][kv_lora + rope] */
    float *query;       /* [rows][heads][nope + rope] */
    float *absorbed;    /* [rows][heads][kv_lora + rope] */
    float *mixed;       /* [rows][heads][kv_lora] */
    float *values;      /* [rows][heads][v] */
    void *values_q;
    float *out;         /* [rows][H] what attention or MLP adds to the residual */
    float *shared_out;  /* [rows][H] of the shared expert */
    float *rope_cos, *rope_sin; /* [rows][rope / 2] */
    float *index_query; /* [rows][index_heads][index_dim] */
    float *index_key;   /* [rows][index_dim] */
    float *index_weight; /* [rows][index_heads] */
    float *index_scores; /* [positions] of one row */

    struct routing routing;
    float *gathered;      /* [rows][H] */
    void *gathered_q;
    float *gate, *up;     /* [rows][widest MLP] */
    void *gate_q;
    float *expert_out;    /* [rows][H], or [BUFFERED_ROWS_MAX * top_k][H] */

    float *head_rows; /* [rows][H] normed rows for the head */
    void *head_q;
    float *mtp_pair;  /* [rows][2 H] */
    void *mtp_pair_q;

    struct thread_scratch threads[THREAD_SCRATCH_MAX];
};

/* Lays out the arrays for a set of max_rows rows at base (64-byte aligned), or, with base NULL, only counts. Returns the bytes. */
size_t routing_place(struct routing *routing, const struct model_config *config, int max_rows, void *base);

/* Bytes that workspace_init will allocate. */
size_t workspace_bytes(const struct model_config *config, int max_rows, int max_positions, int n_threads);
enum status workspace_init(struct workspace *work, const struct model_config *config, int max_rows, int max_positions, int n_threads, struct error *err);
void workspace_release(struct workspace *work);

#endif
