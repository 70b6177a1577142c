#include "model/bpe.h"

#include <stdlib.h>

#include "common/check.h"
#include "common/memory.h"

/* A token of the piece so far; those that were swallowed by their left neighbour have id -1. */
struct bpe_symbol {
    int id;
    int32_t previous, next; /* -1 at the ends */
};

/* A merge that was possible when it was pushed; stale when either symbol has changed since. */
struct bpe_candidate {
    uint32_t rank;
    int32_t at; /* index of the left symbol */
    int left, right, id;
};

void id_list_push(struct id_list *list, int id)
{
    if (list->n == list->capacity) {
        list->capacity = list->capacity ? list->capacity * 2 : 64;
        list->ids = xrealloc(list->ids, list->capacity * sizeof *list->ids);
    }
    list->ids[list->n++] = id;
}

void id_list_free(struct id_list *list)
{
    free(list->ids);
    *list = (struct id_list){0};
}

static uint64_t pair_of(int left, int right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* The slot of a pair, or the free one where it belongs. */
static size_t slot_of(const struct bpe *bpe, uint64_t pair)
{
    uint64_t h = pair * 0x9E3779B97F4A7C15u; /* 2^64 / golden ratio: spreads neighbouring ids */
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9u;
    size_t mask = bpe->n_slots - 1, slot = (size_t)(h >> 32) & mask;
    while (bpe->slots[slot].id_plus_one && bpe->slots[slot].pair != pair)
        slot = (slot + 1) & mask;
    return slot;
}

static void grow(struct bpe *bpe)
{
    struct bpe_merge *old = bpe->slots;
    size_t n_old = bpe->n_slots;
    bpe->n_slots = n_old ? n_old * 2 : 1024;
    bpe->slots = xcalloc(bpe->n_slots, sizeof *bpe->slots);
    for (size_t i = 0; i < n_old; i++)
        if (old[i].id_plus_one)
            bpe->slots[slot_of(bpe, old[i].pair)] = old[i];
    free(old);
}

void bpe_add_merge(struct bpe *bpe, int left, int right, uint32_t rank, int id)
{
    CHECK(left >= 0 && right >= 0 && id >= 0);
    if (bpe->n_merges * 2 >= bpe->n_slots)
        grow(bpe);
    size_t slot = slot_of(bpe, pair_of(left, right));
    bpe->n_merges += !bpe->slots[slot].id_plus_one;
    bpe->slots[slot] = (struct bpe_merge){pair_of(left, right), rank, (uint32_t)id + 1};
}

void bpe_release(struct bpe *bpe)
{
    free(bpe->slots);
    *bpe = (struct bpe){0};
}

void bpe_scratch_free(struct bpe_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->heap);
    *scratch = (struct bpe_scratch){0};
}

static int goes_before(const struct bpe_candidate *a, const struct bpe_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct bpe_scratch *s, struct bpe_candidate candidate)
{
    if (s->n_heap == s->heap_capacity) {
        s->heap_capacity = s->heap_capacity ? s->heap_capacity * 2 : 64;
        s->heap = xrealloc(s->heap, s->heap_capacity * sizeof *s->heap);
    }
    size_t i = s->n_heap++;
    for (; i > 0 && goes_before(&candidate, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = candidate;
}

static struct bpe_candidate heap_pop(struct bpe_scratch *s)
{
    CHECK(s->n_heap > 0);
    struct bpe_candidate top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->n_heap)
            break;
        if (child + 1 < s->n_heap && goes_before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!goes_before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* Pushes the merge of the symbol at `left` with its right neighbour, if there is one. */
static void consider(const struct bpe *bpe, struct bpe_scratch *s, int32_t left)
{
    if (left < 0 || s->symbols[left].next < 0 || !bpe->n_slots)
        return;
    int left_id = s->symbols[left].id, right_id = s->symbols[s->symbols[left].next].id;
    const struct bpe_merge *merge = &bpe->slots[slot_of(bpe, pair_of(left_id, right_id))];
    if (merge->id_plus_one)
        heap_push(s, (struct bpe_candidate){merge->rank, left, left_id, right_id, (int)merge->id_plus_one - 1});
}

static void split_into_bytes(const struct bpe *bpe, struct bpe_scratch *s, const char *bytes, size_t length)
{
    if (length > s->symbols_capacity) {
        s->symbols_capacity = length * 2;
        s->symbols = xrealloc(s->symbols, s->symbols_capacity * sizeof *s->symbols);
    }
    for (size_t i = 0; i < length; i++)
        s->symbols[i] = (struct bpe_symbol){bpe->byte_ids[(unsigned char)bytes[i]], (int32_t)i - 1, i + 1 < length ? (int32_t)i + 1 : -1};
}

static void merge_all(const struct bpe *bpe, struct bpe_scratch *s)
{
    while (s->n_heap) {
        struct bpe_candidate c = heap_pop(s);
        struct bpe_symbol *left = &s->symbols[c.at];
        if (left->id != c.left || left->next < 0 || s->symbols[left->next].id != c.right)
            continue;
        struct bpe_symbol *right = &s->symbols[left->next];
        left->id = c.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0)
            s->symbols[left->next].previous = c.at;
        consider(bpe, s, left->previous);
        consider(bpe, s, c.at);
    }
}

void bpe_encode(const struct bpe *bpe, const char *bytes, size_t length, struct bpe_scratch *s, struct id_list *out)
{
    CHECK(length < INT32_MAX);
    if (!length)
        return;
    split_into_bytes(bpe, s, bytes, length);
    s->n_heap = 0;
    for (size_t i = 0; i + 1 < length; i++)
        consider(bpe, s, (int32_t)i);
    merge_all(bpe, s);
    for (int32_t i = 0; i >= 0; i = s->symbols[i].next)
        id_list_push(out, s->symbols[i].id);
}
