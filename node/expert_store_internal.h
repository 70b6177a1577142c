/* What the files of the expert store share: expert_store.c (life, slots, what the I/O thread calls), expert_request.c (the request that is
 * open), expert_guesses.c (reading ahead). Everything below is called with the lock held, unless it says otherwise. */
#ifndef HEARTH_NODE_EXPERT_STORE_INTERNAL_H
#define HEARTH_NODE_EXPERT_STORE_INTERNAL_H

#include <pthread.h>

#include "node/expert_policy.h"
#include "node/expert_prefetch.h"
#include "node/expert_slots.h"
#include "node/expert_store.h"
#include "node/record_reads.h"
#include "node/use_counts.h"

enum { GUESSES_MAX = 16 }; /* experts of one layer that its router may say */

/* Where a guess came from. */
enum { GUESS_ROUTER, GUESS_LAST_ROW, GUESS_SET, GUESS_SOURCES };

/* What became of an expert of the open request. */
enum want { WANT_PENDING, WANT_READING, WANT_READY, WANT_DONE };

struct expert_store {
    struct expert_source source; /* first: the source is the store */
    struct expert_files files;
    struct expert_slots slots;
    struct expert_policy *policy;
    struct record_reads *reads;
    struct use_counts use_counts;
    pthread_mutex_t *lock; /* of reads; guards slots, request state, counts and policy */
    pthread_cond_t landed;
    int layer_begin;
    int *file_of; /* [LAYERS_MAX + 1] index in files, -1 */
    enum read_class class;
    uint64_t timeout_ns;
    /* the open request */
    struct expert_request request;
    int is_open, file, n_left;          /* n_left: not yet released */
    unsigned char *want;                /* [EXPERTS_MAX] enum want, by place in request.experts */
    int *ready, ready_head, ready_tail; /* [EXPERTS_MAX] places, in the order in which they became ready */
    int n_pinned;                       /* slots that the request holds */
    unsigned char *is_fetched;          /* [EXPERTS_MAX] read for this request, by place */
    int n_fetched;                      /* of these, not yet released */
    /* guesses */
    struct prefetch_trial trial;
    float recall[GUESS_SOURCES]; /* share of guesses that came true, decayed */
    int *last_choice;            /* [n_files][top_k], -1 */
    int top_k;
    int hints[GUESSES_MAX], n_hints, hint_file; /* of the next layer; 0: none, or used */
    int has_guessed_all, n_choices;             /* n_choices: of all rows of the request */
    unsigned char *guess_source;                /* [n_slots] while is_prefetched */
    int n_guesses;                              /* slots that are is_prefetched */
    uint64_t pass_start_ns, pass_end_ns;
    int has_been_full; /* some expert has given up its slot to another */
    int pass_needed; /* records that were not there, or only because they were guessed */
    int last_file, last_rows, is_clean_pass; /* clean: through all layers in order, the same rows */
    /* warming */
    int *warm; /* [n_files * n_experts] hottest first */
    int n_warm, warm_next;
    uint64_t saved_ns, requests_saved;
    float *uses;
    /* counts */
    struct expert_stats *layers; /* [n_files] */
};

/* ---- expert_store.c ---- */

uint64_t store_record_bytes(const struct expert_store *s, int file);
void store_clear_slot(struct expert_store *s, int slot);
/* A slot that holds nothing, on top of slots.empty; gives up the least valuable expert if it must. bound: only one worth less. 0: none to
 * be had. */
int store_make_room(struct expert_store *s, float bound);
/* Queues the read of an expert into the empty slot on top; returns the slot. */
int store_start_read(struct expert_store *s, int file, int expert, enum read_class class);
/* Slots that a request leaves for its own misses when it pins what is there: a few, so that the drive has something to do while one is
 * computed. */
int store_transit_slots(const struct expert_store *s);

/* ---- expert_request.c ---- */

/* struct expert_source; without the lock. */
enum status store_request(struct expert_source *source, const struct expert_request *request, struct error *err);
enum status store_wait_any(struct expert_source *source, int layer, int *expert, struct expert_view *view, struct error *err);
void store_release(struct expert_source *source, int layer, int expert);
/* An expert that the open request waits for has landed. */
void store_request_landed(struct expert_store *s, int expert);

/* ---- expert_guesses.c ---- */

/* struct expert_source; without the lock. */
void store_expect(struct expert_source *source, int layer, const int *experts, int n);
/* Starts guesses if the open request has started all that it needs. */
void store_start_guesses(struct expert_store *s);
/* Guesses that have not come true go, and what of them is not yet issued is never read. Returns how many slots that freed. */
int store_withdraw_guesses(struct expert_store *s, int except_file);
/* The expert in the slot was asked for, or is given up. */
void store_count_guess(struct expert_store *s, int slot, int came_true);

#endif
