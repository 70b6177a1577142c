#include "node/expert_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/memory.h"
#include "model/workspace.h"
#include "node/drive_rate.h"
#include "node/expert_prefetch.h"
#include "node/expert_slots.h"
#include "node/use_counts.h"

enum {
    FETCH_AHEAD_BYTES = 16 << 20,
    GUESSES_MAX = 16,       /* experts of one layer that are read on a guess */
    SET_GUESSES_MAX = 32,   /* the same where many rows will choose nearly all */
    SURE_CHOICES = 4,       /* choices per expert from which on it is nearly sure (98 % if all were alike) that it is among them */
};

/* Where a guess came from. */
enum { GUESS_ROUTER, GUESS_LAST_ROW, GUESS_SET, GUESS_SOURCES };
#define TIMEOUT_DEFAULT_NS UINT64_C(30000000000)
#define EMULATION_CHECK_NS UINT64_C(100000000)
#define SAVE_EVERY_NS UINT64_C(300000000000)

/* What became of an expert of the open request. */
enum want { WANT_PENDING, WANT_READING, WANT_READY, WANT_TAKEN, WANT_DONE };

struct expert_store {
    struct expert_source source; /* first: the source is the store */
    struct expert_files files;
    struct expert_slots slots;
    struct expert_policy *policy;
    struct record_reads *reads;
    struct use_counts use_counts;
    pthread_mutex_t *lock; /* of reads; guards slots, request state, counts and policy */
    pthread_cond_t landed;
    int layer_begin;
    int *file_of; /* [LAYERS_MAX + 1] index in files, -1 */
    enum read_class class;
    uint64_t timeout_ns;
    /* the open request */
    struct expert_request request;
    int is_open, file, n_left; /* n_left: not yet released */
    unsigned char *want;       /* [EXPERTS_MAX] enum want, by place in request.experts */
    int *ready, ready_head, ready_tail; /* [EXPERTS_MAX] places, in the order in which they became ready */
    int n_pinned;              /* slots that the request holds */
    unsigned char *is_fetched; /* [EXPERTS_MAX] read for this request, by place */
    int n_fetched;             /* of these, not yet released */
    /* guesses */
    struct prefetch_trial trial;
    float recall[GUESS_SOURCES]; /* share of guesses that came true, decayed */
    int *last_choice;            /* [n_files][top_k], -1 */
    int top_k;
    int hints[GUESSES_MAX], n_hints, hint_file; /* of the next layer; 0: none, or used */
    int has_guessed_all, n_choices; /* n_choices: of all rows of the request */
    unsigned char *guess_source; /* [n_slots] while is_prefetched */
    int n_guesses;               /* slots that are is_prefetched */
    uint64_t pass_start_ns, pass_end_ns;
    int last_file, last_rows, is_clean_pass; /* clean: through all layers in order, the same rows */
    /* warming */
    int *warm; /* [n_files * n_experts] hottest first */
    int n_warm, warm_next;
    uint64_t saved_ns, requests_saved;
    float *uses;
    /* counts */
    struct expert_stats *layers; /* [n_files] */
};

static struct expert_store *of(struct expert_source *source)
{
    return (struct expert_store *)source;
}

static uint64_t now_ns(void)
{
    return clock_now_ns(clock_monotonic());
}

/* ---- slots; under the lock ---- */

static uint64_t record_bytes(const struct expert_store *s, int file)
{
    return s->files.files[file].layout->record_bytes;
}

static void count_guess(struct expert_store *s, int slot, int came_true)
{
    struct expert_slot *held = &s->slots.slots[slot];
    if (!held->is_prefetched)
        return;
    int file = s->slots.views[slot].layer, source = s->guess_source[slot];
    uint64_t bytes = record_bytes(s, file);
    held->is_prefetched = 0;
    s->n_guesses--;
    s->recall[source] += ((float)came_true - s->recall[source]) / 64;
    if (came_true)
        s->layers[file].prefetch_useful_bytes += bytes;
    else
        s->layers[file].prefetch_wasted_bytes += bytes;
}

