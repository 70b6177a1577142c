/* The memory that holds experts: one arena of equal slots, and which slot holds which expert. No I/O and no decisions in here. */
#ifndef HEARTH_NODE_EXPERT_SLOTS_H
#define HEARTH_NODE_EXPERT_SLOTS_H

#include "node/expert_policy.h"
#include "node/record_reads.h"

enum slot_state { SLOT_EMPTY, SLOT_READING, SLOT_RESIDENT, N_SLOT_STATES };

struct expert_slot {
    enum slot_state state;
    int users;               /* requests that use or await it; resident and 0: may be given up */
    int is_prefetched;       /* was read on a guess and not yet asked for */
    struct record_read read; /* read.into: its memory */
};

/* Experts are named (file, expert): file is the layer's index in expert_files. */
struct expert_slots {
    int n_slots, n_files, n_experts;
    uint64_t slot_bytes;
    uint8_t *arena;
    uint64_t arena_bytes;
    struct expert_slot *slots;
    struct policy_slot *views; /* [n_slots] what the policy sees, kept up to date */
    int *slot_of;              /* [n_files][n_experts], -1: in no slot */
    int *empty, n_empty;       /* slots that hold nothing */
};

/* What the arena of n slots takes. */
uint64_t expert_slots_arena_bytes(int n_slots, uint64_t record_bytes);
/* The most slots whose arena takes at most so many bytes. */
uint64_t expert_slots_fit(uint64_t bytes, uint64_t record_bytes);

/* pin: locks the arena into memory. Fails with what the system allows and the way out. */
enum status expert_slots_init(struct expert_slots *slots, int n_slots, const struct expert_files *files, int pin, struct error *err);
void expert_slots_release(struct expert_slots *slots);

/* -1: in no slot. */
int expert_slots_find(const struct expert_slots *slots, int file, int expert);

/* EMPTY -> READING, for that expert. */
void expert_slots_claim(struct expert_slots *slots, int slot, int file, int expert);
/* READING -> RESIDENT. */
void expert_slots_landed(struct expert_slots *slots, int slot);
/* READING or RESIDENT without users -> EMPTY. */
void expert_slots_clear(struct expert_slots *slots, int slot);

void expert_slots_use(struct expert_slots *slots, int slot);
void expert_slots_unuse(struct expert_slots *slots, int slot);

#endif
