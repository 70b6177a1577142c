/* For tests of the expert store: a pack, the true bytes of all its records, a store over it whose reader can be made to fail or to answer
 * late, and requests as model/moe.c makes them. Include it after cmocka.h. */
#ifndef HEARTH_TESTS_EXPERT_RIG_H
#define HEARTH_TESTS_EXPERT_RIG_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"
#include "model/pack.h"
#include "node/expert_store.h"
#include "tests/lib/fault_reader.h"
#include "tests/lib/golden.h"
#include "tests/lib/packs.h"
#include "tests/lib/raw_checkpoint.h"

static const char *const rig_readers[] = {"io_uring", "pread"};
enum { RIG_READERS = 2 };
static const uint64_t RIG_MS = 1000000;

/* ---- a reader that can hold answers back ---- */

/* Between the store and a fault_reader. While is_held, reads that have ended stay here. */
struct rig_gate {
    struct block_reader base;
    struct block_reader *inner;
    pthread_mutex_t mutex; /* is_held, n_of_store; the rest belongs to the I/O thread */
    int is_held, n_of_store[BLOCK_STORES_MAX];
    int n_kept;
    struct block_read *kept[BLOCK_READS_MAX];
};

static inline int rig_gate_submit(struct block_reader *base, struct block_read *read)
{
    struct rig_gate *g = (struct rig_gate *)base;
    pthread_mutex_lock(&g->mutex);
    g->n_of_store[read->store]++;
    pthread_mutex_unlock(&g->mutex);
    return g->inner->submit(g->inner, read);
}

static inline int rig_gate_reap(struct block_reader *base, struct block_read **done, int max, uint64_t timeout_ns)
{
    struct rig_gate *g = (struct rig_gate *)base;
    int n = g->inner->reap(g->inner, done, max, g->n_kept ? RIG_MS : timeout_ns);
    pthread_mutex_lock(&g->mutex);
    int is_held = g->is_held;
    pthread_mutex_unlock(&g->mutex);
    for (int i = 0; i < n && is_held; i++)
        g->kept[g->n_kept++] = done[i];
    if (is_held)
        return 0;
    while (g->n_kept && n < max)
        done[n++] = g->kept[--g->n_kept];
    return n;
}

static inline void rig_gate_wake(struct block_reader *base)
{
    struct rig_gate *g = (struct rig_gate *)base;
    g->inner->wake(g->inner);
}

/* What its inner reader abandons points at this too. */
static inline int rig_gate_close(struct block_reader *base, uint64_t timeout_ns)
{
    struct rig_gate *g = (struct rig_gate *)base;
    if (!g->inner->close(g->inner, timeout_ns))
        return 0;
    pthread_mutex_destroy(&g->mutex);
    free(g);
    return 1;
}

static inline void rig_gate_hold(struct rig_gate *g, int is_held)
{
    pthread_mutex_lock(&g->mutex);
    g->is_held = is_held;
    pthread_mutex_unlock(&g->mutex);
}

static inline int rig_gate_reads(struct rig_gate *g, int store)
{
    pthread_mutex_lock(&g->mutex);
    int n = g->n_of_store[store];
    pthread_mutex_unlock(&g->mutex);
    return n;
}

/* ---- the store ---- */

struct rig {
    char *pack;
    struct weights_source *source;
    const struct model_config *model;
    int layer_begin, layer_end; /* whole model; layer_begin is the first sparse layer */
    uint8_t *files[LAYERS_MAX + 1];
    uint64_t file_bytes[LAYERS_MAX + 1];
    struct part_layout layouts[LAYERS_MAX + 1];
    /* how the next store is opened */
    struct expert_options options;
    uint64_t timeout_ns;
    int starts_held; /* as by rig_gate_hold before the first read */
    /* while a store is open */
    struct expert_store *store;
    struct expert_source *experts;
    struct block_reader *faults;
    struct rig_gate *gate;
    char path[600];
};

/* "PACK/experts-LAYER". Valid until the next call. */
static inline const char *rig_path(struct rig *rig, int layer)
{
    char name[32];
    part_file_name(name, PART_EXPERTS, layer);
    snprintf(rig->path, sizeof rig->path, "%s/%s", rig->pack, name);
    return rig->path;
}

static inline void rig_read_files(struct rig *rig)
{
    for (int layer = rig->layer_begin; layer < rig->layer_end; layer++) {
        char name[32];
        part_file_name(name, PART_EXPERTS, layer);
        if (!rig->model->is_sparse[layer])
            continue;
        weights_source_layout(rig->source, PART_EXPERTS, layer, &rig->layouts[layer]);
        rig->files[layer] = read_file(rig->pack, name, &rig->file_bytes[layer]);
        assert_true(rig->file_bytes[layer] == PACK_HEADER_BYTES + rig->layouts[layer].bytes);
    }
}

