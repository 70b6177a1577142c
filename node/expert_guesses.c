/* Reading on a guess: what the next layer will want, while the drive has nothing better to do. */
#include <string.h>

#include "common/check.h"
#include "node/expert_store_internal.h"

enum {
    SET_GUESSES_MAX = 32, /* experts of one layer that are read on a guess where many rows will choose nearly all */
    SURE_CHOICES = 4,     /* choices per expert from which on it is nearly sure (98 % if all were alike) that it is among them */
};

void store_count_guess(struct expert_store *s, int slot, int came_true)
{
    struct expert_slot *held = &s->slots.slots[slot];
    if (!held->is_prefetched)
        return;
    int file = s->slots.views[slot].layer, source = s->guess_source[slot];
    uint64_t bytes = store_record_bytes(s, file);
    held->is_prefetched = 0;
    s->n_guesses--;
    s->recall[source] += ((float)came_true - s->recall[source]) / 64;
    if (came_true)
        s->layers[file].prefetch_useful_bytes += bytes;
    else
        s->layers[file].prefetch_wasted_bytes += bytes;
}

int store_withdraw_guesses(struct expert_store *s, int except_file)
{
    int n = 0;
    for (struct record_read *read = record_reads_first(s->reads, READ_PREFETCH), *next; read; read = next) {
        next = read->next; /* the others have been asked for, or all of them is on its way and lands in a moment */
        int file = (int)(read->file - s->files.files), slot = expert_slots_find(&s->slots, file, read->expert);
        CHECK(slot >= 0 && s->slots.slots[slot].is_prefetched && !s->slots.slots[slot].users);
        if (file == except_file)
            continue;
        int was_issued = read->state != RECORD_QUEUED, is_free = record_reads_withdraw(s->reads, read);
        s->slots.slots[slot].is_prefetched = 0;
        s->n_guesses--;
        if (was_issued) { /* part of it was read for nothing */
            uint64_t bytes = (uint64_t)__builtin_popcountll(read->landed) * EXPERT_PIECE_BYTES;
            s->recall[s->guess_source[slot]] -= s->recall[s->guess_source[slot]] / 64;
            s->layers[file].prefetch_wasted_bytes += bytes;
            s->layers[file].bytes_read += bytes;
        }
        if (is_free)
            store_clear_slot(s, slot);
        n += is_free;
    }
    return n;
}

/* bound: gives up only an expert that is worth less. 0: there is none, and so no room. */
static int guess(struct expert_store *s, int file, int expert, int source, float bound)
{
    if (expert < 0 || expert_slots_find(&s->slots, file, expert) >= 0)
        return 1;
    if (!store_make_room(s, bound))
        return 0;
    int slot = store_start_read(s, file, expert, READ_PREFETCH);
    s->slots.slots[slot].is_prefetched = 1;
    s->n_guesses++;
    s->guess_source[slot] = (unsigned char)source;
    return 1;
}

/* Few rows: what the next layer's router said, likeliest first, then what the last row chose there. Half the recall: a guess that fails
 * costs a read too. */
static void guess_from_hints(struct expert_store *s)
{
    int file = s->hint_file;
    for (int i = 0; i < s->n_hints; i++)
        if (!guess(s, file, s->hints[i], GUESS_ROUTER, s->recall[GUESS_ROUTER] / 2))
            break;
    for (int i = 0; i < s->top_k && s->request.n_rows == 1; i++)
        if (!guess(s, file, s->last_choice[file * s->top_k + i], GUESS_LAST_ROW, s->recall[GUESS_LAST_ROW] / 2))
            break;
    s->n_hints = 0;
}

/* Many rows choose nearly every expert, and the next layer will take them in ascending order. What they push out would be pushed out by the
 * next layer's own reads a moment later. */
static void guess_all(struct expert_store *s)
{
    int file = s->file + 1, most = s->slots.n_slots / 8 < SET_GUESSES_MAX ? s->slots.n_slots / 8 : SET_GUESSES_MAX;
    for (int expert = 0; expert < s->files.n_experts && s->n_guesses < most; expert++)
        if (!guess(s, file, expert, GUESS_SET, 2))
            break;
    s->has_guessed_all = 1;
}

/* The present layer's own needs come first, and so do its slots: nothing is guessed before the last of them has been started. */
void store_start_guesses(struct expert_store *s)
{
    for (int place = 0; s->is_open && place < s->request.n; place++)
        if (s->want[place] == WANT_PENDING)
            return;
    if (s->n_hints)
        guess_from_hints(s);
    else if (s->is_open && !s->has_guessed_all && s->trial.mode != PREFETCH_OFF && s->n_choices >= SURE_CHOICES * s->files.n_experts &&
             s->file + 1 < s->files.n_files && s->files.files[s->file + 1].layer == s->request.layer + 1)
        guess_all(s);
    else
        return;
    record_reads_kick(s->reads);
}

void store_expect(struct expert_source *source, int layer, const int *experts, int n)
{
    struct expert_store *s = (struct expert_store *)source;
    pthread_mutex_lock(s->lock);
    s->hint_file = s->file_of[layer];
    s->n_hints = s->hint_file < 0 ? 0 : n < GUESSES_MAX ? n : GUESSES_MAX;
    memcpy(s->hints, experts, (size_t)s->n_hints * sizeof *experts);
    store_start_guesses(s);
    pthread_mutex_unlock(s->lock);
}
