/* Goal: experts from disk give the same bytes as experts in RAM, whatever fits in memory and however they are read. Method: every checkpoint as a pack, exact and
 * int4; logits and MTP logits of a model that has everything resident against one whose experts come from a store with few to all slots, by both readers,
 * from one and two folders, with and without guesses, from an emulated drive with jitter, rows in sets, one by one and interrupted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/check.h"
#include "common/memory.h"
#include "node/expert_store.h"
#include "tests/lib/golden.h"
#include "tests/lib/packs.h"

enum { PROMPT = 150, ANSWER = 10, LENGTH = PROMPT + ANSWER, POSITIONS = 1024 };

#define OK(call)                                                                                                                           \
    do {                                                                                                                                   \
        if (call)                                                                                                                          \
            fail_msg("%s", err.text);                                                                                                      \
    } while (0)

struct run {
    float *logits, *hidden, *drafts; /* [LENGTH][..] */
};

static void make_tokens(int *tokens, int vocab)
{
    uint32_t x = 12345;
    for (int i = 0; i < LENGTH; i++) {
        x = x * 1664525u + 1013904223u;
        tokens[i] = (int)((x >> 8) % (uint32_t)vocab);
    }
}

/* A prompt, then row by row, then the MTP rows. */
static struct run run_model(struct model *m)
{
    struct error err;
    const struct model_config *c = m->config;
    size_t vocab = (size_t)c->vocab_size, hidden = (size_t)c->hidden_size;
    struct run r = {xcalloc(LENGTH * vocab, sizeof(float)), xcalloc(LENGTH * hidden, sizeof(float)), xcalloc(LENGTH * vocab, sizeof(float))};
    struct sequence_state s;
    int tokens[LENGTH];
    make_tokens(tokens, c->vocab_size);
    OK(model_sequence_init(m, &s, LENGTH, &err));
    for (int at = 0, n; at < LENGTH; at += n) {
        n = at ? 1 : PROMPT;
        OK(model_forward(m, &(struct model_input){&s, tokens + at, n, r.logits + (size_t)at * vocab, r.hidden + (size_t)at * hidden}, 1, &err));
    }
    if (c->n_mtp_layers)
        OK(model_mtp_rows(m, &s, 0, tokens + 1, LENGTH - 1, r.hidden, r.drafts, &err));
    sequence_state_release(&s);
    return r;
}

static void free_run(struct run *r)
{
    free(r->logits);
    free(r->hidden);
    free(r->drafts);
}

/* How a store is set up. */
struct setup {
    int n_slots, chunk;
    const char *reader, *prefetch, *emulate, *store;
};

static void compare(const char *pack, const struct setup *setup, const struct run *expected)
{
    struct error err;
    struct model *m;
    struct expert_store *store;
    struct expert_options options = {
        .store = setup->store, .reader = setup->reader, .prefetch = setup->prefetch, .emulate_disk = setup->emulate, .use_counts = "none"};
    OK(model_prepare(&m, pack, &(struct model_options){.n_threads = 2, .max_rows = setup->chunk, .max_positions = POSITIONS}, &err));
    struct expert_store_config config = {
        .source = m->source, .layer_end = config_layers_with_mtp(m->config), .n_slots = setup->n_slots, .options = &options};
    OK(expert_store_open(&store, &config, &err));
    OK(model_load(m, expert_store_source(store), &err));
    struct run r = run_model(m);
    size_t vocab = (size_t)m->config->vocab_size;
    if (memcmp(r.logits, expected->logits, LENGTH * vocab * sizeof(float)) || memcmp(r.drafts, expected->drafts, LENGTH * vocab * sizeof(float)))
        fail_msg("%s: %d slots, rows by %d, %s, prefetch %s, drive %s: other logits", pack, setup->n_slots, setup->chunk, setup->reader, setup->prefetch,
                 setup->emulate ? setup->emulate : "as it is");
    struct expert_stats stats;
    expert_store_stats(store, &stats, NULL);
    assert_true(stats.misses > 0 && stats.reads > 0 && stats.slots_used <= stats.slots && stats.slots == (uint64_t)setup->n_slots);
    assert_int_equal(stats.read_errors + stats.checksum_errors + stats.retries, 0);
    assert_true(stats.prefetch_useful_bytes + stats.prefetch_wasted_bytes <= stats.bytes_read);
    free_run(&r);
    expert_store_close(&store);
    model_close(&m);
}

