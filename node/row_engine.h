/* What a stage does arithmetic with: the layers it owns (node/stage_forward.c), or hashes in their place (tests/sim/hash_engine.c). A seam.
 * All calls come from the compute thread. Slots are small numbers that the stage gives its open sequences. */
#ifndef HEARTH_NODE_ROW_ENGINE_H
#define HEARTH_NODE_ROW_ENGINE_H

#include <stdint.h>

#include "common/error.h"
#include "model/row.h"

enum row_kind { ROW_PREFILL, ROW_DECODE, ROW_DRAFT };

/* A row inside a stage, from its arrival until it leaves (or is void). */
struct stage_row {
    struct row row; /* position, next_layer, residual [row_width], selection; row.sequence is the engine's own */
    uint64_t sequence;
    int slot;
    uint32_t generation, cut_from; /* cut_from: the cut that its generation began with, NO_CUT: none */
    enum row_kind kind;
    uint32_t depth; /* drafts */
    int token;      /* x at its position */
    int next_token; /* x at the position after it where known, else -1 */
    uint32_t want;  /* enum want bits, for this row */
    uint32_t chunk_first, chunk_rows;
    uint64_t deadline_ns;
    uint64_t arrived_ns;
    int is_paused; /* in the unit that has been interrupted: nothing else may touch it */
    struct stage_row *next; /* the row behind it in its sequence */
};

struct row_engine {
    int layer_begin, layer_end; /* range of the main model; the MTP layer belongs to the tail */
    int is_head, is_tail, has_mtp;
    int row_width;          /* floats of a row between stages */
    int selection_capacity; /* positions that row.selection must have room for */
    int vocab_size;
    int set_rows_max;       /* prefill rows that may be one unit, which may be interrupted; 0: no more than in other units, never interrupted */

    /* Reserves position memory for a sequence; STATUS_BUSY or STATUS_NO_MEMORY with free and needed in the sentence. */
    enum status (*open)(struct row_engine *engine, int slot, int positions, struct error *err);
    void (*drop)(struct row_engine *engine, int slot);

    /* Rows at and above `length` are void; also lowers the true MTP rows to what stays true. */
    void (*truncate)(struct row_engine *engine, int slot, int length);

    /* A row that has arrived is made ready for layer_begin: the head embeds row->token, others have the residual already. */
    enum status (*enter)(struct row_engine *engine, struct stage_row *row, struct error *err);

    /* One layer for rows of one or several sequences (row.next_layer == layer for all; each sequence's in ascending position, all lower
     * rows of it have left the layer here). Sets next_layer and is_finite. Prefill units of an engine with sets may stop when until_ns has passed (*is_done 0);
     * other units may run before they go on, but no other such unit. */
    enum status (*run_unit)(struct row_engine *engine, int layer, struct stage_row **rows, int n_rows, uint64_t until_ns, int *is_done,
                            struct error *err);
    enum status (*resume)(struct row_engine *engine, uint64_t until_ns, int *is_done, struct error *err);
    /* A row of the interrupted unit is void and its memory free for others. With the last one the unit is over. */
    void (*forget)(struct row_engine *engine, struct stage_row *row);

    /* Tail only: rows that left the last layer. Keeps h of each for the MTP layer; logits [n_rows] get a pointer to [vocab_size] floats
     * where the row's want asks for candidates or logits, else NULL; valid until the next call of the engine. */
    enum status (*finish)(struct row_engine *engine, struct stage_row **rows, int n_rows, const float **logits, struct error *err);

    /* Tail only: the true MTP rows of positions [first, first + n) with the tokens after them; continues where the last call ended. logits
     * as above
     * ([n] pointers), or NULL: only cache entries. */
    enum status (*mtp_rows)(struct row_engine *engine, int slot, int first, const int *tokens, int n, const float **logits,
                            struct error *err);

    /* Tail only: true MTP rows that the slot has. */
    int (*mtp_length)(struct row_engine *engine, int slot);
};

#endif
