/* The cluster's inside, shared by cluster.c and pipeline.c only. */
#ifndef HEARTH_COORDINATOR_CLUSTER_STATE_H
#define HEARTH_COORDINATOR_CLUSTER_STATE_H

#include "coordinator/membership.h"
#include "coordinator/request.h"

struct pending_event {
    struct cluster_event event;
    char sentence[TEXT_BYTES_MAX];
    float *logits;
};

struct cluster {
    struct cluster_config config;
    struct membership membership;
    struct request *requests; /* in the order of arrival; finished ones are gone */
    uint64_t next_id;
    uint64_t turn; /* id of the request whose prompt was fed last */
    struct pending_event *events;
    size_t first_event, n_events, events_capacity;
    float *event_floats;
    char event_sentence[TEXT_BYTES_MAX];
    float *logits; /* [vocab] candidates laid out for the sampler */
    void *scratch;
    int is_draining;
    double answer_seconds; /* of recent answers, smoothed */
    char last_failure[TEXT_BYTES_MAX]; /* why the last failed request did; "" */
    struct {
        uint64_t ended[N_REQUEST_STATES], stale, redone;
    } counters;
};

/* logits [vocab_size] are copied, or NULL. */
void cluster_push_event(struct cluster *cluster, struct cluster_event event, const float *logits);

struct request *cluster_find(struct cluster *cluster, uint64_t id);

/* The request ends in `state`: stages drop it, FAILED gives an event with the sentence, and it is freed. */
void cluster_end_request(struct cluster *cluster, struct request *request, enum request_state state, enum status status, const char *sentence,
                         struct outbox *out);

#endif