/* Takes over pack, a folder. */
static inline void rig_init(struct rig *rig, char *pack)
{
    struct error err = {0};
    memset(rig, 0, sizeof *rig);
    rig->pack = pack;
    if (weights_source_open(&rig->source, pack, &err))
        fail_msg("%s", err.text);
    rig->model = weights_source_config(rig->source);
    rig->layer_end = rig->model->n_layers;
    while (!rig->model->is_sparse[rig->layer_begin])
        rig->layer_begin++;
    rig->options = (struct expert_options){.reader = "pread", .prefetch = "on", .use_counts = "none"};
    rig_read_files(rig);
}

static inline void rig_release(struct rig *rig)
{
    assert_null(rig->store);
    for (int layer = rig->layer_begin; layer < rig->layer_end; layer++)
        free(rig->files[layer]);
    weights_source_close(&rig->source);
    temporary_remove(&rig->pack);
}

static inline struct block_reader *rig_wrap(void *ctx, struct block_reader **reader)
{
    struct rig *rig = ctx;
    struct rig_gate *g = xcalloc(1, sizeof *g);
    rig->faults = fault_reader_new(reader);
    g->base = (struct block_reader){"a gate", rig->faults->depth, rig_gate_submit, rig_gate_reap, rig_gate_wake, rig_gate_close};
    g->inner = rig->faults;
    g->is_held = rig->starts_held;
    pthread_mutex_init(&g->mutex, NULL);
    rig->gate = g;
    return &g->base;
}

static inline enum status rig_try_open(struct rig *rig, int n_slots, struct error *err)
{
    struct expert_store_config config = {.source = rig->source,
                                         .layer_begin = rig->layer_begin,
                                         .layer_end = rig->layer_end,
                                         .n_slots = n_slots,
                                         .options = &rig->options,
                                         .timeout_ns = rig->timeout_ns,
                                         .wrap_reader = rig_wrap,
                                         .wrap_ctx = rig};
    enum status status = expert_store_open(&rig->store, &config, err);
    rig->experts = status ? NULL : expert_store_source(rig->store);
    return status;
}

static inline void rig_open(struct rig *rig, const char *reader, int n_slots)
{
    struct error err = {0};
    rig->options.reader = reader;
    enum status status = rig_try_open(rig, n_slots, &err);
    if (status == STATUS_UNSUPPORTED) { /* io_uring is not allowed here */
        printf("%s: pread instead\n", err.text);
        rig->options.reader = "pread";
        status = rig_try_open(rig, n_slots, &err);
    }
    if (status)
        fail_msg("%s", err.text);
}

static inline void rig_close(struct rig *rig)
{
    expert_store_close(&rig->store);
}

static inline struct expert_stats rig_stats(struct rig *rig)
{
    struct expert_stats sum;
    expert_store_stats(rig->store, &sum, NULL);
    return sum;
}

/* A fault of the records of one expert; expert -1: of the whole file. */
static inline int rig_fault(struct rig *rig, enum fault_kind kind, int layer, int expert, int times)
{
    uint64_t bytes = rig->layouts[layer].record_bytes;
    struct fault fault = {.kind = kind, .path = rig_path(rig, layer), .times = times};
    if (expert >= 0) {
        fault.offset = PACK_HEADER_BYTES + (uint64_t)expert * bytes;
        fault.bytes = bytes;
    }
    return fault_reader_add(rig->faults, &fault);
}

/* Sizes such that a record has several pieces (EXPERT_PIECE_BYTES), and the pack is made in a moment. */
static inline char *rig_large_pack(void)
{
    static const struct raw_size sizes[] = {{"hidden_size", 1024},    {"moe_intermediate_size", 512}, {"n_routed_experts", 8},
                                            {"num_hidden_layers", 3}, {"first_k_dense_replace", 1},   {NULL, 0}};
    char *folder = temporary_folder();
    struct raw_checkpoint c = raw_synthetic(folder, sizes, 0);
    raw_write(&c, 0, c.n, folder, "model.safetensors");
    raw_release(&c);
    char *pack = make_pack(folder, PRECISION_EXACT, NULL);
    temporary_remove(&folder);
    return pack;
}

/* ---- requests ---- */

