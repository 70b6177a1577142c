/* Goal: the two selections of the model follow their stated order: index positions by (score descending, position ascending), experts by (biased score
 * descending, id ascending) inside the best groups.
 * Method: against plain sorting, on random scores full of ties, zeros of both signs, infinities and NaN; hand-made routings. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/float_math.h"
#include "model/indexer.h"
#include "model/moe.h"

static const float *sorted_scores;

static int by_score_then_position(const void *a, const void *b)
{
    int ia = *(const int *)a, ib = *(const int *)b;
    float sa = sorted_scores[ia], sb = sorted_scores[ib];
    if (isnan(sa) != isnan(sb))
        return isnan(sa) ? 1 : -1;
    return sa > sb ? -1 : sa < sb ? 1 : ia - ib;
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static uint32_t random_state = 7;

static uint32_t draw(void)
{
    return random_state = random_state * 1664525u + 1013904223u;
}

static float a_score(int kind)
{
    static const float special[] = {0.0f, -0.0f, 1.0f, INFINITY, -INFINITY, 1e-40f, -1e-40f, NAN};
    uint32_t r = draw() >> 8;
    if (kind == 0)
        return (float)(r % 5) - 2.0f; /* many ties */
    if (kind == 1)
        return special[r % 8];
    return ((float)(r % 100000) - 50000.0f) * 1.7e-3f;
}

static void top_k_equals_sorting(void **state)
{
    (void)state;
    enum { N_MAX = 700 };
    float scores[N_MAX];
    int order[N_MAX], got[N_MAX];
    for (int round = 0; round < 3000; round++) {
        int n = 1 + (int)(draw() >> 8) % N_MAX, k = (int)(draw() >> 8) % (n + 1);
        for (int i = 0; i < n; i++) {
            scores[i] = a_score(round % 3);
            order[i] = i;
        }
        sorted_scores = scores;
        qsort(order, (size_t)n, sizeof *order, by_score_then_position);
        qsort(order, (size_t)k, sizeof *order, by_number);
        select_top_k(scores, n, k, got);
        assert_memory_equal(got, order, (size_t)k * sizeof *order);
    }
}

static struct model_config sizes(int n_experts, int top_k, int n_group, int topk_group)
{
    return (struct model_config){.n_experts = n_experts, .top_k = top_k, .n_group = n_group, .topk_group = topk_group, .norm_topk_prob = 1,
                                 .routed_scaling_factor = 2.5f};
}

static void bias_chooses_but_does_not_weigh(void **state)
{
    (void)state;
    struct model_config c = sizes(4, 2, 1, 1);
    const float logits[] = {2, 1, 0, -1}, bias[] = {0, 0, 0, 5};
    int ids[2];
    float weights[2];
    moe_choose(&c, logits, bias, ids, weights);
    assert_true(ids[0] == 0 && ids[1] == 3);
    float a = f32_sigmoid(2), b = f32_sigmoid(-1);
    assert_true(fabsf(weights[0] - 2.5f * a / (a + b)) < 1e-6f && fabsf(weights[1] - 2.5f * b / (a + b)) < 1e-6f);
}

static void equal_scores_go_to_the_lower_id(void **state)
{
    (void)state;
    struct model_config c = sizes(6, 3, 1, 1);
    const float logits[] = {0, 1, 1, 1, 1, 1}, bias[6] = {0};
    int ids[3];
    float weights[3];
    moe_choose(&c, logits, bias, ids, weights);
    assert_true(ids[0] == 1 && ids[1] == 2 && ids[2] == 3);
}

static void other_groups_are_out_even_when_all_biased_scores_are_negative(void **state)
{
    (void)state;
    struct model_config c = sizes(8, 2, 4, 1);
    /* Group 1 = experts 2, 3 has the best pair; masking with 0 instead of minus infinity would choose others. */
    const float logits[] = {0, 0, 1, 1, 3, -9, 0, 0}, bias[] = {-2, -2, -2, -2, -2, -2, -2, -2};
    int ids[2];
    float weights[2];
    moe_choose(&c, logits, bias, ids, weights);
    assert_true(ids[0] == 2 && ids[1] == 3);
}

static void nan_logits_still_choose_distinct_experts(void **state)
{
    (void)state;
    struct model_config c = sizes(8, 4, 2, 1);
    const float logits[] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN}, bias[8] = {0};
    int ids[4];
    float weights[4];
    moe_choose(&c, logits, bias, ids, weights);
    for (int i = 0; i < 4; i++)
        assert_true(ids[i] >= 0 && ids[i] < 8 && (i == 0 || ids[i] > ids[i - 1]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(top_k_equals_sorting),
        cmocka_unit_test(bias_chooses_but_does_not_weigh),
        cmocka_unit_test(equal_scores_go_to_the_lower_id),
        cmocka_unit_test(other_groups_are_out_even_when_all_biased_scores_are_negative),
        cmocka_unit_test(nan_logits_still_choose_distinct_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
