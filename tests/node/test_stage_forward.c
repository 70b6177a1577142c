/* Goal: rows that pass through several layer ranges, one engine each, give the bytes of logits and MTP logits that one process gives.
 * Method: kindling and every tiny checkpoint, exact from the vendor folder and int4 from a pack, split at every legal cut into one, two and
 * three ranges; several sequences side by side in chunks of 1, 7 and 64 rows, handed from engine to engine through plain memory; then a
 * cut, other rows, a cut, the right rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/memory.h"
#include "kernels/parallel.h"
#include "node/stage_forward.h"
#include "proto/limits.h"
#include "tests/lib/golden.h"
#include "tests/lib/packs.h"

enum { SEQUENCES_MAX_HERE = 3, RANGES_MAX = 3, UNIT_ROWS = 64, LENGTH_MAX = 110 };

#define OK(call)                                                                                                                           \
    do {                                                                                                                                   \
        if (call)                                                                                                                          \
            fail_msg("%s", err.text);                                                                                                      \
    } while (0)

struct cases {
    int n, vocab;
    const int *tokens[SEQUENCES_MAX_HERE];
    int length[SEQUENCES_MAX_HERE];
    float *logits[SEQUENCES_MAX_HERE], *drafts[SEQUENCES_MAX_HERE]; /* [length][vocab] of one process */
};

static const char *what; /* is being compared, for failures */

static void compute_in_one_process(const char *dir, struct cases *cases)
{
    struct error err;
    struct model *m = open_or_fail(dir, &(struct model_options){.n_threads = 1, .max_rows = UNIT_ROWS, .max_positions = 1024});
    cases->vocab = m->config->vocab_size;
    for (int i = 0; i < cases->n; i++) {
        size_t n = (size_t)cases->length[i];
        struct sequence_state s;
        float *hidden = xcalloc(n * (size_t)m->config->hidden_size, sizeof *hidden);
        cases->logits[i] = xcalloc(n * (size_t)cases->vocab, sizeof(float));
        cases->drafts[i] = xcalloc(n * (size_t)cases->vocab, sizeof(float));
        OK(model_sequence_init(m, &s, cases->length[i], &err));
        OK(model_forward(m, &(struct model_input){&s, cases->tokens[i], cases->length[i], cases->logits[i], hidden}, 1, &err));
        if (m->config->n_mtp_layers)
            OK(model_mtp_rows(m, &s, 0, cases->tokens[i] + 1, cases->length[i] - 1, hidden, cases->drafts[i], &err));
        sequence_state_release(&s);
        free(hidden);
    }
    model_close(&m);
}

/* ---- ranges ---- */

struct ranges {
    int n;
    struct stage_weights weights[RANGES_MAX];
    struct stage_forward *forwards[RANGES_MAX];
    struct row_engine *engines[RANGES_MAX];
    struct kernels kernels;
    struct stage_row rows[RANGES_MAX][UNIT_ROWS]; /* the rows under way, in each engine's own memory */
    float *residuals[RANGES_MAX];
    int *selections[RANGES_MAX];
};

static struct ranges *open_ranges(struct weights_source *source, const int *ends, int n)
{
    struct ranges *r = xcalloc(1, sizeof *r);
    /* With several ranges the rows of a layer are sets that are interrupted wherever they can be. */
    struct stage_forward_sizes sizes = {SEQUENCES_MAX_HERE * 128, SEQUENCES_MAX_HERE, 2 * UNIT_ROWS, UNIT_ROWS, n > 1 ? UNIT_ROWS : 0};
    struct error err;
    r->n = n;
    OK(kernels_select(&r->kernels, "auto", &err));
    for (int i = 0; i < n; i++) {
        struct budget budget = {.limit = UINT64_MAX};
        int begin = i ? ends[i - 1] : 0;
        OK(stage_range_check(weights_source_config(source), begin, ends[i], &err));
        stage_forward_budget(&budget, source, begin, ends[i], &sizes);
        assert_true(budget_sum(&budget) > 0);
        OK(stage_weights_load(&r->weights[i], source, begin, ends[i], NULL, NULL, &err));
        OK(stage_forward_new(&r->forwards[i], &r->weights[i], &r->kernels, &sizes, &err));
        struct row_engine *e = r->engines[i] = stage_forward_engine(r->forwards[i]);
        /* Each engine has what its place needs, and nothing else. */
        assert_int_equal(r->weights[i].weights.lm_head.rows != 0, e->is_tail);
        assert_int_equal(r->weights[i].weights.embedding.table.rows != 0, e->is_head || e->has_mtp);
        r->residuals[i] = xcalloc((size_t)UNIT_ROWS * (size_t)e->row_width, sizeof(float));
        r->selections[i] = xcalloc((size_t)UNIT_ROWS * (size_t)e->selection_capacity, sizeof(int));
    }
    return r;
}

