/* Goal: packs of lower precision stay close to the exact model; the figures are for docs/PERFORMANCE.md.
 * Method: kindling's 40 teacher-forced conversations through exact, int8 and int4 (integer activations included): share of rows with the same best id, mean
 * KL(exact || pack) in nats, share of MTP rows whose best id is the main model's next best id, golden answers that keep every token. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include <jansson.h>

#include "common/json.h"
#include "common/memory.h"
#include "model/convert.h"
#include "tests/lib/golden.h"

enum { CASES = 40, IDS_MAX = 1024 };

static struct arrays *teacher;
static json_t *answers;
static struct model *exact;
static char *folder, *packs;
static float *exact_logits[CASES];

struct figures {
    int rows, same_best, draft_rows, draft_agrees, same_answers;
    double kl;
};

#define OK(call)                                                                                                                           \
    do {                                                                                                                                   \
        if (call)                                                                                                                          \
            fail_msg("%s", err.text);                                                                                                      \
    } while (0)

static double divergence(const float *p, const float *q, int n)
{
    double p_sum = log_sum_exp(p, n), q_sum = log_sum_exp(q, n), kl = 0;
    for (int i = 0; i < n; i++) {
        double log_p = (double)p[i] - p_sum;
        kl += exp(log_p) * (log_p - ((double)q[i] - q_sum));
    }
    return kl;
}

/* Main and MTP logits of a case; drafts [n - 1][vocab]. */
static float *run_case(struct model *m, int number, int *n, float **drafts)
{
    struct error err;
    struct sequence_state s;
    size_t shape[2], vocab = (size_t)m->config->vocab_size;
    const int *tokens = arrays_find(teacher, shape, "case%d.tokens", number);
    *n = (int)shape[0];
    float *logits = xcalloc(shape[0] * vocab, sizeof *logits), *hidden = xcalloc(shape[0] * (size_t)m->config->hidden_size, sizeof *hidden);
    *drafts = xcalloc(shape[0] * vocab, sizeof **drafts);
    OK(model_sequence_init(m, &s, *n, &err));
    OK(model_forward(m, &(struct model_input){&s, tokens, *n, logits, hidden}, 1, &err));
    OK(model_mtp_rows(m, &s, 0, tokens + 1, *n - 1, hidden, *drafts, &err));
    sequence_state_release(&s);
    free(hidden);
    return logits;
}

/* 1 when the greedy answer has the golden token at every place. */
static int keeps_answer(struct model *m, const json_t *answer)
{
    struct error err;
    struct sequence_state s;
    int ids[IDS_MAX], n = 0, same = 1, vocab = m->config->vocab_size;
    const json_t *prompt = json_object_get(answer, "prompt_ids"), *want = json_object_get(answer, "answer_ids");
    for (size_t i = 0; i < json_array_size(prompt) && n < IDS_MAX; i++)
        ids[n++] = (int)json_integer_value(json_array_get(prompt, i));
    float *logits = xcalloc((size_t)n * (size_t)vocab, sizeof *logits);
    OK(model_sequence_init(m, &s, n + (int)json_array_size(want), &err));
    OK(model_forward(m, &(struct model_input){&s, ids, n, logits, NULL}, 1, &err));
    const float *row = logits + (size_t)(n - 1) * (size_t)vocab;
    for (size_t i = 0; i < json_array_size(want) && same; i++) {
        int id = largest_logit(row, vocab);
        same = id == json_integer_value(json_array_get(want, i));
        OK(model_forward(m, &(struct model_input){&s, &id, 1, logits, NULL}, 1, &err));
        row = logits;
    }
    sequence_state_release(&s);
    free(logits);
    return same;
}

static struct figures measure(struct model *m)
{
    struct figures f = {0};
    int vocab = m->config->vocab_size;
    for (int c = 0; c < CASES; c += CASE_STRIDE) {
        int n;
        float *drafts, *logits = run_case(m, c, &n, &drafts);
        if (m == exact)
            exact_logits[c] = logits;
        for (int p = 0; p < n; p++, f.rows++) {
            const float *want = exact_logits[c] + (size_t)p * (size_t)vocab, *got = logits + (size_t)p * (size_t)vocab;
            f.same_best += largest_logit(want, vocab) == largest_logit(got, vocab);
            f.kl += divergence(want, got, vocab);
        }
        for (int p = 0; p < n - 1; p++, f.draft_rows++)
            f.draft_agrees += largest_logit(drafts + (size_t)p * (size_t)vocab, vocab) == largest_logit(logits + (size_t)(p + 1) * (size_t)vocab, vocab);
        free(drafts);
        if (m != exact)
            free(logits);
    }
    for (size_t i = 0; i < json_array_size(answers); i += CASE_STRIDE)
        f.same_answers += keeps_answer(m, json_array_get(answers, i));
    f.kl /= f.rows;
    return f;
}

static void print(const char *name, const struct figures *f)
{
    printf("%-6s same best id %.4f, mean KL %.5f nats, drafts agree %.4f, golden answers kept %d of %zu (%d rows)\n", name,
           (double)f->same_best / f->rows, f->kl, (double)f->draft_agrees / f->draft_rows, f->same_answers, json_array_size(answers), f->rows);
}

static struct figures figures_of_pack(enum precision precision)
{
    struct error err;
    struct convert_result result;
    char *dir = xasprintf("%s/%s", packs, precision_name(precision));
    OK(convert_model(folder, dir, &(struct convert_options){.precision = precision}, &result, &err));
    struct model *m = open_or_fail(dir, &(struct model_options){0});
    struct figures f = measure(m);
    print(precision_name(precision), &f);
    model_close(&m);
    free(dir);
    return f;
}

static void int8_pack_stays_close(void **state)
{
    (void)state;
    struct figures f = figures_of_pack(PRECISION_INT8);
    assert_true(f.kl < 0.0004 && f.same_best > 0.98 * f.rows);
}

static void int4_pack_stays_within_its_bound(void **state)
{
    (void)state;
    struct figures f = figures_of_pack(PRECISION_INT4);
    assert_true(f.kl <= 0.0013 && f.same_best > 0.95 * f.rows);
}

static int set_up(void **state)
{
    (void)state;
    char path[512];
    struct error err;
    folder = temporary_copy(kindling_dir());
    packs = temporary_folder();
    teacher = arrays_open(golden_path(path, "kindling", "teacher.safetensors"));
    if (json_read_file(&answers, golden_path(path, "kindling", "greedy.json"), 1 << 24, &err))
        return 1;
    exact = open_or_fail(folder, &(struct model_options){0});
    struct figures f = measure(exact);
    print("exact", &f);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int c = 0; c < CASES; c++)
        free(exact_logits[c]);
    model_close(&exact);
    arrays_close(&teacher);
    json_decref(answers);
    temporary_remove(&packs);
    temporary_remove(&folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(int8_pack_stays_close),
        cmocka_unit_test(int4_pack_stays_within_its_bound),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
