/* hearth-node without its command line. Two threads: the net thread owns the sockets, decodes, checks and answers for the process (Hello,
 * heartbeats); the compute thread owns the weights and the stage. Bounded queues between them; no wait without a deadline. */
#ifndef HEARTH_NODE_STAGE_LOOP_H
#define HEARTH_NODE_STAGE_LOOP_H

#include "common/error.h"
#include "node/node_options.h"

/* Runs until SIGTERM or SIGINT. */
enum status node_run(const struct node_options *options, struct error *err);

#endif
