/* Goal: the trained checkpoint, exact, gives the stored results of the independent implementation (tests/golden/README.md).
 * Method: teacher-forced logits, log-sum-exp and MTP rows within 20 * spread + 5e-4 where spread is how far rounding may move that row; argmax where the
 * gap allows (4 * spread + 1e-3); every greedy answer marked clear token for token; draft chains equal, below and above index_topk positions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "common/json.h"
#include "common/memory.h"
#include "model/tokenizer.h"
#include "tests/lib/golden.h"

static struct model *model;
static char *folder;

static double bound(float spread)
{
    return 20.0 * (double)spread + 5e-4;
}

/* Stored: the best `k` ids and logits of each row. */
static void check_best(const float *logits, const int *ids, const float *want, size_t k, float spread, const char *what, int position)
{
    for (size_t j = 0; j < k; j++)
        if (!(fabs((double)logits[ids[j]] - (double)want[j]) <= bound(spread)))
            fail_msg("%s at %d: logit of id %d is %.7g, wanted %.7g, spread %g", what, position, ids[j], (double)logits[ids[j]], (double)want[j],
                     (double)spread);
    if (want[0] - want[1] > 4 * spread + 1e-3f)
        assert_int_equal(largest_logit(logits, model->config->vocab_size), ids[0]);
}

static void check_teacher_case(struct arrays *want, int number)
{
    size_t shape[2];
    const int *tokens = arrays_find(want, shape, "case%d.tokens", number);
    int n = (int)shape[0], vocab = model->config->vocab_size;
    const int *ids = arrays_find(want, shape, "case%d.top_ids", number);
    const float *best = arrays_find(want, shape, "case%d.top_logits", number), *lse = arrays_find(want, shape, "case%d.lse", number);
    const float *spread = arrays_find(want, shape, "case%d.spread", number);
    float *logits = xcalloc((size_t)n * (size_t)vocab, sizeof *logits), *hidden = xcalloc((size_t)n * (size_t)model->config->hidden_size, sizeof *hidden);
    struct sequence_state sequence;
    struct error err;
    assert_int_equal(model_sequence_init(model, &sequence, n, &err), STATUS_OK);
    assert_int_equal(model_forward(model, &(struct model_input){&sequence, tokens, n, logits, hidden}, 1, &err), STATUS_OK);
    for (int p = 0; p < n; p++) {
        const float *row = logits + (size_t)p * (size_t)vocab;
        check_best(row, ids + 8 * p, best + 8 * p, 8, spread[p], "main row", p);
        assert_true(fabs(log_sum_exp(row, vocab) - (double)lse[p]) <= bound(spread[p]));
    }
    assert_int_equal(model_mtp_rows(model, &sequence, 0, tokens + 1, n - 1, hidden, logits, &err), STATUS_OK);
    ids = arrays_find(want, shape, "case%d.draft_ids", number);
    best = arrays_find(want, shape, "case%d.draft_logits", number);
    spread = arrays_find(want, shape, "case%d.draft_spread", number);
    for (int p = 0; p < n - 1; p++)
        check_best(logits + (size_t)p * (size_t)vocab, ids + 4 * p, best + 4 * p, 4, spread[p], "MTP row", p);
    sequence_state_release(&sequence);
    free(logits);
    free(hidden);
}

static void teacher_forced_rows_lie_within_rounding(void **state)
{
    (void)state;
    char path[512];
    struct arrays *want = arrays_open(golden_path(path, "kindling", "teacher.safetensors"));
    size_t shape[2];
    int n = 0;
    for (; arrays_find(want, shape, "case%d.tokens", n); n++)
        if (n % CASE_STRIDE == 0)
            check_teacher_case(want, n);
    assert_int_equal(n, 40);
    arrays_close(&want);
}

static int ids_of(const json_t *list, int *ids, int max)
{
    int n = (int)json_array_size(list);
    assert_true(n <= max);
    for (int i = 0; i < n; i++)
        ids[i] = (int)json_integer_value(json_array_get(list, (size_t)i));
    return n;
}

enum { IDS_MAX = 1024 };

