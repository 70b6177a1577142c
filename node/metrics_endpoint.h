/* GET /metrics over HTTP, for Prometheus and people: a thread of its own that only reads what was published (node/node_metrics.h). Nothing
 * else is served. */
#ifndef HEARTH_NODE_METRICS_ENDPOINT_H
#define HEARTH_NODE_METRICS_ENDPOINT_H

#include "common/error.h"
#include "node/node_metrics.h"

#define METRICS_ADDRESS_DEFAULT "127.0.0.1:7603"

struct metrics_endpoint;

/* address: as for socket_listen (common/sockets.h); "off": *out is NULL, nothing listens.
 * NULL: the default, and when that cannot be had (another node of this machine has it), a warning that says what to do, *out is NULL and
 * all is well; an address that was asked for and cannot be had is an error. metrics: borrowed until close. */
enum status metrics_endpoint_open(struct metrics_endpoint **out, const char *address, struct node_metrics *metrics, struct error *err);
void metrics_endpoint_close(struct metrics_endpoint **endpoint);

int metrics_endpoint_port(const struct metrics_endpoint *endpoint);

#endif
