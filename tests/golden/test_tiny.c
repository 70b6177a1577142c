/* Goal: every random-weight checkpoint gives what the independent implementation gives: residuals, selections, routing, logits, MTP rows, draft chains.
 * Method: the layer's observer against tests/golden/tiny-*\/expected.safetensors; sets equal exactly (the cases have no close calls), numbers within a bound
 * derived from the scale: f32 rounding grows like the square root of the additions, about 1e-5 of the scale after 8 layers; 1e-4 is allowed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/memory.h"
#include "tests/lib/golden.h"

static const float RELATIVE = 1e-4f;

struct watch {
    struct arrays *want;
    int number;   /* of the case */
    int is_draft; /* rows of the MTP layer have no stored residuals */
    int n_layers, n_selections, n_routings, n_residuals;
};

static void close_rows(const float *got, const float *want, size_t n, float scale, const char *what, int layer, int position)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= RELATIVE * scale))
            fail_msg("%s, layer %d, position %d, element %zu: %.9g, wanted %.9g (scale %g)", what, layer, position, i, (double)got[i], (double)want[i],
                     (double)scale);
}

static float largest(const float *x, size_t n)
{
    float m = 0;
    for (size_t i = 0; i < n; i++)
        m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
    return m;
}

static void on_selection(void *ctx, int layer, const struct row *row)
{
    struct watch *w = ctx;
    size_t shape[2];
    const unsigned char *want = layer < w->n_layers ? arrays_find(w->want, shape, "case%d.selection.%d", w->number, layer) : NULL;
    if (!want)
        return;
    unsigned char *got = xcalloc(shape[1], 1);
    for (int i = 0; i < row->selection.n; i++)
        got[row->selection.is_all ? i : row->selection.positions[i]] = 1;
    if (memcmp(got, want + (size_t)row->position * shape[1], shape[1]))
        fail_msg("selection differs: layer %d, position %d", layer, row->position);
    free(got);
    w->n_selections++;
}

static void on_routing(void *ctx, int layer, const struct row *row, const int *experts, const float *weights, int n)
{
    struct watch *w = ctx;
    size_t shape[2];
    const int *want = layer < w->n_layers ? arrays_find(w->want, shape, "case%d.router_experts.%d", w->number, layer) : NULL;
    if (!want)
        return;
    assert_int_equal(shape[1], n);
    assert_memory_equal(experts, want + (size_t)row->position * shape[1], shape[1] * sizeof(int));
    const float *want_weights = arrays_find(w->want, shape, "case%d.router_weights.%d", w->number, layer);
    want_weights += (size_t)row->position * shape[1];
    close_rows(weights, want_weights, shape[1], largest(want_weights, shape[1]), "router weight", layer, row->position);
    w->n_routings++;
}

static void on_residual(void *ctx, int layer, const struct row *row)
{
    struct watch *w = ctx;
    size_t shape[2];
    const float *want = layer < w->n_layers ? arrays_find(w->want, shape, "case%d.residual.%d", w->number, layer) : NULL;
    if (!want)
        return;
    want += (size_t)row->position * shape[1];
    close_rows(row->residual, want, shape[1], largest(want, shape[1]), "residual", layer, row->position);
    w->n_residuals++;
}

static void close_logits(const float *got, const float *want, size_t rows, size_t vocab, const char *what)
{
    float scale = largest(want, rows * vocab);
    for (size_t r = 0; r < rows; r++) {
        close_rows(got + r * vocab, want + r * vocab, vocab, scale, what, -1, (int)r);
        assert_int_equal(largest_logit(got + r * vocab, (int)vocab), largest_logit(want + r * vocab, (int)vocab));
    }
}

static void check_case(struct model *model, struct watch *watch)
{
    size_t shape[2], rows[2];
    const int *tokens = arrays_find(watch->want, shape, "case%d.tokens", watch->number);
    int n = (int)shape[0], vocab = model->config->vocab_size;
    struct sequence_state sequence;
    struct error err;
    assert_int_equal(model_sequence_init(model, &sequence, n + DRAFT_DEPTH_MAX, &err), STATUS_OK);
    float *logits = xcalloc((size_t)n * (size_t)vocab, sizeof *logits), *hidden = xcalloc((size_t)n * (size_t)model->config->hidden_size, sizeof *hidden);
    assert_int_equal(model_forward(model, &(struct model_input){&sequence, tokens, n, logits, hidden}, 1, &err), STATUS_OK);
    const float *want = arrays_find(watch->want, rows, "case%d.logits", watch->number);
    assert_int_equal(rows[0] * rows[1], (size_t)n * (size_t)vocab);
    close_logits(logits, want, (size_t)n, (size_t)vocab, "logits");
    want = arrays_find(watch->want, rows, "case%d.draft_logits", watch->number);
    assert_int_equal(want != NULL, model->config->n_mtp_layers && n > 1);
    if (want) {
        assert_int_equal(model_mtp_rows(model, &sequence, 0, tokens + 1, n - 1, hidden, logits, &err), STATUS_OK);
        close_logits(logits, want, rows[0], rows[1], "draft logits");
    }
    const int *chain = arrays_find(watch->want, rows, "case%d.draft_chain", watch->number);
    if (chain) {
        int drafts[3];
        assert_int_equal(model_draft_chain(model, &sequence, n - 1, chain[0], hidden + (size_t)(n - 1) * (size_t)model->config->hidden_size, 3, vocab,
                                           drafts, &err),
                         STATUS_OK);
        assert_memory_equal(drafts, chain + 1, sizeof drafts);
    }
    sequence_state_release(&sequence);
    free(logits);
    free(hidden);
}

static void matches_reference(void **state)
{
    char path[512];
    char *dir = temporary_copy(golden_path(path, *state, "checkpoint"));
    struct watch watch = {.want = arrays_open(golden_path(path, *state, "expected.safetensors"))};
    struct layer_observer observer = {&watch, on_selection, on_routing, on_residual};
    struct model *model = open_or_fail(dir, &(struct model_options){.observer = &observer});
    watch.n_layers = model->config->n_layers;
    size_t shape[2];
    int cases = 0, rows = 0;
    for (; arrays_find(watch.want, shape, "case%d.tokens", watch.number); watch.number++, cases++) {
        rows += (int)shape[0];
        check_case(model, &watch);
    }
    assert_true(cases > 0);
    assert_int_equal(watch.n_residuals, rows * watch.n_layers);
    assert_true(watch.n_selections > 0 && watch.n_routings > 0);
    model_close(&model);
    arrays_close(&watch.want);
    temporary_remove(&dir);
}

int main(void)
{
    struct CMUnitTest tests[8];
    int n = 0;
    for (const char *const *name = tiny_names; *name; name++)
        tests[n++] = (struct CMUnitTest){*name, matches_reference, NULL, NULL, (void *)*name};
    return _cmocka_run_group_tests("tiny checkpoints match the reference", tests, (size_t)n, NULL, NULL);
}
