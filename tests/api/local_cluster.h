/* The functions of coordinator/cluster.h over the one-process engine, with faults on demand: what the API's tests talk to. One thread; a
 * step of every running request happens inside cluster_tick. */
#ifndef HEARTH_TESTS_API_LOCAL_CLUSTER_H
#define HEARTH_TESTS_API_LOCAL_CLUSTER_H

#include "coordinator/cluster.h"
#include "model/model.h"

struct local_cluster_options {
    struct model *model; /* borrowed */
    int n_tokens;
    int max_sequences, queue_max;
    int chunk_rows;    /* prefill rows in one step */
    uint64_t step_ns;  /* a step takes at least this long */
    int fail_after;    /* > 0: a request fails at its token of this number */
    int never_admits;  /* requests stay in the queue */
    const int *script; /* [n_script] what every answer says instead of what the model would; NULL: the model */
    int n_script;
};

struct cluster *local_cluster_new(const struct local_cluster_options *options);
void local_cluster_free(struct cluster **cluster);

/* A layer range goes away (running requests fail) or comes back. */
void local_cluster_set_complete(struct cluster *cluster, int is_complete);

#endif