/* Two folders: the experts files of every other layer, as links to the pack's, and the last one in both. */
static char *split_stores(const char *pack, const struct model_config *c, char *folders[2])
{
    int last = 0;
    for (int layer = 0; layer < config_layers_with_mtp(c); layer++)
        last = c->is_sparse[layer] ? layer : last;
    for (int i = 0; i < 2; i++)
        folders[i] = temporary_folder();
    for (int layer = 0; layer <= last; layer++)
        for (int i = 0; i < 2 && c->is_sparse[layer]; i++) {
            char from[600], to[600];
            snprintf(from, sizeof from, "%s/experts-%02d", pack, layer);
            snprintf(to, sizeof to, "%s/experts-%02d", folders[i], layer);
            if (layer % 2 == i || layer == last)
                assert_int_equal(link(from, to), 0);
        }
    return xasprintf("%s,%s", folders[0], folders[1]);
}

static void compare_all(const char *pack)
{
    struct model *resident = open_or_fail(pack, &(struct model_options){.n_threads = 2, .max_positions = POSITIONS});
    const struct model_config *c = resident->config;
    struct run expected = run_model(resident);
    int layers = 0, k = c->top_k, n = c->n_experts;
    for (int layer = 0; layer < config_layers_with_mtp(c); layer++)
        layers += c->is_sparse[layer];
    char *folders[2], *two = split_stores(pack, c, folders);
    int slots[] = {EXPERT_SLOTS_MIN, layers + 1, layers * (k - 1) + 1, layers * k, layers * n / 2, layers * n};
    const char *const readers[] = {"io_uring", "pread"}, *const prefetch[] = {"on", "off", "auto"}, *const drives[] = {NULL, "2,20,300"};
    const int chunks[] = {64, 1, 256, 100};
    for (int i = 0; i < 12; i++) {
        struct setup setup = {.n_slots = slots[i % 6] < EXPERT_SLOTS_MIN ? EXPERT_SLOTS_MIN : slots[i % 6],
                              .chunk = chunks[(i + i / 6) % 4],
                              .reader = readers[(i / 2 + i / 6) % 2],
                              .prefetch = prefetch[(i + i / 3) % 3],
                              .emulate = drives[i % 3 == 1],
                              .store = i % 2 ? two : NULL};
        if (i % CASE_STRIDE == 0 || CASE_STRIDE == 1)
            compare(pack, &setup, &expected);
    }
    for (int i = 0; i < 2; i++)
        temporary_remove(&folders[i]);
    free(two);
    free_run(&expected);
    model_close(&resident);
}

static void same_bytes(void **state)
{
    const char *name = *state;
    char path[512];
    for (int precision = PRECISION_EXACT; precision <= PRECISION_INT4; precision += PRECISION_INT4 - PRECISION_EXACT) {
        char *pack = make_pack(checkpoint_path(path, name), (enum precision)precision, NULL);
        compare_all(pack);
        temporary_remove(&pack);
    }
}

int main(void)
{
    struct CMUnitTest tests[16];
    int n = 0;
    for (const char *const *name = checkpoint_names; *name; name++)
        tests[n++] = (struct CMUnitTest){*name, same_bytes, NULL, NULL, (void *)*name};
    return _cmocka_run_group_tests("experts from disk give the same bytes", tests, (size_t)n, NULL, NULL);
}