/* Every byte of the record that the view shows is the file's, and the matrices lie where they should. */
static inline void rig_assert_view(struct rig *rig, int layer, int expert, const struct expert_view *view)
{
    const struct part_layout *layout = &rig->layouts[layer];
    const uint8_t *record = (const uint8_t *)view->gate.data - layout->tensors[0].offset;
    const uint8_t *truth = rig->files[layer] + PACK_HEADER_BYTES + (uint64_t)expert * layout->record_bytes;
    assert_int_equal(view->place, EXPERT_IN_RAM);
    assert_ptr_equal(view->up.data, record + layout->tensors[1].offset);
    assert_ptr_equal(view->down.data, record + layout->tensors[2].offset);
    if (memcmp(record, truth, layout->record_bytes))
        fail_msg("layer %d, expert %d: other bytes than the file's", layer, expert);
}

/* As run_buffered does: each is let go when it has come. On an error the rest is given up. n_rows: for the policy. */
static inline enum status rig_take(struct rig *rig, int layer, const int *experts, int n, int n_rows, struct error *err)
{
    int rows[EXPERTS_MAX];
    unsigned char is_done[EXPERTS_MAX] = {0};
    for (int i = 0; i < n; i++)
        rows[i] = 1;
    enum status status = rig->experts->request(rig->experts, &(struct expert_request){layer, experts, rows, n, n_rows}, err);
    assert_int_equal(status, STATUS_OK);
    for (int done = 0; done < n; done++) {
        int expert = -1;
        struct expert_view view;
        status = rig->experts->wait_any(rig->experts, layer, &expert, &view, err);
        if (status)
            break;
        rig_assert_view(rig, layer, expert, &view);
        is_done[expert] = 1;
        rig->experts->release(rig->experts, layer, expert);
    }
    for (int i = 0; i < n && status; i++)
        if (!is_done[experts[i]])
            rig->experts->release(rig->experts, layer, experts[i]);
    return status;
}

/* As run_in_order does: views are kept until those of lower ids were used; after n_used the rest is given up. */
static inline void rig_take_in_order(struct rig *rig, int layer, const int *experts, int n, int n_rows, int n_used)
{
    int rows[EXPERTS_MAX];
    struct error err = {0};
    struct expert_view views[EXPERTS_MAX];
    unsigned char has_landed[EXPERTS_MAX] = {0};
    for (int i = 0; i < n; i++)
        rows[i] = 1;
    assert_int_equal(rig->experts->request(rig->experts, &(struct expert_request){layer, experts, rows, n, n_rows}, &err), STATUS_OK);
    for (int i = 0; i < n; i++) {
        while (i < n_used && !has_landed[experts[i]]) {
            int expert;
            struct expert_view view;
            if (rig->experts->wait_any(rig->experts, layer, &expert, &view, &err))
                fail_msg("%s", err.text);
            assert_false(has_landed[expert]);
            views[expert] = view;
            has_landed[expert] = 1;
        }
        if (i < n_used)
            rig_assert_view(rig, layer, experts[i], &views[experts[i]]);
        rig->experts->release(rig->experts, layer, experts[i]);
    }
}

static inline enum status rig_take_one(struct rig *rig, int layer, int expert, struct error *err)
{
    return rig_take(rig, layer, &expert, 1, 1, err);
}

/* The one that must come. */
static inline void rig_want_one(struct rig *rig, int layer, int expert)
{
    struct error err = {0};
    if (rig_take_one(rig, layer, expert, &err))
        fail_msg("%s", err.text);
}

/* The sentence of a failed read names file and record. */
static inline void rig_assert_names(const struct error *err, int layer, int expert)
{
    char name[64], record[64];
    part_file_name(name, PART_EXPERTS, layer);
    snprintf(record, sizeof record, "record %d:", expert);
    if (!strstr(err->text, name) || !strstr(err->text, record))
        fail_msg("names neither %s nor %s: %s", name, record, err->text);
}

static inline void rig_sleep_ms(int ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

static inline int rig_is_late(uint64_t start_ns)
{
    return clock_now_ns(clock_monotonic()) - start_ns > 30000 * RIG_MS;
}

/* ---- what is logged ---- */

static int rig_stderr = -1;

static inline void rig_log_begin(const char *path)
{
    fflush(stderr);
    rig_stderr = dup(2);
    assert_non_null(freopen(path, "w", stderr));
}

/* Whether the log has had the words since rig_log_begin. */
static inline int rig_log_end(const char *path, const char *words)
{
    char *slash = strrchr(path, '/'), *folder = xasprintf("%.*s", (int)(slash - path), path);
    uint64_t n;
    fflush(stderr);
    dup2(rig_stderr, 2);
    close(rig_stderr);
    char *text = (char *)read_file(folder, slash + 1, &n);
    int found = strstr(text, words) != NULL;
    if (!found)
        fprintf(stderr, "not in the log: %s\n%s", words, text);
    free(text);
    free(folder);
    return found;
}

#endif
