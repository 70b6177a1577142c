/* A cache of experts without the experts: replays a routing trace and counts what would have been there. */
#ifndef HEARTH_CLI_CACHE_REPLAY_H
#define HEARTH_CLI_CACHE_REPLAY_H

#include "cli/routing_trace.h"

enum replay_kind {
    REPLAY_LRU,     /* least recently used */
    REPLAY_LFU,     /* least often used since the start, the counts of experts that went kept */
    REPLAY_POLICY,  /* node/expert_policy.h */
    REPLAY_STATIC,  /* the n_slots experts that the counted rows use most, chosen with hindsight, never changed */
    REPLAY_OPTIMUM, /* clairvoyant: gives up what is used again last (Belady) */
    N_REPLAY_KINDS,
};

struct replay_result {
    uint64_t hits, uses;
};

/* Row by row through all layers, as decode goes. n_slots slots are shared by all layers; rows from first_row on count. A row's request of a
 * layer pins what is there; each miss takes an empty slot or the least valuable one that this request does not use. Where there is none, it
 * takes what the request has released: ids are used and released in ascending order. */
struct replay_result cache_replay(const struct routing_trace *trace, enum replay_kind kind, int n_slots, int first_row);

#endif