static void clear_slot(struct expert_store *s, int slot)
{
    if (s->slots.slots[slot].is_prefetched)
        s->n_guesses--;
    s->slots.slots[slot].is_prefetched = 0;
    s->layers[s->slots.views[slot].layer].slots_used--;
    expert_slots_clear(&s->slots, slot);
}

static void give_up(struct expert_store *s, int slot)
{
    count_guess(s, slot, 0);
    clear_slot(s, slot);
}

/* Guesses (and warming) that have not come true go, and what of them is not yet issued is never read. Returns how many slots that freed. */
static int withdraw_guesses(struct expert_store *s, int except_file)
{
    int n = 0;
    for (int i = 0; i < s->slots.n_slots && s->n_guesses; i++) {
        struct expert_slot *slot = &s->slots.slots[i];
        int file = s->slots.views[i].layer;
        if (slot->state != SLOT_READING || slot->users || !slot->is_prefetched || slot->read.is_withdrawn || file == except_file)
            continue;
        int was_issued = slot->read.state != RECORD_QUEUED;
        int is_free = record_reads_withdraw(s->reads, &slot->read);
        if (!is_free && !slot->read.is_withdrawn)
            continue; /* lands in a moment */
        slot->is_prefetched = 0;
        s->n_guesses--;
        s->layers[file].prefetch_bytes -= record_bytes(s, file);
        if (was_issued) { /* part of it was read for nothing */
            uint64_t bytes = (uint64_t)__builtin_popcountll(slot->read.landed) * EXPERT_PIECE_BYTES;
            s->recall[s->guess_source[i]] -= s->recall[s->guess_source[i]] / 64;
            s->layers[file].prefetch_bytes += bytes;
            s->layers[file].prefetch_wasted_bytes += bytes;
            s->layers[file].bytes_read += bytes;
        }
        if (is_free)
            clear_slot(s, i);
        n += is_free;
    }
    return n;
}

/* A slot that holds nothing, on top of slots.empty; gives up the least valuable expert if it must. bound: only one worth less. 0: none to be had. */
static int make_room(struct expert_store *s, float bound)
{
    if (s->slots.n_empty)
        return 1;
    int victim = expert_policy_victim(s->policy, s->slots.views, s->slots.n_slots);
    if (victim < 0)
        return 0;
    const struct policy_slot *view = &s->slots.views[victim];
    if (!view->is_probation && expert_policy_value(s->policy, view->layer, view->expert) >= bound)
        return 0;
    s->layers[view->layer].evictions++;
    give_up(s, victim);
    return 1;
}

/* Queues the read of an expert into the empty slot on top. */
static int start_read(struct expert_store *s, int file, int expert, enum read_class class)
{
    int slot = s->slots.empty[s->slots.n_empty - 1];
    struct expert_slot *held = &s->slots.slots[slot];
    expert_slots_claim(&s->slots, slot, file, expert);
    s->layers[file].slots_used++;
    held->read.file = &s->files.files[file];
    held->read.expert = expert;
    held->read.class = class;
    record_reads_queue(s->reads, &held->read);
    s->slots.views[slot].is_probation = class == READ_DRAFT || class == READ_PREFETCH;
    return slot;
}

/* ---- the open request; under the lock ---- */

/* Slots that a request leaves for its own misses when it pins what is there: a few, so that the drive has something to do while one is computed. */
static int transit_slots(const struct expert_store *s)
{
    int n = s->slots.n_slots / 4;
    return n < EXPERT_SLOTS_MIN ? EXPERT_SLOTS_MIN : n > 8 ? 8 : n;
}

static void make_ready(struct expert_store *s, int place)
{
    s->want[place] = WANT_READY;
    s->ready[s->ready_tail++] = place;
}