static void close_ranges(struct ranges **ranges)
{
    struct ranges *r = *ranges;
    for (int i = 0; i < r->n; i++) {
        stage_forward_free(&r->forwards[i]);
        stage_weights_release(&r->weights[i]);
        free(r->residuals[i]);
        free(r->selections[i]);
    }
    free(r);
    *ranges = NULL;
}

/* What one row of a set is. */
struct wanted_row {
    int slot, position, token;
};

/* A set of rows through one engine, layer by layer. */
static void run_engine(struct ranges *r, int i, const struct wanted_row *wanted, int n)
{
    struct row_engine *e = r->engines[i];
    struct stage_row *list[UNIT_ROWS];
    struct error err;
    for (int j = 0; j < n; j++) {
        struct stage_row *row = &r->rows[i][j];
        *row = (struct stage_row){.row = {.position = wanted[j].position,
                                          .next_layer = e->layer_begin,
                                          .residual = r->residuals[i] + (size_t)j * (size_t)e->row_width,
                                          .selection.positions = r->selections[i] + (size_t)j * (size_t)e->selection_capacity,
                                          .is_finite = 1},
                                  .slot = wanted[j].slot,
                                  .token = wanted[j].token,
                                  .want = WANT_LOGITS};
        if (i)
            memcpy(row->row.residual, r->rows[i - 1][j].row.residual, (size_t)e->row_width * sizeof(float));
        OK(e->enter(e, row, &err));
        list[j] = row;
    }
    for (int layer = e->layer_begin; layer < e->layer_end; layer++) {
        int is_done, pieces = 1;
        OK(e->run_unit(e, layer, list, n, 1, &is_done, &err)); /* 1 ns: late at every opportunity */
        for (; !is_done; pieces++)
            OK(e->resume(e, 1, &is_done, &err));
        int is_cut = e->set_rows_max && r->weights[i].config->is_sparse[layer];
        assert_true(is_cut ? n < 8 || pieces > 1 : pieces == 1);
    }
}

static void run_set(struct ranges *r, const struct wanted_row *wanted, int n, const struct cases *cases, int is_compared)
{
    struct row_engine *tail = r->engines[r->n - 1];
    struct stage_row *list[UNIT_ROWS];
    const float *logits[UNIT_ROWS];
    struct error err;
    for (int i = 0; i < r->n; i++)
        run_engine(r, i, wanted, n);
    for (int j = 0; j < n; j++) {
        list[j] = &r->rows[r->n - 1][j];
        if (!is_compared || j % 5 == 4) /* rows that want nothing get nothing */
            list[j]->want = 0;
    }
    OK(tail->finish(tail, list, n, logits, &err));
    for (int j = 0; j < n; j++) {
        if (!list[j]->want)
            assert_null(logits[j]);
        else if (is_compared && memcmp(logits[j], cases->logits[wanted[j].slot] + (size_t)wanted[j].position * (size_t)cases->vocab,
                                       (size_t)cases->vocab * sizeof(float)))
            fail_msg("%s: sequence %d, position %d: other logits", what, wanted[j].slot, wanted[j].position);
    }
}

