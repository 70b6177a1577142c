/* The compute thread of a node: loads the layers it is assigned, runs the stage unit by unit. Everything else in here belongs to the net
 * thread. */
#ifndef HEARTH_NODE_COMPUTE_THREAD_H
#define HEARTH_NODE_COMPUTE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "model/weights_source.h"
#include "node/answer_log.h"
#include "node/message_queue.h"
#include "node/node_metrics.h"
#include "node/node_options.h"
#include "node/stage.h"
#include "node/stage_forward.h"
#include "node/stage_weights.h"

/* What the net thread hands over. */
enum compute_item {
    COMPUTE_MESSAGE, /* struct stage_message: for the stage */
    COMPUTE_ASSIGN,  /* struct stage_message with an Assign: load and begin a new epoch */
    COMPUTE_FORGET,  /* the coordinator is gone: no stage until the next Assign; weights stay */
};

/* A decoded message and its rows; one allocation each. */
struct stage_message {
    Hearth__Envelope *envelope;
    float *rows;
};

/* What the compute thread hands back. */
enum net_item {
    NET_OUTGOING, /* struct outgoing: to be sent and freed */
    NET_FAILED,   /* no data: the assigned range cannot be had; the Refuse went before */
};

enum compute_state { COMPUTE_WAITING, COMPUTE_LOADING, COMPUTE_READY, COMPUTE_FAILED, N_COMPUTE_STATES };
extern char *const compute_state_names[N_COMPUTE_STATES]; /* as heartbeats and metrics have them */

struct compute_thread {
    const struct node_options *options;
    struct weights_source *source;
    struct node_metrics *metrics; /* what is planned is published there */
    struct message_queue in, out, rows_out; /* rows_out: what goes to row sockets, so that it holds up nothing else */
    pthread_t thread;
    atomic_int should_stop, has_ended;
    /* for heartbeats */
    atomic_int state; /* enum compute_state */
    atomic_uint_fast64_t progress, unit_start_ns, rows, busy_ns, queue_ns;
    /* the compute thread's own */
    uint64_t rows_before, busy_before_ns, queue_before_ns; /* of the stages before this one: heartbeats count since the process started */
    struct kernels kernels;
    uint64_t published_ns;
    struct stage_weights weights;  /* of the last range; kept from epoch to epoch while it stays the same */
    struct stage_forward *forward; /* of the present epoch, with the stage */
    struct stage *stage;
    struct answer_log answers;     /* of the present epoch */
};

/* kernels are copied; source is borrowed: the thread is its only user until compute_thread_stop. metrics are borrowed too. */
enum status compute_thread_start(struct compute_thread *compute, const struct node_options *options, struct weights_source *source,
                                 const struct kernels *kernels, struct node_metrics *metrics, struct error *err);

/* Ends after the unit that runs now and frees everything. 0: it did not end within the deadline (a hanging unit, a long load) and still
 * uses what it was given; the process can only exit. */
int compute_thread_stop(struct compute_thread *compute, int deadline_ms);

void stage_message_free(struct stage_message **message);

#endif
