/* What the files of the stage share: stage.c (messages), stage_units.c (work), stage_output.c (what leaves). */
#ifndef HEARTH_NODE_STAGE_INTERNAL_H
#define HEARTH_NODE_STAGE_INTERNAL_H

#include "node/candidates.h"
#include "node/sequence_table.h"
#include "node/stage.h"

enum { ROWS_IN_FLIGHT_MAX = 1 << 16 };

struct stage {
    struct stage_config config;
    struct row_engine *engine;
    struct sequence_table table;
    struct stage_counters counters;

    struct stage_row *rows; /* [max_rows_in_flight] */
    float *residuals;
    int *selections;
    struct stage_row *free_rows; /* through next */
    int n_free_rows;

    int unit_capacity;       /* the larger of unit_rows_max and the engine's sets */
    struct stage_row **unit; /* [unit_capacity] */
    struct stage_row **paused; /* [unit_capacity] rows of the interrupted unit */
    int n_paused, paused_layer;
    const float **logits;    /* [unit_rows_max] */
    int *tokens;             /* [unit_rows_max] */
    float *step_rows;        /* rows of one outgoing Step */
    uint32_t *step_tokens;   /* [STEP_ROWS_MAX] */
    int step_rows_max;       /* rows that fit in one message */
    struct candidates candidates;
    int next_expiry;  /* where the look-out for passed deadlines goes on */
    int prefill_rows; /* rows of a prefill unit, so that it takes about PREFILL_UNIT_NS */
};

/* ---- stage.c ---- */

/* Rows under way at and above `from` are dropped. */
void stage_drop_rows(struct stage *stage, struct stage_sequence *sequence, int from);
/* The sequence's first row has left. */
void stage_free_first(struct stage *stage, struct stage_sequence *sequence);
/* Drops what is under way and tells the coordinator; nothing but Drop has an effect on the sequence any more. */
void stage_fail(struct stage *stage, struct stage_sequence *sequence, uint32_t code, const char *sentence, struct outbox *out);

/* True MTP rows that can be made now. */
int stage_mtp_pending(const struct stage *stage, const struct stage_sequence *sequence);

/* ---- stage_units.c ---- */

/* A row of the interrupted unit is dropped. */
void stage_forget_paused(struct stage *stage, struct stage_row *row);

/* ---- stage_output.c ---- */

void stage_send_refuse(struct stage *stage, uint64_t sequence, Hearth__Scope scope, uint32_t code, const char *sentence,
                       struct outbox *out);
void stage_send_nack(struct stage *stage, uint64_t id, const struct stage_sequence *sequence, uint32_t reason, struct outbox *out);
void stage_send_opened(struct stage *stage, uint64_t id, struct outbox *out);
void stage_send_progress(struct stage *stage, struct stage_sequence *sequence, const struct stage_row *last, struct outbox *out);

/* Whether b may stand right behind a in one Step. */
int stage_step_extends(const struct stage_row *a, const struct stage_row *b);
/* How many of n rows of one sequence, from `first` on, travel in one Step. */
int stage_step_length(const struct stage *stage, const struct stage_row *first, int n);
void stage_send_step(struct stage *stage, const struct stage_row *first, int n, uint64_t now_ns, struct outbox *out);

/* What a finished row is to send back. STATUS_CORRUPT: its logits are not finite; nothing was sent. */
enum status stage_send_result(struct stage *stage, const struct stage_sequence *sequence, const struct stage_row *row, const float *logits,
                              struct outbox *out, struct error *err);
enum status stage_send_draft_logits(struct stage *stage, const struct stage_sequence *sequence, int position, const float *logits,
                                    struct outbox *out, struct error *err);

#endif