static void check_answer(const json_t *answer, int size)
{
    int prompt[IDS_MAX], want[IDS_MAX], n = ids_of(json_object_get(answer, "prompt_ids"), prompt, IDS_MAX);
    int n_want = ids_of(json_object_get(answer, "answer_ids"), want, IDS_MAX), vocab = model->config->vocab_size;
    struct sequence_state sequence;
    struct error err;
    assert_int_equal(model_sequence_init(model, &sequence, n + n_want, &err), STATUS_OK);
    float *logits = xcalloc((size_t)n * (size_t)vocab, sizeof *logits);
    assert_int_equal(model_forward(model, &(struct model_input){&sequence, prompt, n, logits, NULL}, 1, &err), STATUS_OK);
    const float *row = logits + (size_t)(n - 1) * (size_t)vocab;
    for (int i = 0; i < n_want; i++) {
        int id = largest_logit(row, size);
        if (id != want[i])
            fail_msg("answer token %d is %d, wanted %d: %s", i, id, want[i], json_string_value(json_object_get(answer, "answer")));
        assert_int_equal(model_forward(model, &(struct model_input){&sequence, &id, 1, logits, NULL}, 1, &err), STATUS_OK);
        row = logits;
    }
    sequence_state_release(&sequence);
    free(logits);
}

static void clear_greedy_answers_are_equal_token_for_token(void **state)
{
    (void)state;
    char path[512];
    json_t *answers;
    struct error err;
    struct tokenizer *tokenizer;
    snprintf(path, sizeof path, "%s/tokenizer.json", kindling_dir());
    assert_int_equal(tokenizer_open(&tokenizer, path, &err), STATUS_OK);
    assert_int_equal(json_read_file(&answers, golden_path(path, "kindling", "greedy.json"), 1 << 24, &err), STATUS_OK);
    int n_clear = 0;
    for (size_t i = 0; i < json_array_size(answers); i++)
        if (json_is_true(json_object_get(json_array_get(answers, i), "clear")) && n_clear++ % CASE_STRIDE == 0)
            check_answer(json_array_get(answers, i), tokenizer_size(tokenizer));
    assert_true(n_clear >= 50);
    json_decref(answers);
    tokenizer_close(&tokenizer);
}

static void draft_chains_are_equal(void **state)
{
    (void)state;
    char path[512];
    json_t *chains;
    struct error err;
    assert_int_equal(json_read_file(&chains, golden_path(path, "kindling", "chains.json"), 1 << 24, &err), STATUS_OK);
    int above = 0, vocab = model->config->vocab_size;
    size_t hidden_size = (size_t)model->config->hidden_size;
    float *logits = xcalloc(IDS_MAX * (size_t)vocab, sizeof *logits), *hidden = xcalloc(IDS_MAX * hidden_size, sizeof *hidden);
    for (size_t i = 0; i < json_array_size(chains); i += CASE_STRIDE == 1 ? 1 : 5) {
        int ids[IDS_MAX], want[4], drafts[3], n = ids_of(json_object_get(json_array_get(chains, i), "ids"), ids, IDS_MAX);
        assert_int_equal(ids_of(json_object_get(json_array_get(chains, i), "chain"), want, 4), 4);
        above += n > model->config->index_topk;
        struct sequence_state sequence;
        assert_int_equal(model_sequence_init(model, &sequence, n + DRAFT_DEPTH_MAX, &err), STATUS_OK);
        assert_int_equal(model_forward(model, &(struct model_input){&sequence, ids, n, logits, hidden}, 1, &err), STATUS_OK);
        assert_int_equal(largest_logit(logits + (size_t)(n - 1) * (size_t)vocab, vocab), want[0]);
        assert_int_equal(model_mtp_rows(model, &sequence, 0, ids + 1, n - 1, hidden, NULL, &err), STATUS_OK);
        assert_int_equal(model_draft_chain(model, &sequence, n - 1, want[0], hidden + (size_t)(n - 1) * hidden_size, 3, vocab, drafts, &err), STATUS_OK);
        assert_memory_equal(drafts, want + 1, sizeof drafts);
        sequence_state_release(&sequence);
    }
    assert_true(above >= (CASE_STRIDE == 1 ? 20 : 2));
    free(logits);
    free(hidden);
    json_decref(chains);
}

static int set_up(void **state)
{
    (void)state;
    folder = temporary_copy(kindling_dir());
    model = open_or_fail(folder, &(struct model_options){0});
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    model_close(&model);
    temporary_remove(&folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(teacher_forced_rows_lie_within_rounding),
        cmocka_unit_test(clear_greedy_answers_are_equal_token_for_token),
        cmocka_unit_test(draft_chains_are_equal),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
