#include "model/token_table.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/check.h"

const char *token_table_bytes(const struct token_table *table, int64_t id, size_t *length)
{
    if (id < 0 || (size_t)id >= table->n_ids || !table->entries[id].length)
        return NULL;
    *length = table->entries[id].length;
    return table->pool.bytes + table->entries[id].offset;
}

/* The slot that holds these bytes, or the free one where they belong. */
static size_t slot_of(const struct token_table *table, const char *bytes, size_t length)
{
    size_t mask = table->n_slots - 1, slot = (size_t)XXH3_64bits(bytes, length) & mask;
    for (;; slot = (slot + 1) & mask) {
        if (!table->slots[slot])
            return slot;
        const struct token_entry *entry = &table->entries[table->slots[slot] - 1];
        if (entry->length == length && !memcmp(table->pool.bytes + entry->offset, bytes, length))
            return slot;
    }
}

int token_table_find(const struct token_table *table, const char *bytes, size_t length)
{
    if (!table->n_slots || !length)
        return -1;
    return (int)table->slots[slot_of(table, bytes, length)] - 1;
}

static void grow_slots(struct token_table *table)
{
    uint32_t *old = table->slots;
    size_t n_old = table->n_slots;
    table->n_slots = n_old ? n_old * 2 : 1024;
    table->slots = xcalloc(table->n_slots, sizeof *table->slots);
    for (size_t i = 0; i < n_old; i++) {
        if (!old[i])
            continue;
        const struct token_entry *entry = &table->entries[old[i] - 1];
        table->slots[slot_of(table, table->pool.bytes + entry->offset, entry->length)] = old[i];
    }
    free(old);
}

static void grow_entries(struct token_table *table, size_t n_ids)
{
    if (n_ids > table->entries_capacity) {
        size_t capacity = n_ids < TOKEN_IDS_MAX / 2 ? n_ids * 2 : TOKEN_IDS_MAX;
        table->entries = xrealloc(table->entries, capacity * sizeof *table->entries);
        memset(table->entries + table->entries_capacity, 0, (capacity - table->entries_capacity) * sizeof *table->entries);
        table->entries_capacity = capacity;
    }
    if (n_ids > table->n_ids)
        table->n_ids = n_ids;
}

enum status token_table_add(struct token_table *table, int64_t id, const char *bytes, size_t length, struct error *err)
{
    CHECK(length > 0 && length < UINT32_MAX);
    if (id < 0 || id >= TOKEN_IDS_MAX)
        return error_set(err, STATUS_INVALID, "id %lld is outside 0 to %d", (long long)id, TOKEN_IDS_MAX - 1);
    grow_entries(table, (size_t)id + 1);
    if (table->entries[id].length)
        return error_set(err, STATUS_INVALID, "id %lld is used twice", (long long)id);
    if (table->n_tokens * 2 >= table->n_slots)
        grow_slots(table);
    size_t slot = slot_of(table, bytes, length);
    if (table->slots[slot])
        return error_set(err, STATUS_INVALID, "id %lld has the bytes of id %u", (long long)id, table->slots[slot] - 1);
    table->entries[id] = (struct token_entry){table->pool.length, (uint32_t)length};
    text_append(&table->pool, bytes, length);
    table->slots[slot] = (uint32_t)id + 1;
    table->n_tokens++;
    return STATUS_OK;
}

void token_table_release(struct token_table *table)
{
    text_free(&table->pool);
    free(table->entries);
    free(table->slots);
    *table = (struct token_table){0};
}
