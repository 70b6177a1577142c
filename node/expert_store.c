#include "node/expert_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/memory.h"
#include "node/drive_rate.h"
#include "node/expert_store_internal.h"

#define TIMEOUT_DEFAULT_NS UINT64_C(30000000000)
#define EMULATION_CHECK_NS UINT64_C(100000000)
#define SAVE_EVERY_NS UINT64_C(300000000000)

static uint64_t now_ns(void)
{
    return clock_now_ns(clock_monotonic());
}

/* ---- slots; under the lock ---- */

uint64_t store_record_bytes(const struct expert_store *s, int file)
{
    return s->files.files[file].layout->record_bytes;
}

void store_clear_slot(struct expert_store *s, int slot)
{
    if (s->slots.slots[slot].is_prefetched)
        s->n_guesses--;
    s->slots.slots[slot].is_prefetched = 0;
    s->layers[s->slots.views[slot].layer].slots_used--;
    expert_slots_clear(&s->slots, slot);
}

static void give_up(struct expert_store *s, int slot)
{
    store_count_guess(s, slot, 0);
    store_clear_slot(s, slot);
}

int store_make_room(struct expert_store *s, float bound)
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
    s->has_been_full = 1;
    give_up(s, victim);
    return 1;
}

int store_start_read(struct expert_store *s, int file, int expert, enum read_class class)
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

int store_transit_slots(const struct expert_store *s)
{
    int n = s->slots.n_slots / 4;
    return n < EXPERT_SLOTS_MIN ? EXPERT_SLOTS_MIN : n > 8 ? 8 : n;
}

void expert_store_set_class(struct expert_store *s, enum read_class class)
{
    s->class = class;
}

void expert_store_withdraw(struct expert_store *s)
{
    pthread_mutex_lock(s->lock);
    store_withdraw_guesses(s, -1);
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
        s->layers[file].bytes_read += store_record_bytes(s, file);
        if (held->users && s->is_open && s->file == file)
            store_request_landed(s, read->expert);
    } else if (read->state == RECORD_IDLE && !held->users) {
        store_clear_slot(s, slot);
    } else if (read->state == RECORD_IDLE && status == STATUS_CANCELLED) { /* a guess that was called back has come true after all */
        read->class = s->class;
        record_reads_queue(s->reads, read);
    }
    pthread_cond_signal(&s->landed);
}

/* Fills empty slots with what earlier runs used most. */
static int on_idle(void *ctx)
{
    struct expert_store *s = ctx;
    while (s->slots.n_empty > store_transit_slots(s) && s->warm_next < s->n_warm) {
        int key = s->warm[s->warm_next++], file = key / s->files.n_experts, expert = key % s->files.n_experts;
        if (expert_slots_find(&s->slots, file, expert) >= 0)
            continue;
        store_start_read(s, file, expert, READ_WARM);
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
    return (uint64_t)n_slots * (sizeof(struct expert_slot) + sizeof(struct policy_slot) + sizeof(int) + 1) +
           n * (3 * sizeof(int) + sizeof(float)) + expert_policy_bytes(&policy);
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
static enum status check_emulation(const struct expert_store *s, struct block_reader *reader, const struct expert_options *o, int depth,
                                   struct error *err)
{
    int n = 0;
    struct drive_extent *extents = xcalloc((size_t)(s->files.n_files * s->files.n_stores), sizeof *extents);
    for (int store = 0; store < s->files.n_stores; store++)
        for (int f = 0; f < s->files.n_files; f++) {
            const struct expert_file *file = &s->files.files[f];
            if (file->fd[store] >= 0)
                extents[n++] =
                    (struct drive_extent){file->fd[store], store, expert_record_offset(file, 0), file->layout->bytes, file->name};
        }
    struct drive_load load = {extents, n, EXPERT_PIECE_BYTES, depth, EMULATION_CHECK_NS, 1, 0};
    struct drive_rate rate;
    enum status status = drive_rate_measure(&rate, reader, &load, err);
    free(extents);
    if (status)
        return error_wrap(err, "--emulate-disk");
    double emulated = expert_emulated_rate(o);
    log_line(rate.bytes_per_second < 1.5 * emulated ? LOG_WARNING : LOG_INFO, "--emulate-disk: %.2f GB/s on a drive that gives %.2f GB/s%s",
             emulated / 1e9, rate.bytes_per_second / 1e9,
             rate.bytes_per_second < 1.5 * emulated ? ": less than 1.5 times that, so what is measured is this drive" : "");
    return STATUS_OK;
}

static enum status open_reader(struct expert_store *s, const struct expert_store_config *config, int depth, struct block_reader **reader,
                               struct error *err)
{
    const struct expert_options *o = config->options;
    struct emulated_drive drive;
    enum status status = emulated_drive_parse(o->emulate_disk, &drive, err);
    if (!status)
        status = block_reader_open(reader, o->reader, depth * s->files.n_stores, err);
    if (status)
        return status;
    if (drive.bytes_per_second > 0 && (status = check_emulation(s, *reader, o, depth, err))) {
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
    int depth = expert_read_depth(config->options, s->files.n_stores);
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
        prefetch_trial_init(&s->trial, expert_prefetch_mode(config->options));
        use_counts_init(&s->use_counts, config->options->use_counts, weights_source_identity(config->source), config->layer_begin,
                        config->layer_end);
        load_uses(s);
        status = start_reads(s, config, err);
    }
    if (status) {
        free_store(s);
        return status;
    }
    s->lock = record_reads_lock(s->reads);
    s->source =
        (struct expert_source){.request = store_request, .wait_any = store_wait_any, .release = store_release, .expect = store_expect};
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
    struct record_reads_counters c = record_reads_counters(s->reads);
    *sum = (struct expert_stats){0};
    for (int f = 0; f < s->files.n_files; f++) {
        expert_stats_add(sum, &s->layers[f]);
        if (layers)
            layers[s->files.files[f].layer - s->layer_begin] = s->layers[f];
    }
    sum->retries = c.retries;
    sum->read_errors = c.read_errors + c.timeouts;
    sum->checksum_errors = c.checksum_errors;
    sum->read_ns = c.busy_ns;
    sum->slots = (uint64_t)s->slots.n_slots;
    pthread_mutex_unlock(s->lock);
}
