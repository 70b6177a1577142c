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

struct replay_setup {
    enum replay_kind kind;
    int n_slots;   /* shared by all layers */
    int first_row; /* rows from here on count */
    int in_flight; /* reads of one request that are under way together; 0: all of them */
};

/* Row by row through all layers, as decode goes. A row's request of a layer pins what is there; each miss takes an empty slot or the least
 * valuable one that this request does not use. Ids are used and released in ascending order: a miss may take what its request has released
 * by then, which is when in_flight misses before it have been read, or when no other slot may go. */
struct replay_result cache_replay(const struct routing_trace *trace, const struct replay_setup *setup);

#endif
