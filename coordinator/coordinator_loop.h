/* hearth-coordinator without its command line: opens the model's small files, the sockets and the HTTP server, and runs the one loop over all of them. */
#ifndef HEARTH_COORDINATOR_LOOP_H
#define HEARTH_COORDINATOR_LOOP_H

#include "common/error.h"
#include "coordinator/coordinator_options.h"

/* Runs until SIGTERM or SIGINT and the end of the running answers (or their deadline). */
enum status coordinator_run(const struct coordinator_options *options, struct error *err);

#endif
