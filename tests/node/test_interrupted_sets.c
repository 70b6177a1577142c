/* Goal: rows that are forgotten while a set of prompt rows is interrupted change no other row, whenever that happens, and their memory is
 * theirs no more. Method: kindling, all layers in one engine that takes blocks of 8 rows and is interrupted wherever it can be; the last
 * rows of the sequences go one after the other by a seeded plan, their memory is overwritten; the others' residuals against those of an
 * engine that takes all rows at once and forgets none. */
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
#include "tests/lib/golden.h"
#include "tests/lib/packs.h"
#include "tests/lib/raw_checkpoint.h"

enum { SEQUENCES = 3, LENGTH = 24, ROWS = SEQUENCES * LENGTH, BLOCK = 8, POSITIONS = 64 * SEQUENCES };

#define OK(call)                                                                                                                           \
    do {                                                                                                                                   \
        if (call)                                                                                                                          \
            fail_msg("%s", err.text);                                                                                                      \
    } while (0)

static struct weights_source *source;
static struct kernels kernels;

struct engine {
    struct stage_weights weights;
    struct stage_forward *forward;
    struct row_engine *e;
    struct stage_row rows[ROWS]; /* by sequence, then position */
    float *residuals;
    int *selections;
};

static struct stage_row *row_of(struct engine *x, int sequence, int position)
{
    return &x->rows[sequence * LENGTH + position];
}

static struct engine *engine_open(int unit_rows, int set_rows)
{
    struct engine *x = xcalloc(1, sizeof *x);
    struct error err;
    int n_layers = weights_source_config(source)->n_layers;
    struct stage_forward_sizes sizes = {POSITIONS, SEQUENCES, ROWS, unit_rows, set_rows};
    OK(stage_weights_load(&x->weights, source, 0, n_layers, NULL, NULL, &err));
    OK(stage_forward_new(&x->forward, &x->weights, &kernels, &sizes, &err));
    x->e = stage_forward_engine(x->forward);
    x->residuals = xcalloc((size_t)ROWS * (size_t)x->e->row_width, sizeof(float));
    x->selections = xcalloc((size_t)ROWS * (size_t)x->e->selection_capacity, sizeof(int));
    for (int s = 0; s < SEQUENCES; s++)
        OK(x->e->open(x->e, s, LENGTH, &err));
    for (int i = 0; i < ROWS; i++) {
        x->rows[i] = (struct stage_row){.row = {.position = i % LENGTH,
                                                .residual = x->residuals + (size_t)i * (size_t)x->e->row_width,
                                                .selection.positions = x->selections + (size_t)i * (size_t)x->e->selection_capacity,
                                                .is_finite = 1},
                                        .slot = i / LENGTH,
                                        .token = 5 + i * 7 % 200};
        OK(x->e->enter(x->e, &x->rows[i], &err));
    }
    return x;
}

static void engine_close(struct engine **engine)
{
    struct engine *x = *engine;
    for (int s = 0; s < SEQUENCES; s++)
        x->e->drop(x->e, s);
    stage_forward_free(&x->forward);
    stage_weights_release(&x->weights);
    free(x->residuals);
    free(x->selections);
    free(x);
    *engine = NULL;
}

static int list_rows(struct engine *x, const int *length, struct stage_row **list)
{
    int n = 0;
    for (int s = 0; s < SEQUENCES; s++)
        for (int p = 0; p < length[s]; p++)
            list[n++] = row_of(x, s, p);
    return n;
}

/* The last row of a sequence goes, as a cut would have it. */
static void forget_last(struct engine *x, int sequence, int *length)
{
    struct stage_row *row = row_of(x, sequence, --length[sequence]);
    x->e->forget(x->e, row);
    x->e->truncate(x->e, sequence, length[sequence]);
    memset(row->row.residual, 0x7f, (size_t)x->e->row_width * sizeof(float));
    memset(row->row.selection.positions, 0x7f, (size_t)x->e->selection_capacity * sizeof(int));
    memset(row, 0, sizeof *row);
}