/* A row that is committed has asked for the expert in the slot. */
static void note_use(struct expert_store *s, int slot)
{
    count_guess(s, slot, 1);
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

/* Reads that a request has ahead of the computing: enough for the drive. More would give up experts for others that an expert computed a moment later makes
 * room for anyway: with few slots that costs a third of the hits (docs/PERFORMANCE.md, "Few slots"). */
static int fetches_max(const struct expert_store *s)
{
    uint64_t n = FETCH_AHEAD_BYTES / record_bytes(s, s->file) + 1;
    return n < 2 ? 2 : n > EXPERTS_MAX ? EXPERTS_MAX : (int)n;
}

/* ---- guesses; under the lock ---- */

/* bound: gives up only an expert that is worth less. */
static void guess(struct expert_store *s, int file, int expert, int source, float bound)
{
    if (expert < 0 || expert_slots_find(&s->slots, file, expert) >= 0 || !make_room(s, bound))
        return;
    int slot = start_read(s, file, expert, READ_PREFETCH);
    s->slots.slots[slot].is_prefetched = 1;
    s->n_guesses++;
    s->guess_source[slot] = (unsigned char)source;
    s->layers[file].prefetch_bytes += record_bytes(s, file);
}

/* Few rows: what the next layer's router said, likeliest first, then what the last row chose there. Half the recall: a guess that fails costs a read too. */
static void guess_from_hints(struct expert_store *s)
{
    int file = s->hint_file;
    for (int i = 0; i < s->n_hints; i++)
        guess(s, file, s->hints[i], GUESS_ROUTER, s->recall[GUESS_ROUTER] / 2);
    for (int i = 0; i < s->top_k && s->request.n_rows == 1; i++)
        guess(s, file, s->last_choice[file * s->top_k + i], GUESS_LAST_ROW, s->recall[GUESS_LAST_ROW] / 2);
    s->n_hints = 0;
}

/* Many rows choose nearly every expert, and the next layer will take them in ascending order. What they push out would be pushed out by the next layer's
 * own reads a moment later. */
static void guess_all(struct expert_store *s)
{
    int file = s->file + 1, most = s->slots.n_slots / 8 < SET_GUESSES_MAX ? s->slots.n_slots / 8 : SET_GUESSES_MAX;
    for (int expert = 0; expert < s->files.n_experts && s->n_guesses < most; expert++)
        guess(s, file, expert, GUESS_SET, 2);
    s->has_guessed_all = 1;
}

/* The present layer's own needs come first, and so do its slots: nothing is guessed before the last of them has been started. */
static void start_guesses(struct expert_store *s)
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

/* Starts what can be started, lowest id first: that order is what keeps a request that holds landed experts until their turn from waiting for itself. */
static void start_pending(struct expert_store *s)
{
    int queued = 0;
    for (int place = 0; place < s->request.n; place++) {
        if (s->want[place] != WANT_PENDING)
            continue;
        int expert = s->request.experts[place], slot = expert_slots_find(&s->slots, s->file, expert);
        if (slot < 0) {
            if (!s->slots.n_empty && s->n_fetched >= fetches_max(s))
                break;
            if (!make_room(s, 2) && !(withdraw_guesses(s, -1) && make_room(s, 2)))
                break;
            slot = start_read(s, s->file, expert, s->class);
            s->is_fetched[place] = 1;
            s->n_fetched++;
            queued = 1;
        }
        pin(s, place, slot);
    }
    if (queued)
        record_reads_kick(s->reads);
    start_guesses(s);
}

/* Experts that are there are pinned first, so that misses of the same request do not push them out. */
static void pin_residents(struct expert_store *s)
{
    struct expert_stats *counts = &s->layers[s->file];
    int most = s->slots.n_slots - transit_slots(s);
    for (int place = 0; place < s->request.n; place++) {
        int slot = expert_slots_find(&s->slots, s->file, s->request.experts[place]);
        int is_there = slot >= 0 && s->slots.slots[slot].state == SLOT_RESIDENT;
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
        if (s->is_clean_pass)
            prefetch_trial_pass(&s->trial, (s->pass_end_ns - s->pass_start_ns) / (uint64_t)s->last_rows);
        s->is_clean_pass = s->file == 0 && is_decode;
        s->pass_start_ns = now;
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

static enum status start(struct expert_source *source, const struct expert_request *request, struct error *err)
{
    (void)err;
    struct expert_store *s = of(source);
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
    note_choice(s); /* before anything is given up for it */
    withdraw_guesses(s, s->file); /* for layers that were passed */
    pin_residents(s);
    start_pending(s);
    withdraw_guesses(s, s->file + 1); /* of this layer, not asked for */
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
            status = error_set(err, STATUS_TIMEOUT, "layer %d: %s: no expert has come within %g s", s->request.layer,
                               s->files.files[s->file].name, 2 * (double)s->timeout_ns / 1e9);
        start_pending(s); /* something may have landed that can be given up */
    }
    s->layers[s->file].wait_ns += now_ns() - begin;
    return status;
}

static enum status wait_any(struct expert_source *source, int layer, int *expert, struct expert_view *view, struct error *err)
{
    struct expert_store *s = of(source);
    CHECK(s->is_open && layer == s->request.layer);
    pthread_mutex_lock(s->lock);
    start_pending(s);
    enum status status = s->ready_head == s->ready_tail ? wait_landed(s, err) : STATUS_OK;
    if (!status) {
        int place = s->ready[s->ready_head++];
        *expert = s->request.experts[place];
        s->want[place] = WANT_TAKEN;
        status = part_layout_record_view(s->files.files[s->file].layout, s->slots.slots[slot_at(s, place)].read.into, *expert, view, err);
        if (status)
            s->want[place] = WANT_READY; /* for release */
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

static void release(struct expert_source *source, int layer, int expert)
{
    struct expert_store *s = of(source);
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
            clear_slot(s, slot);
        else if (held->state == SLOT_READING && record_reads_withdraw(s->reads, &held->read))
            clear_slot(s, slot);
    }
    s->n_fetched -= s->is_fetched[place];
    s->want[place] = WANT_DONE;
    if (--s->n_left == 0) {
        s->is_open = 0;
        s->pass_end_ns = now_ns();
    }
    pthread_mutex_unlock(s->lock);
}

/* ---- hints ---- */

static void expect(struct expert_source *source, int layer, const int *experts, int n)
{
    struct expert_store *s = of(source);
    pthread_mutex_lock(s->lock);
    s->hint_file = s->file_of[layer];
    s->n_hints = s->hint_file < 0 ? 0 : n < GUESSES_MAX ? n : GUESSES_MAX;
    memcpy(s->hints, experts, (size_t)s->n_hints * sizeof *experts);
    start_guesses(s);
    pthread_mutex_unlock(s->lock);
}

void expert_store_set_class(struct expert_store *s, enum read_class class)
{
    s->class = class;
}

void expert_store_withdraw(struct expert_store *s)
{
    pthread_mutex_lock(s->lock);
    withdraw_guesses(s, -1);
    pthread_mutex_unlock(s->lock);
}

/* ---- what the I/O thread calls; the lock is held ---- */

static void on_end(void *ctx, struct record_read *read, enum status status)
{
    struct expert_store *s = ctx;
    int file = (int)(read->file - s->files.files), slot = expert_slots_find(&s->slots, file, read->expert);
    CHECK(slot >= 0 && &s->slots.slots[slot].read == read);
    struct expert_slot *held = &s->slots.slots[slot];
    if (!status) {
        expert_slots_landed(&s->slots, slot);
        s->layers[file].reads++;
        s->layers[file].bytes_read += record_bytes(s, file);
        if (held->users && s->is_open && s->file == file) {
            int place = place_of(s, read->expert);
            CHECK(s->want[place] == WANT_READING);
            make_ready(s, place);
        }
    } else if (read->state == RECORD_IDLE && !held->users) {
        clear_slot(s, slot);
    } else if (read->state == RECORD_IDLE && status == STATUS_CANCELLED) { /* a guess that was called back has come true after all */
        read->class = s->class;
        record_reads_queue(s->reads, read);
    }
    pthread_cond_signal(&s->landed);
}

/* Writes the counts now and then, and fills empty slots with what earlier runs used most. */
static int on_idle(void *ctx)
{
    struct expert_store *s = ctx;
    while (s->slots.n_empty > transit_slots(s) && s->warm_next < s->n_warm) {
        int key = s->warm[s->warm_next++], file = key / s->files.n_experts, expert = key % s->files.n_experts;
        if (expert_slots_find(&s->slots, file, expert) >= 0)
            continue;
        start_read(s, file, expert, READ_WARM);
        return 1;
    }
    return 0;
}

/* ---- use counts ---- */

static void save_uses(struct expert_store *s)
{
    struct error err;
    pthread_mutex_lock(s->lock);
    expert_policy_export(s->policy, s->uses);
    uint64_t requests = 0;
    for (int f = 0; f < s->files.n_files; f++)
        requests += s->layers[f].requests;
    int is_changed = requests != s->requests_saved;
    s->requests_saved = requests;
    s->saved_ns = now_ns();
    pthread_mutex_unlock(s->lock);
    if (is_changed && use_counts_save(&s->use_counts, &s->files, s->uses, &err))
        log_line(LOG_WARNING, "use counts of experts could not be written: %s", err.text);
}

void expert_store_idle(struct expert_store *s)
{
    if (now_ns() - s->saved_ns > SAVE_EVERY_NS)
        save_uses(s);
}

static int hotter_first(const void *a, const void *b, void *uses)
{
    int ka = *(const int *)a, kb = *(const int *)b;
    float ua = ((const float *)uses)[ka], ub = ((const float *)uses)[kb];
    return ua > ub ? -1 : ua < ub ? 1 : ka - kb;
}

static void load_uses(struct expert_store *s)
{
    int n = s->files.n_files * s->files.n_experts;
    s->saved_ns = now_ns();
    if (!use_counts_load(&s->use_counts, &s->files, s->uses))
        return;
    expert_policy_import(s->policy, s->uses);
    for (int key = 0; key < n; key++)
        if (s->uses[key] > 0)
            s->warm[s->n_warm++] = key;
    qsort_r(s->warm, (size_t)s->n_warm, sizeof *s->warm, hotter_first, s->uses);
    log_line(LOG_INFO, "experts: %d are known from earlier runs; warming up in the background", s->n_warm);
}

/* ---- life ---- */

int expert_store_n_experts(const struct weights_source *source, int layer_begin, int layer_end, uint64_t *bytes)
{
    const struct model_config *c = weights_source_config(source);
    int n = 0;
    *bytes = 0;
    for (int layer = layer_begin; layer < layer_end; layer++) {
        if (!c->is_sparse[layer])
            continue;
        struct part_layout layout;
        weights_source_layout(source, PART_EXPERTS, layer, &layout);
        n += c->n_experts;
        if (layout.record_bytes > *bytes)
            *bytes = layout.record_bytes;
    }
    return n;
}

uint64_t expert_store_overhead_bytes(const struct weights_source *source, int layer_begin, int layer_end, int n_slots)
{
    uint64_t bytes;
    uint64_t n = (uint64_t)expert_store_n_experts(source, layer_begin, layer_end, &bytes);
    const struct model_config *c = weights_source_config(source);
    struct expert_policy_config policy = {(int)(n / (uint64_t)c->n_experts), c->n_experts, c->top_k};
    return (uint64_t)n_slots * (sizeof(struct expert_slot) + sizeof(struct policy_slot) + sizeof(int) + 1) + n * (3 * sizeof(int) + sizeof(float)) +
           expert_policy_bytes(&policy);
}

static void allocate(struct expert_store *s, const struct expert_store_config *config)
{
    const struct model_config *c = weights_source_config(config->source);
    int n_files = s->files.n_files, n = n_files * s->files.n_experts;
    s->top_k = c->top_k;
    s->policy = expert_policy_new(&(struct expert_policy_config){n_files, s->files.n_experts, c->top_k});
    s->file_of = xcalloc(LAYERS_MAX + 1, sizeof *s->file_of);
    for (int layer = 0; layer <= LAYERS_MAX; layer++)
        s->file_of[layer] = -1;
    for (int f = 0; f < n_files; f++)
        s->file_of[s->files.files[f].layer] = f;
    s->want = xcalloc(EXPERTS_MAX, sizeof *s->want);
    s->is_fetched = xcalloc(EXPERTS_MAX, sizeof *s->is_fetched);
    s->ready = xcalloc(EXPERTS_MAX, sizeof *s->ready);
    s->last_choice = xcalloc((size_t)(n_files * s->top_k), sizeof *s->last_choice);
    for (int i = 0; i < n_files * s->top_k; i++)
        s->last_choice[i] = -1;
    s->guess_source = xcalloc((size_t)config->n_slots, sizeof *s->guess_source);
    s->warm = xcalloc((size_t)n, sizeof *s->warm);
    s->uses = xcalloc((size_t)n, sizeof *s->uses);
    s->layers = xcalloc((size_t)n_files, sizeof *s->layers);
    for (int i = 0; i < GUESS_SOURCES; i++)
        s->recall[i] = 0.5f;
}

/* A drive can be emulated only on one that is faster: says so where it is not. */
static enum status check_emulation(const struct expert_store *s, struct block_reader *reader, const struct emulated_drive *drive, int depth, struct error *err)
{
    int n = 0;
    struct drive_extent *extents = xcalloc((size_t)(s->files.n_files * s->files.n_stores), sizeof *extents);
    for (int store = 0; store < s->files.n_stores; store++)
        for (int f = 0; f < s->files.n_files; f++) {
            const struct expert_file *file = &s->files.files[f];
            if (file->fd[store] >= 0)
                extents[n++] = (struct drive_extent){file->fd[store], store, expert_record_offset(file, 0), file->layout->bytes, file->name};
        }
    struct drive_load load = {extents, n, EXPERT_PIECE_BYTES, depth, EMULATION_CHECK_NS, 1};
    struct drive_rate rate;
    enum status status = drive_rate_measure(&rate, reader, &load, err);
    free(extents);
    if (status)
        return error_wrap(err, "--emulate-disk");
    double emulated = drive->bytes_per_second * s->files.n_stores;
    log_line(rate.bytes_per_second < 1.5 * emulated ? LOG_WARNING : LOG_INFO, "--emulate-disk: %.2f GB/s on a drive that gives %.2f GB/s%s", emulated / 1e9,
             rate.bytes_per_second / 1e9, rate.bytes_per_second < 1.5 * emulated ? ": less than 1.5 times that, so what is measured is this drive" : "");
    return STATUS_OK;
}

static enum status open_reader(struct expert_store *s, const struct expert_store_config *config, int depth, struct block_reader **reader, struct error *err)
{
    const struct expert_options *o = config->options;
    struct emulated_drive drive;
    enum status status = emulated_drive_parse(o->emulate_disk, &drive, err);
    int all = s->files.n_stores * depth;
    if (!status)
        status = block_reader_open(reader, o->reader, all < BLOCK_READS_MAX ? all : BLOCK_READS_MAX, err);
    if (status)
        return status;
    if (drive.bytes_per_second > 0 && (status = check_emulation(s, *reader, &drive, depth, err))) {
        (*reader)->close(*reader, s->timeout_ns);
        return status;
    }
    if (config->wrap_reader)
        *reader = config->wrap_reader(config->wrap_ctx, reader);
    if (drive.bytes_per_second > 0)
        *reader = emulated_reader_new(reader, &drive, 1);
    return STATUS_OK;
}

static enum status start_reads(struct expert_store *s, const struct expert_store_config *config, struct error *err)
{
    struct block_reader *reader;
    int depth = config->options->read_depth ? (int)config->options->read_depth : EXPERT_READ_DEPTH;
    enum status status = open_reader(s, config, depth, &reader, err);
    if (status)
        return status;
    struct record_reads_config reads = {.files = &s->files,
                                        .reader = reader,
                                        .store_depth = depth,
                                        .piece_bytes = EXPERT_PIECE_BYTES,
                                        .timeout_ns = s->timeout_ns,
                                        .on_end = on_end,
                                        .on_idle = on_idle,
                                        .ctx = s};
    return record_reads_start(&s->reads, &reads, err);
}

static enum prefetch_mode mode_of(const char *name)
{
    return !strcmp(name, "on") ? PREFETCH_ON : !strcmp(name, "off") ? PREFETCH_OFF : PREFETCH_AUTO;
}

static void free_store(struct expert_store *s)
{
    expert_slots_release(&s->slots);
    expert_files_close(&s->files);
    use_counts_release(&s->use_counts);
    expert_policy_free(&s->policy);
    pthread_cond_destroy(&s->landed);
    free(s->file_of);
    free(s->want);
    free(s->is_fetched);
    free(s->ready);
    free(s->last_choice);
    free(s->guess_source);
    free(s->warm);
    free(s->uses);
    free(s->layers);
    free(s);
}

enum status expert_store_open(struct expert_store **out, const struct expert_store_config *config, struct error *err)
{
    CHECK(config->n_slots >= EXPERT_SLOTS_MIN);
    struct expert_store *s = xcalloc(1, sizeof *s);
    s->timeout_ns = config->timeout_ns ? config->timeout_ns : TIMEOUT_DEFAULT_NS;
    s->last_file = -1;
    s->layer_begin = config->layer_begin;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->landed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *out = NULL;
    enum status status = expert_files_open(&s->files, config->source, config->layer_begin, config->layer_end, config->options->store, err);
    if (!status)
        status = expert_slots_init(&s->slots, config->n_slots, &s->files, config->options->pin, err);
    if (!status) {
        allocate(s, config);
        prefetch_trial_init(&s->trial, mode_of(config->options->prefetch));
        use_counts_init(&s->use_counts, config->options->use_counts, weights_source_identity(config->source), config->layer_begin, config->layer_end);
        load_uses(s);
        status = start_reads(s, config, err);
    }
    if (status) {
        free_store(s);
        return status;
    }
    s->lock = record_reads_lock(s->reads);
    s->source = (struct expert_source){.request = start, .wait_any = wait_any, .release = release, .expect = expect};
    *out = s;
    return STATUS_OK;
}

void expert_store_close(struct expert_store **store)
{
    struct expert_store *s = *store;
    if (!s)
        return;
    *store = NULL;
    CHECK(!s->is_open);
    save_uses(s);
    if (record_reads_stop(&s->reads, UINT64_C(5000000000)))
        free_store(s);
    else
        log_line(LOG_ERROR, "a drive does not answer: the memory that it may still write to is not given back");
}

struct expert_source *expert_store_source(struct expert_store *s)
{
    return &s->source;
}

void expert_store_stats(struct expert_store *s, struct expert_stats *sum, struct expert_stats *layers)
{
    pthread_mutex_lock(s->lock);
    const struct record_reads_counters *c = record_reads_counters(s->reads);
    *sum = (struct expert_stats){0};
    for (int f = 0; f < s->files.n_files; f++) {
        expert_stats_add(sum, &s->layers[f]);
        if (layers)
            layers[s->files.files[f].layer - s->layer_begin] = s->layers[f];
    }
    sum->retries = c->retries;
    sum->read_errors = c->read_errors + c->timeouts;
    sum->checksum_errors = c->checksum_errors;
    sum->read_ns = c->busy_ns;
    sum->slots = (uint64_t)s->slots.n_slots;
    pthread_mutex_unlock(s->lock);
}