/* The true MTP rows that can be made below `end`; every other set only fills the caches, as in a prefill that nobody asks about. */
static void run_mtp(struct ranges *r, int slot, int end, const struct cases *cases, int is_compared)
{
    struct row_engine *tail = r->engines[r->n - 1];
    struct error err;
    if (!tail->has_mtp)
        return;
    for (int first; (first = tail->mtp_length(tail, slot)) < end;) {
        const float *logits[UNIT_ROWS];
        int n = end - first < UNIT_ROWS ? end - first : UNIT_ROWS, with_logits = first % 2 == 0;
        OK(tail->mtp_rows(tail, slot, first, cases->tokens[slot] + first + 1, n, with_logits ? logits : NULL, &err));
        for (int i = 0; i < n && with_logits && is_compared; i++)
            if (memcmp(logits[i], cases->drafts[slot] + (size_t)(first + i) * (size_t)cases->vocab, (size_t)cases->vocab * sizeof(float)))
                fail_msg("%s: sequence %d, MTP row %d: other logits", what, slot, first + i);
    }
}

/* Rows [from[i], length) of all sequences in sets of `chunk` rows that mix them. */
static void run_all(struct ranges *r, const struct cases *cases, const int *from, int chunk)
{
    int at[SEQUENCES_MAX_HERE], is_done = 0;
    memcpy(at, from, sizeof at);
    while (!is_done) {
        struct wanted_row wanted[UNIT_ROWS];
        int n = 0;
        is_done = 1;
        for (int i = 0; i < cases->n; i++)
            for (int share = (chunk + cases->n - 1) / cases->n; share && n < chunk && at[i] < cases->length[i]; share--, at[i]++)
                wanted[n++] = (struct wanted_row){i, at[i], cases->tokens[i][at[i]]};
        if (n)
            run_set(r, wanted, n, cases, 1);
        for (int i = 0; i < cases->n; i++) {
            run_mtp(r, i, at[i] - 1, cases, 1);
            is_done = is_done && at[i] == cases->length[i];
        }
    }
}

static void open_sequences(struct ranges *r, const struct cases *cases)
{
    struct error err;
    for (int e = 0; e < r->n; e++)
        for (int i = 0; i < cases->n; i++)
            OK(r->engines[e]->open(r->engines[e], i, cases->length[i], &err));
}

static void drop_sequences(struct ranges *r, const struct cases *cases)
{
    for (int e = 0; e < r->n; e++)
        for (int i = 0; i < cases->n; i++)
            r->engines[e]->drop(r->engines[e], i);
}

/* Wrong rows above a cut, then another cut: the right rows must not see them, nor must the MTP rows. */
static void cut_and_redo(struct ranges *r, const struct cases *cases, int chunk)
{
    int from[SEQUENCES_MAX_HERE] = {0};
    for (int i = 0; i < cases->n; i++) {
        from[i] = cases->length[i] / 3;
        for (int e = 0; e < r->n; e++)
            r->engines[e]->truncate(r->engines[e], i, from[i]);
        for (int q = from[i]; q < from[i] + 5 && q < cases->length[i]; q++)
            run_set(r, &(struct wanted_row){i, q, (cases->tokens[i][q] + 1) % cases->vocab}, 1, cases, 0);
        for (int e = 0; e < r->n; e++)
            r->engines[e]->truncate(r->engines[e], i, from[i]);
    }
    run_all(r, cases, from, chunk);
}

static void compare_ranges(struct weights_source *source, const struct cases *cases, const int *ends, int n, int chunk, const char *name)
{
    static char text[160];
    static const int from_start[SEQUENCES_MAX_HERE];
    snprintf(text, sizeof text, "%s, %d ranges ending at %d %d %d, chunks of %d", name, n, ends[0], n > 1 ? ends[1] : 0,
             n > 2 ? ends[2] : 0, chunk);
    what = text;
    struct ranges *r = open_ranges(source, ends, n);
    open_sequences(r, cases);
    run_all(r, cases, from_start, chunk);
    cut_and_redo(r, cases, chunk);
    drop_sequences(r, cases);
    open_sequences(r, cases); /* slots are as new afterwards */
    run_all(r, cases, from_start, UNIT_ROWS);
    drop_sequences(r, cases);
    close_ranges(&r);
}

