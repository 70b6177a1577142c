#include "node/sequence_table.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"
#include "proto/wire.h"

int sequence_table_cost(int positions)
{
    return cache_blocks_for(positions) * CACHE_BLOCK_POSITIONS;
}

void sequence_table_init(struct sequence_table *table, int max_sequences, int max_positions)
{
    CHECK(max_sequences >= 1 && max_positions >= 1 && max_positions <= POSITIONS_MAX);
    *table = (struct sequence_table){.max = max_sequences, .free_positions = sequence_table_cost(max_positions)};
    table->sequences = xcalloc((size_t)max_sequences, sizeof *table->sequences);
}

void sequence_table_release(struct sequence_table *table)
{
    for (int i = 0; i < table->max; i++)
        free(table->sequences[i].at);
    free(table->sequences);
    *table = (struct sequence_table){0};
}

struct stage_sequence *sequence_table_find(struct sequence_table *table, uint64_t id)
{
    for (int i = 0; i < table->max; i++)
        if (table->sequences[i].is_open && table->sequences[i].id == id)
            return &table->sequences[i];
    return NULL;
}

struct stage_sequence *sequence_table_open(struct sequence_table *table, uint64_t id, int positions)
{
    CHECK(positions >= 1 && positions <= POSITIONS_MAX);
    int slot = 0, cost = sequence_table_cost(positions);
    while (slot < table->max && table->sequences[slot].is_open)
        slot++;
    if (slot == table->max || cost > table->free_positions)
        return NULL;
    table->free_positions -= cost;
    struct stage_sequence *s = &table->sequences[slot];
    *s = (struct stage_sequence){.id = id, .is_open = 1, .slot = slot, .promised = positions};
    s->at = xcalloc((size_t)positions + 1, sizeof *s->at);
    s->at[0].hash = WIRE_HASH_EMPTY;
    return s;
}

void sequence_table_close(struct sequence_table *table, struct stage_sequence *sequence)
{
    CHECK(sequence->is_open && !sequence->first);
    table->free_positions += sequence_table_cost(sequence->promised);
    free(sequence->at);
    *sequence = (struct stage_sequence){0};
}

uint32_t sequence_row_limit(const struct stage_sequence *sequence, uint32_t generation)
{
    for (int i = 0; i < sequence->n_cuts; i++)
        if (sequence->cuts[i].generation > generation)
            return sequence->cuts[i].from; /* the lowest of them: from ascends */
    return NO_CUT;
}

static void remove_cut(struct stage_sequence *s, int i)
{
    memmove(&s->cuts[i], &s->cuts[i + 1], (size_t)(s->n_cuts - i - 1) * sizeof *s->cuts);
    s->n_cuts--;
}

/* Cuts at or below what is committed and here differ only in which generations may still append: the newest of them says it all. Where that
 * is not enough, more cuts are open than rows can be in flight, and forgetting the oldest harms only the peer that sent them. */
static void make_room(struct stage_sequence *s)
{
    int settled = s->ordered < s->length ? s->ordered : s->length;
    while (s->n_cuts > 1 && s->cuts[1].from <= (uint32_t)settled)
        remove_cut(s, 0);
    if (s->n_cuts == CUTS_MAX)
        remove_cut(s, 0);
}

int sequence_add_cut(struct stage_sequence *s, uint32_t generation, uint32_t from)
{
    for (int i = 0; i < s->n_cuts; i++)
        if (s->cuts[i].generation >= generation && s->cuts[i].from <= from)
            return 0;
    for (int i = 0; i < s->n_cuts;)
        if (s->cuts[i].generation <= generation && s->cuts[i].from >= from)
            remove_cut(s, i);
        else
            i++;
    make_room(s);
    int at = 0;
    while (at < s->n_cuts && s->cuts[at].generation < generation)
        at++;
    memmove(&s->cuts[at + 1], &s->cuts[at], (size_t)(s->n_cuts - at) * sizeof *s->cuts);
    s->cuts[at] = (struct row_cut){generation, from};
    s->n_cuts++;
    CHECK(s->n_cuts <= CUTS_MAX && (at == 0 || s->cuts[at - 1].from < from));
    return 1;
}

int sequence_length_after(const struct stage_sequence *s, uint32_t generation, uint32_t from)
{
    for (int64_t q = from; q < s->length; q++)
        if (s->at[q].generation < generation)
            return (int)q;
    return s->length;
}

void sequence_append(struct stage_sequence *s, uint32_t generation, int token)
{
    CHECK(s->length < s->promised);
    struct position_record *record = &s->at[s->length];
    record->generation = generation;
    record->token = token;
    record->want = 0;
    s->at[++s->length].hash = wire_hash_next(record->hash, (uint32_t)token);
}
