/* Rows on their way: which step goes next, what came back, what must be sent again (docs/spec/pipeline_protocol.md). */
#ifndef HEARTH_COORDINATOR_PIPELINE_H
#define HEARTH_COORDINATOR_PIPELINE_H

#include "coordinator/cluster_state.h"

/* Opened, Progress, Nack, Refuse of scope sequence, from a stage of the present map. */
void pipeline_on_control(struct cluster *cluster, int stage, const Hearth__Envelope *envelope, uint64_t now_ns, struct outbox *out);

/* Result, from the tail's key only. */
void pipeline_on_rows(struct cluster *cluster, const char *key, const Hearth__Envelope *envelope, const float *rows, uint64_t now_ns, struct outbox *out);

/* Admission, deadlines, feeding of prompts in turn, rows that were lost. */
void pipeline_tick(struct cluster *cluster, uint64_t now_ns, struct outbox *out);

/* Tells the stages that the request's sequence is over. */
void pipeline_drop(struct cluster *cluster, const struct request *request, struct outbox *out);

#endif
