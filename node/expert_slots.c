#include "node/expert_slots.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/budget.h"
#include "common/check.h"
#include "common/huge_pages.h"
#include "common/memory.h"

/* docs/ARCHITECTURE.md, section 10. */
static const unsigned char may_follow[N_SLOT_STATES][N_SLOT_STATES] = {
    [SLOT_EMPTY] = {[SLOT_READING] = 1},
    [SLOT_READING] = {[SLOT_RESIDENT] = 1, [SLOT_EMPTY] = 1},
    [SLOT_RESIDENT] = {[SLOT_EMPTY] = 1},
};

uint64_t expert_slots_arena_bytes(int n_slots, uint64_t record_bytes)
{
    uint64_t bytes = (uint64_t)n_slots * record_bytes;
    return (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
}

uint64_t expert_slots_fit(uint64_t bytes, uint64_t record_bytes)
{
    return bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES / record_bytes;
}

static enum status map_arena(struct expert_slots *s, int pin, struct error *err)
{
    char bytes[32];
    s->arena = huge_pages_map(s->arena_bytes, 1);
    if (!s->arena)
        return error_errno(err, STATUS_NO_MEMORY, "%s for experts", bytes_text(s->arena_bytes, bytes));
    if (!pin || !mlock(s->arena, s->arena_bytes))
        return STATUS_OK;
    return error_errno(err, STATUS_NO_MEMORY, "--pin: cannot lock %s for experts", bytes_text(s->arena_bytes, bytes));
}

enum status expert_slots_init(struct expert_slots *s, int n_slots, const struct expert_files *files, int pin, struct error *err)
{
    CHECK(n_slots >= 1);
    memset(s, 0, sizeof *s);
    s->n_slots = n_slots;
    s->n_files = files->n_files;
    s->n_experts = files->n_experts;
    s->slot_bytes = files->record_bytes_max;
    s->arena_bytes = expert_slots_arena_bytes(n_slots, s->slot_bytes);
    s->slots = xcalloc((size_t)n_slots, sizeof *s->slots);
    s->views = xcalloc((size_t)n_slots, sizeof *s->views);
    s->empty = xcalloc((size_t)n_slots, sizeof *s->empty);
    s->slot_of = xcalloc((size_t)(s->n_files * s->n_experts), sizeof *s->slot_of);
    enum status status = map_arena(s, pin, err);
    if (status) {
        expert_slots_release(s);
        return status;
    }
    for (int i = 0; i < s->n_files * s->n_experts; i++)
        s->slot_of[i] = -1;
    for (int i = 0; i < n_slots; i++) {
        s->slots[i].read.into = s->arena + (uint64_t)i * s->slot_bytes;
        s->views[i] = (struct policy_slot){.layer = -1, .expert = -1};
        s->empty[s->n_empty++] = n_slots - 1 - i;
    }
    return STATUS_OK;
}

void expert_slots_release(struct expert_slots *s)
{
    huge_pages_unmap(s->arena, s->arena_bytes);
    free(s->slots);
    free(s->views);
    free(s->empty);
    free(s->slot_of);
    memset(s, 0, sizeof *s);
}

int expert_slots_find(const struct expert_slots *s, int file, int expert)
{
    CHECK(file >= 0 && file < s->n_files && expert >= 0 && expert < s->n_experts);
    return s->slot_of[file * s->n_experts + expert];
}

static void move_to(struct expert_slots *s, int slot, enum slot_state state)
{
    CHECK(may_follow[s->slots[slot].state][state]);
    s->slots[slot].state = state;
    s->views[slot].may_go = state == SLOT_RESIDENT && !s->slots[slot].users;
}

void expert_slots_claim(struct expert_slots *s, int slot, int file, int expert)
{
    CHECK(s->n_empty && s->empty[s->n_empty - 1] == slot && expert_slots_find(s, file, expert) < 0);
    s->n_empty--;
    move_to(s, slot, SLOT_READING);
    s->views[slot].layer = file;
    s->views[slot].expert = expert;
    s->views[slot].is_probation = 0;
    s->slots[slot].is_prefetched = 0;
    s->slot_of[file * s->n_experts + expert] = slot;
}

void expert_slots_landed(struct expert_slots *s, int slot)
{
    move_to(s, slot, SLOT_RESIDENT);
}

void expert_slots_clear(struct expert_slots *s, int slot)
{
    CHECK(!s->slots[slot].users);
    move_to(s, slot, SLOT_EMPTY);
    s->slot_of[s->views[slot].layer * s->n_experts + s->views[slot].expert] = -1;
    s->views[slot].layer = s->views[slot].expert = -1;
    s->empty[s->n_empty++] = slot;
}

void expert_slots_use(struct expert_slots *s, int slot)
{
    CHECK(s->slots[slot].state != SLOT_EMPTY);
    s->slots[slot].users++;
    s->views[slot].may_go = 0;
}

void expert_slots_unuse(struct expert_slots *s, int slot)
{
    CHECK(s->slots[slot].users > 0);
    s->slots[slot].users--;
    s->views[slot].may_go = s->slots[slot].state == SLOT_RESIDENT && !s->slots[slot].users;
}
