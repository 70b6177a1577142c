/* A stage: the message state machine of one layer range in one epoch (docs/spec/pipeline_protocol.md). No sockets, no clock, no threads: a
 * function from (state, message, time) to (state, messages), and from (state, time) to one unit of work. Runs on the compute thread. */
#ifndef HEARTH_NODE_STAGE_H
#define HEARTH_NODE_STAGE_H

#include <stdint.h>

#include "node/row_engine.h"
#include "proto/outbox.h"

struct stage_config {
    uint64_t epoch_instance;
    uint32_t epoch_counter;
    int stage, n_stages;
    int max_positions, max_sequences, max_rows_in_flight;
    int unit_rows_max; /* rows of one unit */
};

struct stage_counters {
    uint64_t units, rows_done, busy_ns, queue_ns;
    uint64_t steps_stale, steps_void, steps_duplicate, nacks, rows_cut;
};

struct stage;

/* Memory that a stage takes beside its engine, the messages of one unit included. */
uint64_t stage_bytes(const struct stage_config *config, int row_width, int selection_capacity, int vocab_size);

/* engine is borrowed and must match the range. Allocates everything it will ever use. */
enum status stage_new(struct stage **out, const struct stage_config *config, struct row_engine *engine, struct error *err);
void stage_free(struct stage **stage);

/* One decoded message (Open, Drop, Step with its rows, Cut, Commit) and what it leads to. Messages of another epoch have no effect and are
 * counted. At most 4 messages go into out. */
void stage_handle(struct stage *stage, const Hearth__Envelope *envelope, const float *rows, uint64_t now_ns, struct outbox *out);

/* The look-out for deadlines, for times in which no unit runs: at most 1 message. */
void stage_expire(struct stage *stage, uint64_t now_ns, struct outbox *out);

/* Whether a unit could run now. */
int stage_has_work(const struct stage *stage);

/* Picks the unit of highest priority (MTP for a committed token, committed decode, prefill, drafts by depth) and runs it. now_ns: a clock
 * to read before and after. What leaves the range goes into out: Step to PEER_NEXT or Result to PEER_NEXT (the coordinator's row socket) at
 * the tail, Progress to PEER_COORDINATOR. At most STAGE_UNIT_MESSAGES_MAX messages. */
enum { STAGE_UNIT_MESSAGES_MAX = 64 };
struct clock;
void stage_run_unit(struct stage *stage, struct clock *clock, struct outbox *out);

const struct stage_counters *stage_counters(const struct stage *stage);

/* Positions not promised to any sequence. */
int stage_free_positions(const struct stage *stage);

#endif
