/* Token ids and their bytes, both ways. Filled once while a tokenizer opens, read-only (any thread) afterwards. */
#ifndef HEARTH_MODEL_TOKEN_TABLE_H
#define HEARTH_MODEL_TOKEN_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "common/memory.h"

/* Ids are below this: 13 times the largest vocabulary known, and a hostile id cannot make us allocate more than 48 MB. */
enum { TOKEN_IDS_MAX = 1 << 21 };

struct token_entry {
    size_t offset;   /* of its bytes in the pool */
    uint32_t length; /* 0: no such id */
};

/* Zero-initialise. */
struct token_table {
    struct text pool;
    struct token_entry *entries; /* [n_ids] */
    size_t n_ids;                /* highest id + 1 */
    size_t entries_capacity;
    uint32_t *slots; /* open addressing over bytes: id + 1, 0 is free */
    size_t n_slots;  /* a power of two */
    size_t n_tokens;
};

/* Adds a token of at least one byte. Fails (STATUS_INVALID) when the id is out of range or taken, or when the bytes already have an id. */
enum status token_table_add(struct token_table *table, int64_t id, const char *bytes, size_t length, struct error *err);

/* The id of exactly these bytes, -1 when there is none. */
int token_table_find(const struct token_table *table, const char *bytes, size_t length);

/* The bytes of an id, borrowed; NULL when the id does not exist. */
const char *token_table_bytes(const struct token_table *table, int64_t id, size_t *length);

void token_table_release(struct token_table *table);

#endif