static void forgotten_rows_change_no_other(void **state)
{
    (void)state;
    struct engine *reference = engine_open(ROWS, 0);
    struct error err;
    int n_layers = reference->e->layer_end, is_done, all[SEQUENCES] = {LENGTH, LENGTH, LENGTH};
    size_t bytes = (size_t)reference->e->row_width * sizeof(float);
    float *want = xcalloc((size_t)n_layers * ROWS, bytes);
    struct stage_row *list[ROWS];
    int n = list_rows(reference, all, list);
    for (int layer = 0; layer < n_layers; layer++) {
        OK(reference->e->run_unit(reference->e, layer, list, n, 0, &is_done, &err));
        memcpy((char *)want + (size_t)layer * ROWS * bytes, reference->residuals, ROWS * bytes);
    }
    engine_close(&reference);
    int n_forgotten = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        uint64_t random = seed;
        int length[SEQUENCES] = {LENGTH, LENGTH, LENGTH};
        struct engine *x = engine_open(BLOCK, ROWS);
        for (int layer = 0; layer < n_layers; layer++) {
            n = list_rows(x, length, list);
            OK(x->e->run_unit(x->e, layer, list, n, 1, &is_done, &err)); /* 1 ns: late at every opportunity */
            while (!is_done) {
                int s = (int)(noise(&random) % SEQUENCES), some = (int)(noise(&random) % 40);
                for (int i = 0; some < 6 && i < some && length[s] > 1; i++, n_forgotten++)
                    forget_last(x, s, length);
                OK(x->e->resume(x->e, 1, &is_done, &err));
            }
            for (int s = 0; s < SEQUENCES; s++)
                for (int p = 0; p < length[s]; p++)
                    if (memcmp(row_of(x, s, p)->row.residual, (char *)want + ((size_t)layer * ROWS + (size_t)(s * LENGTH + p)) * bytes,
                               bytes))
                        fail_msg("seed %d, layer %d, sequence %d, position %d: another row", (int)seed, layer, s, p);
        }
        engine_close(&x);
    }
    assert_true(n_forgotten > 200);
    free(want);
}

static void with_the_last_row_the_set_is_over(void **state)
{
    (void)state;
    struct error err;
    for (int stop = 1; stop < 30; stop += 4) { /* after so many pieces: in attention, between experts, while rows leave */
        int is_done, n, length[SEQUENCES] = {LENGTH, 0, 0}, layer = 0;
        struct stage_row *list[ROWS];
        struct engine *x = engine_open(BLOCK, ROWS);
        for (; !weights_source_config(source)->is_sparse[layer]; layer++) {
            n = list_rows(x, (int[]){LENGTH, LENGTH, 0}, list);
            OK(x->e->run_unit(x->e, layer, list, n, 0, &is_done, &err));
        }
        n = list_rows(x, length, list);
        OK(x->e->run_unit(x->e, layer, list, n, 1, &is_done, &err));
        for (int i = 1; i < stop && !is_done; i++)
            OK(x->e->resume(x->e, 1, &is_done, &err));
        while (!is_done && length[0])
            forget_last(x, 0, length);
        n = list_rows(x, (int[]){0, LENGTH, 0}, list);
        OK(x->e->run_unit(x->e, layer, list, n, 0, &is_done, &err)); /* another set may begin */
        assert_true(is_done);
        engine_close(&x);
    }
}

static int set_up(void **state)
{
    (void)state;
    char path[512];
    struct error err;
    char *folder = temporary_copy(checkpoint_path(path, "kindling"));
    OK(weights_source_open(&source, folder, &err));
    OK(kernels_select(&kernels, "auto", &err));
    parallel_set_threads(1);
    *state = folder;
    return 0;
}

static int tear_down(void **state)
{
    char *folder = *state;
    weights_source_close(&source);
    temporary_remove(&folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forgotten_rows_change_no_other),
        cmocka_unit_test(with_the_last_row_the_set_is_over),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
