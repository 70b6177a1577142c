/* Which nodes there are, what state each is in, and which layer map (epoch) they form. No sockets: time and messages come in, messages go out. */
#ifndef HEARTH_COORDINATOR_MEMBERSHIP_H
#define HEARTH_COORDINATOR_MEMBERSHIP_H

#include <jansson.h>

#include "coordinator/cluster.h"
#include "coordinator/placement.h"

enum node_state { NODE_JOINING, NODE_ASSIGNED, NODE_LOADING, NODE_READY, NODE_DRAINING, NODE_SUSPECT, NODE_LOST, NODE_GONE, N_NODE_STATES };

/* A node as the coordinator sees it. Known by its name; the name belongs to the key it first came with. */
struct member {
    char name[NAME_BYTES_MAX + 1], key[PEER_KEY_BYTES], row_key[PEER_KEY_BYTES], row_endpoint[ENDPOINT_BYTES_MAX + 1];
    int peer;
    uint64_t boot;
    enum node_state state, state_before_suspect;
    uint64_t since_ns, heard_ns;
    int stage; /* -1: not part of the present map */
    struct layer_range range;
    int chunk_rows; /* that it wishes for; 0: no wish */
    /* from its heartbeats */
    uint64_t progress, progress_ns, rows, busy_ms, queue_ms, rows_before, rows_before_ns;
    struct {
        uint64_t hits, misses, read_bytes, wait_ms, slots_used, slots;
    } experts; /* of a node whose experts are on disk, since it started; zeros otherwise */
    uint32_t unit_ms;
    double rows_per_second;
    char remark[TEXT_BYTES_MAX + 1]; /* why it is not serving, "" when there is nothing to say */
};

struct membership {
    const struct cluster_config *config;
    struct member members[CLUSTER_NODES_MAX + 4]; /* a few more than fit, so that a spare or a wrong one can be shown */
    int n_members;
    int by_stage[CLUSTER_NODES_MAX]; /* member of each stage, -1 */
    int n_stages;                    /* 0: no map */
    uint32_t epoch_counter;
    uint64_t incomplete_since_ns; /* the last tick at which it was complete, or the first of all; a map that never got ready does not count */
    uint64_t heartbeat_ns; /* when the last one was sent */
    uint64_t refused, stale;
    char last_refusal[TEXT_BYTES_MAX + 1];
};

void membership_init(struct membership *m, const struct cluster_config *config);

/* Hello, Ready, Heartbeat, Drain and Refuse of scope node. Returns 1 when the present map has ended by it (running requests must fail; `why` [TEXT_BYTES_MAX]
 * says which node and layers). Messages of others than the node itself, or of an old epoch, have no effect. */
int membership_on_message(struct membership *m, int peer, const char *key, const Hearth__Envelope *envelope, uint64_t now_ns, struct outbox *out, char *why);

/* Silence, heartbeats, and a new map when all nodes are here. Returns 1 when the present map has ended. */
int membership_tick(struct membership *m, uint64_t now_ns, struct outbox *out, char *why);

/* 1: every stage is READY (or SUSPECT after READY: it may come back). */
int membership_is_ready(const struct membership *m);

/* Rows of a prompt that travel together now: what was configured, else the longest wish of a stage. */
int membership_chunk_rows(const struct membership *m);

/* The member that a control message of this peer is from, if it belongs to the present map and the envelope to the present epoch; -1 otherwise. */
int membership_stage_of(const struct membership *m, int peer, const Hearth__Envelope *envelope);

int membership_is_present_epoch(const struct membership *m, const Hearth__Envelope *envelope);

/* An envelope of the present epoch (body to be set by the caller). epoch: the caller's storage. */
Hearth__Envelope membership_envelope(const struct membership *m, Hearth__Epoch *epoch);

/* Sends to every stage of the map. */
void membership_broadcast(const struct membership *m, const Hearth__Envelope *envelope, struct outbox *out);

/* 1: all stages stand idle by their heartbeats, and have for `ns`. */
int membership_is_idle(const struct membership *m, uint64_t now_ns, uint64_t ns);

/* Array of nodes and object of the map, for status. */
json_t *membership_status(const struct membership *m, uint64_t now_ns);

/* "layers 2-6 (node 'b', lost for 3 s)" of what is missing; "" when nothing is. */
void membership_missing(const struct membership *m, uint64_t now_ns, char out[TEXT_BYTES_MAX]);

enum { SENTENCE_BYTES_SHOWN = 850 }; /* of what a node says: with its name and what we add it fits in TEXT_BYTES_MAX */

/* Bytes of `text`, at most `max`, that end with a whole character: what a node says is UTF-8, and JSON takes nothing else. */
int membership_whole_characters(const char *text, int max);

#endif
