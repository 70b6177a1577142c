/* The cluster as the coordinator runs it: membership, layer ranges, requests, the pipeline. No sockets, no HTTP, no clock: the loop hands in messages and the time,
 * takes out messages to send (outbox) and events for the people who asked (cluster_next_event). One thread. */
#ifndef HEARTH_COORDINATOR_CLUSTER_H
#define HEARTH_COORDINATOR_CLUSTER_H

#include <stdint.h>
#include <jansson.h>

#include "common/error.h"
#include "model/config.h"
#include "model/sampler.h"
#include "proto/handshake.h"
#include "proto/outbox.h"

enum { CLUSTER_STOP_IDS_MAX = 32, CLUSTER_NODES_MAX = STAGES_MAX, CLUSTER_SEQUENCES_MAX = 256 };

/* What one tick, one message, or cancelling everything puts into an outbox at most; the outbox is emptied between these. The most is a tick that ends every
 * running sequence on every stage (Drop), opens as many others there, sends a step of each (the factor's last 2: one row of each, and two whole chunks at
 * the head), and gives out ranges and heartbeats. */
enum { CLUSTER_MESSAGES_MAX = CLUSTER_SEQUENCES_MAX * (2 * CLUSTER_NODES_MAX + 2) };

struct cluster_config {
    const struct model_config *model; /* borrowed */
    struct numeric_class numeric;
    int n_tokens;             /* the tokenizer's size */
    int n_nodes;              /* how many nodes make the cluster complete */
    const char *layers;       /* by hand: "desktop:0-6,laptop:6-10" (begin-end); NULL: split by bytes at legal cuts */
    const uint64_t *layer_bytes; /* [n_layers + n_mtp_layers], for the split; embedding and head counted to the first and last */
    const char *row_endpoint; /* where the tail sends results, "tcp://10.0.0.1:7601" */
    char row_key[PEER_KEY_BYTES]; /* the coordinator's public key; empty in plaintext */
    int max_positions;        /* of all sequences together */
    int max_sequences;        /* requests that run at once */
    int queue_max;            /* requests that wait */
    int chunk_rows;           /* prefill rows in one step; 0: as the stages wish, at most STEP_ROWS_MAX */
    int max_rows_in_flight;
    uint64_t request_deadline_ns; /* a request that takes longer fails; 0: an hour */
    uint64_t suspect_ns, lost_ns; /* silence of a node: 1 s and 2 s */
    uint64_t instance;        /* random, of this process's epoch */
};

struct cluster;
struct cluster *cluster_new(const struct cluster_config *config);
void cluster_free(struct cluster **cluster);

/* A message from a node. row packets carry rows. key: the sender's authenticated public key, "" in plaintext. Messages of old epochs, from peers that are not who
 * they must be, or that fit no state, have no effect and are counted. */
void cluster_on_message(struct cluster *cluster, int peer, const char *key, enum channel channel, const Hearth__Envelope *envelope, const float *rows,
                        uint64_t now_ns, struct outbox *out);

/* Time passes: heartbeats, deadlines, the scheduler. Call at least every 50 ms and after every batch of messages. */
void cluster_tick(struct cluster *cluster, uint64_t now_ns, struct outbox *out);

/* When the next tick is due at the latest. */
uint64_t cluster_next_tick_ns(const struct cluster *cluster, uint64_t now_ns);

/* Why a request was not taken. */
enum submit_refusal { SUBMIT_OK, SUBMIT_QUEUE_FULL, SUBMIT_INCOMPLETE, SUBMIT_TOO_LONG, SUBMIT_DRAINING };

struct cluster_request {
    const int *prompt; /* copied; ids in [0, n_tokens) */
    int n_prompt;
    int max_new;       /* cut to what fits beside the prompt */
    struct sampler_params sampling; /* bias is copied */
    int stop_ids[CLUSTER_STOP_IDS_MAX], n_stop_ids;
    int teacher_forced; /* a checking request: no sampling, every row's logits (EVENT_LOGITS), and of the true MTP rows with want_drafts */
    int want_drafts;
};

/* Queues a request; *id is its number from now on. On refusal the sentence is for people, *retry_after_s (1 to 600) for the header. */
enum submit_refusal cluster_submit(struct cluster *cluster, const struct cluster_request *request, uint64_t now_ns, uint64_t *id, int *retry_after_s,
                                   struct error *err);

/* The asker has gone: the request ends at once, everywhere; no event follows. */
void cluster_cancel(struct cluster *cluster, uint64_t id, uint64_t now_ns, struct outbox *out);

/* No new requests; running ones may end. */
void cluster_drain(struct cluster *cluster);
int cluster_n_running(const struct cluster *cluster);

enum cluster_event_kind {
    EVENT_ADMITTED, /* every stage answered Opened: only now may a 200 be sent */
    EVENT_TOKEN,    /* token, the stop token included (is_stop) */
    EVENT_DONE,     /* finish: stop or length */
    EVENT_FAILED,   /* sentence */
    EVENT_LOGITS,   /* teacher-forced: logits [vocab_size] of the row at position; is_draft_row */
};

struct cluster_event {
    uint64_t request;
    enum cluster_event_kind kind;
    int token, is_stop, is_length;
    int position, is_draft_row;
    const float *logits;  /* valid until the next call of the cluster */
    const char *sentence; /* the same */
    enum status status;
};

/* 1 and the oldest event, or 0. The queue is bounded: at most 2 + max_new events a request, logits are handed out one at a time. */
int cluster_next_event(struct cluster *cluster, struct cluster_event *event);

/* Where the first stage takes rows and the key that must be there; returns the map's number, 0 while there is no map. Strings live until the next call. */
uint32_t cluster_head(const struct cluster *cluster, const char **endpoint, const char **key);

/* 1: every layer is served and answers can start. */
int cluster_is_ready(const struct cluster *cluster);

/* What /health, /v1/status and `hearth status` print: nodes, ranges, states, since when, counters; layers that are missing. New reference. */
json_t *cluster_status(const struct cluster *cluster, uint64_t now_ns);

#endif
