/* What a stage knows of its open sequences besides their numbers in the caches: lengths, cuts, the ids so far, the rows under way. Pure
 * bookkeeping; the rules are those of docs/spec/pipeline_protocol.md. */
#ifndef HEARTH_NODE_SEQUENCE_TABLE_H
#define HEARTH_NODE_SEQUENCE_TABLE_H

#include <stdint.h>

#include "node/row_engine.h"
#include "proto/limits.h"

/* More cuts than rows can be in flight never matter (sequence_add_cut); a lone pipeline has STAGES_MAX + 1 of them. */
enum { CUTS_MAX = 2 * STAGES_MAX };

struct position_record {
    uint64_t hash;       /* rolling hash of all ids below the position; valid up to and at `length` */
    uint32_t generation; /* of the row that was accepted; below `length` */
    int token;           /* below `length` of the row, below `known` the true one */
    uint8_t want;        /* WANT_DRAFT_LOGITS, kept until the true MTP row is made */
};

struct row_cut {
    uint32_t generation, from;
};

struct stage_sequence {
    uint64_t id;
    int is_open, is_failed; /* failed: nothing but Drop has an effect any more */
    int slot;               /* its index in the table */
    int promised;
    struct position_record *at;    /* [promised + 1] */
    int length;                    /* rows accepted, those under way included */
    int known;                     /* ids below it are true: prompt, committed, or of a decode row */
    int ordered;                   /* ids below it came by Commit or prefill: true MTP rows may be made (rule 12); <= known */
    int finished;                  /* rows that left this stage; <= length */
    uint32_t generation;           /* the newest known */
    struct row_cut cuts[CUTS_MAX]; /* ascending generation and ascending from */
    int n_cuts;
    struct stage_row *first, *last; /* rows under way, ascending position */
    float temperature;
    int n_tokens;
    uint64_t busy_ns; /* since the last Progress */
};

struct sequence_table {
    struct stage_sequence *sequences; /* [max] */
    int max;
    int free_positions; /* multiple of CACHE_BLOCK_POSITIONS */
};

/* max_positions is rounded up to whole cache blocks, as the engine's caches are. */
void sequence_table_init(struct sequence_table *table, int max_sequences, int max_positions);
void sequence_table_release(struct sequence_table *table);

/* What a promise of `positions` takes from free_positions. */
int sequence_table_cost(int positions);

struct stage_sequence *sequence_table_find(struct sequence_table *table, uint64_t id);
/* NULL when every slot is in use or the positions are not there. */
struct stage_sequence *sequence_table_open(struct sequence_table *table, uint64_t id, int positions);
/* No rows may be under way. */
void sequence_table_close(struct sequence_table *table, struct stage_sequence *sequence);

/* Row (generation, position) is valid iff position < this (rule 4). NO_CUT: no limit. */
uint32_t sequence_row_limit(const struct stage_sequence *sequence, uint32_t generation);

/* Remembers a cut. 0: it says nothing new (a duplicate, or a newer generation was cut lower). */
int sequence_add_cut(struct stage_sequence *sequence, uint32_t generation, uint32_t from);

/* The length after a cut: the first position at or above `from` whose row is of an older generation, else the length as it is. */
int sequence_length_after(const struct stage_sequence *sequence, uint32_t generation, uint32_t from);

/* The id of the row at position `length` becomes part of the prefix. */
void sequence_append(struct stage_sequence *sequence, uint32_t generation, int token);

#endif
