/* Byte pair merges: of all neighbours that may merge, the pair of the lowest rank goes first, among equals the leftmost, until none is
 * left. A heap over a linked list keeps a piece of n bytes at n log n, however long it is. */
#ifndef HEARTH_MODEL_BPE_H
#define HEARTH_MODEL_BPE_H

#include <stddef.h>
#include <stdint.h>

/* A growing list of token ids. Zero-initialise; id_list_free. */
struct id_list {
    int *ids;
    size_t n, capacity;
};
void id_list_push(struct id_list *list, int id);
void id_list_free(struct id_list *list);

struct bpe_merge {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank;
    uint32_t id_plus_one; /* what the pair becomes; 0: a free slot */
};

/* Zero-initialise. Read-only (any thread) once the merges are in. */
struct bpe {
    int byte_ids[256];
    struct bpe_merge *slots; /* open addressing */
    size_t n_slots, n_merges;
};

/* A later rule for the same pair replaces the earlier one, as the reference does. */
void bpe_add_merge(struct bpe *bpe, int left, int right, uint32_t rank, int id);
void bpe_release(struct bpe *bpe);

/* Working memory of one call at a time; grows with the longest piece seen, at most 104 bytes a byte of it (24 for symbols, 80 for a heap of
 * twice as many candidates, doubled). Zero-initialise. */
struct bpe_scratch {
    struct bpe_symbol *symbols;
    size_t symbols_capacity;
    struct bpe_candidate *heap;
    size_t n_heap, heap_capacity;
};
void bpe_scratch_free(struct bpe_scratch *scratch);

/* Appends the tokens of bytes [length], length < 2^31. */
void bpe_encode(const struct bpe *bpe, const char *bytes, size_t length, struct bpe_scratch *scratch, struct id_list *out);

#endif
