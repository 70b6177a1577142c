/* The open request of an expert store: the union of what one layer's rows chose, from the asking to the last release. */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "common/check.h"
#include "common/clock.h"
#include "model/workspace.h"
#include "node/expert_store_internal.h"

static uint64_t now_ns(void)
{
    return clock_now_ns(clock_monotonic());
}

static void make_ready(struct expert_store *s, int place)
{
    s->want[place] = WANT_READY;
    s->ready[s->ready_tail++] = place;
}

/* A row that is committed has asked for the expert in the slot. */
static void note_use(struct expert_store *s, int slot)
{
    store_count_guess(s, slot, 1);
    if (s->class < READ_DRAFT)
        s->slots.views[slot].is_probation = 0;
}

static void pin(struct expert_store *s, int place, int slot)
{
    expert_slots_use(&s->slots, slot);
    s->n_pinned++;
    note_use(s, slot);
    if (s->slots.slots[slot].state == SLOT_RESIDENT) {
        make_ready(s, place);
    } else {
        s->want[place] = WANT_READING;
        if (s->slots.slots[slot].read.class > s->class)
            record_reads_set_class(s->reads, &s->slots.slots[slot].read, s->class);
    }
}

/* Enough for the drive. More would give up experts for others that an expert computed a moment later makes room for anyway: with few slots
 * that costs a third of the hits (docs/PERFORMANCE.md, "Few slots"). */
int expert_reads_ahead(uint64_t record_bytes)
{
    CHECK(record_bytes);
    uint64_t n = EXPERT_AHEAD_BYTES / record_bytes + 1;
    return n < 2 ? 2 : n > EXPERTS_MAX ? EXPERTS_MAX : (int)n;
}

/* Starts what can be started, lowest id first: that order is what keeps a request that holds landed experts until their turn from waiting
 * for itself. */
static void start_pending(struct expert_store *s)
{
    int queued = 0;
    for (int place = 0; place < s->request.n; place++) {
        if (s->want[place] != WANT_PENDING)
            continue;
        int expert = s->request.experts[place], slot = expert_slots_find(&s->slots, s->file, expert);
        if (slot < 0) {
            if (!s->slots.n_empty && s->n_fetched >= expert_reads_ahead(store_record_bytes(s, s->file)))
                break;
            if (!store_make_room(s, 2) && !(store_withdraw_guesses(s, -1) && store_make_room(s, 2)))
                break;
            slot = store_start_read(s, s->file, expert, s->class);
            s->is_fetched[place] = 1;
            s->n_fetched++;
            queued = 1;
        }
        pin(s, place, slot);
    }
    if (queued)
        record_reads_kick(s->reads);
    store_start_guesses(s);
}

/* Experts that are there are pinned first, so that misses of the same request do not push them out. */
static void pin_residents(struct expert_store *s)
{
    struct expert_stats *counts = &s->layers[s->file];
    int most = s->slots.n_slots - store_transit_slots(s);
    for (int place = 0; place < s->request.n; place++) {
        int slot = expert_slots_find(&s->slots, s->file, s->request.experts[place]);
        int is_there = slot >= 0 && s->slots.slots[slot].state == SLOT_RESIDENT;
        s->pass_needed += !is_there || s->slots.slots[slot].is_prefetched;
        counts->hits += is_there && s->request.n_rows; /* the rest of an interrupted request was counted before */
        counts->misses += !is_there && s->request.n_rows;
        if (is_there && (s->n_pinned < most || s->request.n <= s->slots.n_slots))
            pin(s, place, slot);
    }
}

/* Times whole passes of few rows through the range, for the trial. */
static void note_pass(struct expert_store *s, uint64_t now)
{
    int is_decode = s->class == READ_COMMITTED && s->request.n_rows && s->request.n_rows <= BUFFERED_ROWS_MAX;
    if (s->file <= s->last_file) {
        if (s->is_clean_pass && s->has_been_full) /* not while the memory fills: its pages are made then */
            prefetch_trial_pass(&s->trial, (s->pass_end_ns - s->pass_start_ns) / (uint64_t)s->last_rows, s->pass_needed);
        s->is_clean_pass = s->file == 0 && is_decode;
        s->pass_start_ns = now;
        s->pass_needed = 0;
    } else if (s->file != s->last_file + 1 || s->request.n_rows != s->last_rows) {
        s->is_clean_pass = 0;
    }
    s->last_file = s->file;
    s->last_rows = s->request.n_rows;
    s->source.wants_hints = is_decode && s->trial.is_on;
}

static void note_choice(struct expert_store *s)
{
    if (s->class < READ_DRAFT && s->request.n_rows)
        expert_policy_observe(s->policy, s->file, s->request.experts, s->request.rows, s->request.n, s->request.n_rows);
    if (s->request.n_rows != 1)
        return;
    for (int i = 0; i < s->top_k; i++)
        s->last_choice[s->file * s->top_k + i] = i < s->request.n ? s->request.experts[i] : -1;
}