static void compare_all_cuts(const char *dir, struct cases *cases, const char *name)
{
    static const int chunks[] = {1, 7, 64};
    struct weights_source *source;
    struct error err;
    compute_in_one_process(dir, cases);
    OK(weights_source_open(&source, dir, &err));
    const struct model_config *c = weights_source_config(source);
    parallel_set_threads(1);
    int n = 0;
    for (int a = 1; a < c->n_layers; a++) {
        if (!c->has_indexer[a])
            continue;
        if (n++ == 0) {
            compare_ranges(source, cases, (int[]){c->n_layers}, 1, 7, name);
            for (int i = 0; i < 3; i++)
                compare_ranges(source, cases, (int[]){a, c->n_layers}, 2, chunks[i], name);
        } else if (n % CASE_STRIDE == 0)
            compare_ranges(source, cases, (int[]){a, c->n_layers}, 2, chunks[n % 3], name);
        for (int b = a + 1; b < c->n_layers; b++)
            if (c->has_indexer[b] && n++ % CASE_STRIDE == 0)
                compare_ranges(source, cases, (int[]){a, b, c->n_layers}, 3, chunks[n % 3], name);
    }
    assert_true(n > 0);
    weights_source_close(&source);
    for (int i = 0; i < cases->n; i++) {
        free(cases->logits[i]);
        free(cases->drafts[i]);
    }
}

static void every_legal_cut_gives_the_bytes_of_one_process(void **state)
{
    const char *name = *state;
    char path[512];
    int is_kindling = !strcmp(name, "kindling");
    struct arrays *arrays = arrays_open(golden_path(path, name, is_kindling ? "teacher.safetensors" : "expected.safetensors"));
    struct cases cases = {0};
    size_t shape[2];
    for (int i = 0; cases.n < SEQUENCES_MAX_HERE; i++) {
        const int *tokens = arrays_find(arrays, shape, "case%d.tokens", i);
        if (!tokens)
            break;
        if (shape[0] < 3)
            continue;
        cases.tokens[cases.n] = tokens;
        cases.length[cases.n++] = shape[0] < LENGTH_MAX ? (int)shape[0] : LENGTH_MAX; /* kindling: beyond its index_topk of 64 */
    }
    assert_true(cases.n > 0);
    char *folder = temporary_copy(checkpoint_path(path, name)), *pack = make_pack(folder, PRECISION_INT4, NULL);
    char text[64];
    snprintf(text, sizeof text, "%s exact", name);
    compare_all_cuts(folder, &cases, text);
    snprintf(text, sizeof text, "%s int4", name);
    compare_all_cuts(pack, &cases, text);
    temporary_remove(&pack);
    temporary_remove(&folder);
    arrays_close(&arrays);
}

static void ranges_that_no_node_can_own_are_refused_by_name(void **state)
{
    (void)state;
    char path[512];
    char *folder = temporary_copy(checkpoint_path(path, "kindling"));
    struct weights_source *source;
    struct error err;
    OK(weights_source_open(&source, folder, &err));
    const struct model_config *c = weights_source_config(source);
    static const int wrong[][2] = {{0, 0}, {2, 1}, {-1, 2}, {3, 6}, {2, 4}, {0, 999}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(stage_range_check(c, wrong[i][0], wrong[i][1], &err), STATUS_INVALID);
        assert_non_null(strstr(err.text, "can be cut before 1, 2, 6"));
    }
    for (int end = 1; end <= c->n_layers; end++)
        assert_int_equal(stage_range_check(c, 0, end, &err) == STATUS_OK, end == c->n_layers || c->has_indexer[end]);
    weights_source_close(&source);
    temporary_remove(&folder);
}

int main(void)
{
    struct CMUnitTest tests[16];
    int n = 0;
    for (const char *const *name = checkpoint_names; *name; name++)
        tests[n++] = (struct CMUnitTest){*name, every_legal_cut_gives_the_bytes_of_one_process, NULL, NULL, (void *)*name};
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(ranges_that_no_node_can_own_are_refused_by_name);
    return _cmocka_run_group_tests("the same bytes in any split", tests, (size_t)n, NULL, NULL);
}
