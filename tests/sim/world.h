/* A whole cluster in one thread with a seed: the real coordinator core and the real stages over a fake clock and a fake network, with an engine that computes hashes
 * instead of layers. Checks after every event that committed tokens equal those of one process, and at the end that everything healed and nothing is left
 * behind. That it links at all shows that the logic has no sockets. */
#ifndef HEARTH_TESTS_SIM_WORLD_H
#define HEARTH_TESTS_SIM_WORLD_H

#include <stdint.h>

/* Deliberate defects, made by changing messages on their way: the checks must find them. */
enum world_defect {
    DEFECT_NONE,
    DEFECT_NO_EPOCH_CHECK,  /* every message looks as if it were of the receiver's epoch */
    DEFECT_CUT_OFF_BY_ONE,  /* cuts leave one row too many */
    DEFECT_STALE_GENERATION, /* a cut does not raise the generation */
};

struct world_result {
    int n_done, n_failed, n_refused;  /* requests */
    int n_kills, n_pauses, n_partitions, n_lost, n_redone, n_coordinator_restarts, n_cancelled, n_replays;
    uint64_t n_messages;
    char violation[300]; /* "" when nothing was wrong */
};

struct world_result world_run(uint64_t seed, enum world_defect defect);

#endif