enum status store_request(struct expert_source *source, const struct expert_request *request, struct error *err)
{
    (void)err;
    struct expert_store *s = (struct expert_store *)source;
    CHECK(!s->is_open && request->n >= 1 && request->n <= s->files.n_experts && s->file_of[request->layer] >= 0);
    pthread_mutex_lock(s->lock);
    s->request = *request;
    s->file = s->file_of[request->layer];
    if (request->n_rows)
        s->n_choices = request->n_rows * s->top_k;
    s->is_open = 1;
    s->n_left = request->n;
    s->n_pinned = s->n_fetched = s->ready_head = s->ready_tail = s->n_hints = s->has_guessed_all = 0;
    memset(s->want, WANT_PENDING, (size_t)request->n);
    memset(s->is_fetched, 0, (size_t)request->n);
    s->layers[s->file].requests += s->request.n_rows > 0;
    note_pass(s, now_ns());
    note_choice(s);                     /* before anything is given up for it */
    store_withdraw_guesses(s, s->file); /* for layers that were passed */
    pin_residents(s);
    start_pending(s);
    store_withdraw_guesses(s, s->file + 1); /* of this layer, not asked for */
    pthread_mutex_unlock(s->lock);
    return STATUS_OK;
}

static int slot_at(const struct expert_store *s, int place)
{
    int slot = expert_slots_find(&s->slots, s->file, s->request.experts[place]);
    CHECK(slot >= 0);
    return slot;
}

/* The error of a read that this request waits for, if there is one. */
static enum status failed_read(const struct expert_store *s, struct error *err)
{
    for (int place = 0; place < s->request.n; place++) {
        if (s->want[place] != WANT_READING)
            continue;
        const struct record_read *read = &s->slots.slots[slot_at(s, place)].read;
        if (read->error.status && (read->state == RECORD_IDLE || read->state == RECORD_LOST))
            return error_set(err, read->error.status, "%s", read->error.text);
    }
    return STATUS_OK;
}

static enum status wait_landed(struct expert_store *s, struct error *err)
{
    uint64_t begin = now_ns(), until_ns = begin + 2 * s->timeout_ns; /* every read has its own, shorter deadline */
    struct timespec until = {(time_t)(until_ns / 1000000000), (long)(until_ns % 1000000000)};
    enum status status = STATUS_OK;
    while (s->ready_head == s->ready_tail && !status) {
        status = failed_read(s, err);
        if (!status && pthread_cond_timedwait(&s->landed, s->lock, &until))
            status = error_set(err, STATUS_TIMEOUT, "%s: no expert has come within %g s", s->files.files[s->file].name,
                               2 * (double)s->timeout_ns / 1e9);
        start_pending(s); /* something may have landed that can be given up */
    }
    s->layers[s->file].wait_ns += now_ns() - begin;
    return status;
}

enum status store_wait_any(struct expert_source *source, int layer, int *expert, struct expert_view *view, struct error *err)
{
    struct expert_store *s = (struct expert_store *)source;
    CHECK(s->is_open && layer == s->request.layer);
    pthread_mutex_lock(s->lock);
    start_pending(s);
    enum status status = s->ready_head == s->ready_tail ? wait_landed(s, err) : STATUS_OK;
    if (!status) {
        int place = s->ready[s->ready_head++];
        *expert = s->request.experts[place];
        status = part_layout_record_view(s->files.files[s->file].layout, s->slots.slots[slot_at(s, place)].read.into, *expert, view, err);
    }
    pthread_mutex_unlock(s->lock);
    return status;
}

static int place_of(const struct expert_store *s, int expert)
{
    for (int place = 0; place < s->request.n; place++)
        if (s->request.experts[place] == expert)
            return place;
    CHECK(!"an expert of the open request");
    return -1;
}

void store_release(struct expert_source *source, int layer, int expert)
{
    struct expert_store *s = (struct expert_store *)source;
    CHECK(s->is_open && layer == s->request.layer);
    pthread_mutex_lock(s->lock);
    int place = place_of(s, expert);
    CHECK(s->want[place] != WANT_DONE);
    if (s->want[place] != WANT_PENDING) {
        int slot = slot_at(s, place);
        struct expert_slot *held = &s->slots.slots[slot];
        expert_slots_unuse(&s->slots, slot);
        s->n_pinned--;
        if (held->state == SLOT_READING && held->read.state == RECORD_IDLE) /* it had failed */
            store_clear_slot(s, slot);
        else if (held->state == SLOT_READING && record_reads_withdraw(s->reads, &held->read))
            store_clear_slot(s, slot);
    }
    s->n_fetched -= s->is_fetched[place];
    s->want[place] = WANT_DONE;
    if (--s->n_left == 0) {
        s->is_open = 0;
        s->pass_end_ns = now_ns();
    }
    pthread_mutex_unlock(s->lock);
}

void store_request_landed(struct expert_store *s, int expert)
{
    int place = place_of(s, expert);
    CHECK(s->want[place] == WANT_READING);
    make_ready(s, place);
}
