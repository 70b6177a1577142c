/* Goal: the sampler draws exactly from the truncated distribution, as a pure function of seed, position and scores. Method: known answers
 * for Philox, chi-square against the softmax, a slow sampler that sorts everything, and edges of each parameter. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/memory.h"
#include "model/generation_config.h"
#include "model/philox.h"
#include "model/sampler.h"

static struct sampled_token pick_with(const struct sampler_params *params, const struct sampler_context *context, const float *logits,
                                      int n)
{
    struct error err = {0};
    struct sampled_token out;
    void *scratch = xcalloc(sampler_scratch_bytes(n), 1); /* exactly as large as promised: a sanitizer sees one byte more */
    if (sampler_params_check(params, &err) || sampler_pick(params, context, logits, n, scratch, 1, &out, &err))
        fail_msg("%s", err.text);
    free(scratch);
    return out;
}

static int pick(const struct sampler_params *params, const float *logits, int n, uint32_t position)
{
    return pick_with(params, &(struct sampler_context){.position = position}, logits, n).id;
}

static void philox_gives_the_published_words(void **state)
{
    (void)state;
    static const uint32_t rows[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t out[4];
        philox4x32(rows[i], rows[i] + 4, out);
        assert_memory_equal(out, rows[i] + 6, sizeof out);
    }
}

static void noise_uses_seed_position_and_id_as_defined(void **state)
{
    (void)state;
    uint32_t counter[4] = {17, 5, 0, 0}, key[2] = {0x89abcdef, 0x01234567}, words[4];
    philox4x32(counter, key, words);
    double wanted = -log(-log(((double)words[0] + 0.5) / 4294967296.0));
    assert_true(fabs(sampler_noise(0x0123456789abcdefu, 17, 5) - wanted) < 1e-12);
}

static void temperature_0_takes_the_largest_and_ties_go_to_the_lower_id(void **state)
{
    (void)state;
    struct sampler_params params = sampler_params_default;
    params.temperature = 0;
    assert_int_equal(pick(&params, (float[]){1, 3, 3, 2}, 4, 0), 1);
    assert_int_equal(pick(&params, (float[]){-1, -3, -1}, 3, 9), 0);
    assert_int_equal(pick(&params, (float[]){0, 5, 9, 9}, 2, 0), 1); /* ids from n_tokens on are padding */
    params.temperature = 1e-7;
    assert_int_equal(pick(&params, (float[]){1, 3, 3, 2}, 4, 0), 1);
}

/* Counts 20,000 draws and compares with probabilities: chi-square below the 1e-6 quantile of 7 degrees of freedom. */
static void check_distribution(const struct sampler_params *params, const float *logits, const double *probability)
{
    enum { N = 8, DRAWS = 20000 };
    int counts[N] = {0};
    double chi = 0;
    for (uint32_t position = 0; position < DRAWS; position++)
        counts[pick(params, logits, N, position)]++;
    for (int id = 0; id < N; id++) {
        double expected = probability[id] * DRAWS;
        if (expected == 0)
            assert_int_equal(counts[id], 0);
        else
            chi += (counts[id] - expected) * (counts[id] - expected) / expected;
    }
    if (chi > 40.5)
        fail_msg("chi-square %.1f", chi);
}

static void draws_follow_the_softmax_at_every_temperature(void **state)
{
    (void)state;
    static const float logits[8] = {0.5f, 2, -1, 1.25f, 0, 2.5f, -0.5f, 1};
    static const double temperatures[] = {0.5, 1, 2};
    for (int t = 0; t < 3; t++) {
        struct sampler_params params = sampler_params_default;
        params.temperature = temperatures[t];
        params.seed = 1000 + (uint64_t)t;
        double probability[8], sum = 0;
        for (int id = 0; id < 8; id++)
            sum += probability[id] = exp(logits[id] / params.temperature);
        for (int id = 0; id < 8; id++)
            probability[id] /= sum;
        check_distribution(&params, logits, probability);
    }
}

static void draws_follow_the_truncated_softmax(void **state)
{
    (void)state;
    static const double given[8] = {0.05, 0.30, 0.02, 0.15, 0.08, 0.25, 0.05, 0.10};
    float logits[8];
    for (int id = 0; id < 8; id++)
        logits[id] = (float)log(given[id]);
    static const struct {
        int top_k;
        double top_p, min_p;
        int kept[8];
    } rows[] = {
        {3, 1, 0, {0, 1, 0, 1, 0, 1}},
        {0, 0.56, 0, {0, 1, 0, 1, 0, 1}}, /* .30 + .25 is less than .56: one more */
        {0, 0.54, 0, {0, 1, 0, 0, 0, 1}},
        {0, 1, 0.3, {0, 1, 0, 1, 0, 1, 0, 1}}, /* a third of .30 */
        {5, 0.9, 0.45, {0, 1, 0, 1, 0, 1}},
        {3, 0.8, 0, {0, 1, 0, 1, 0, 1}}, /* of .30 + .25 + .15 = .70: .55 / .70 = .786 does not reach .8 */
        {3, 0.78, 0, {0, 1, 0, 0, 0, 1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sampler_params params = sampler_params_default;
        params.top_k = rows[i].top_k, params.top_p = rows[i].top_p, params.min_p = rows[i].min_p, params.seed = i;
        double probability[8], sum = 0;
        for (int id = 0; id < 8; id++)
            sum += probability[id] = rows[i].kept[id] ? given[id] : 0;
        for (int id = 0; id < 8; id++)
            probability[id] /= sum;
        check_distribution(&params, logits, probability);
    }
}

static void every_cut_keeps_at_least_one(void **state)
{
    (void)state;
    static const float logits[5] = {1, 4, 2, 4, 3};
    for (uint32_t position = 0; position < 50; position++) {
        struct sampler_params params = sampler_params_default;
        params.top_p = 0;
        assert_int_equal(pick(&params, logits, 5, position), 1);
        params.top_p = 1, params.top_k = 1;
        assert_int_equal(pick(&params, logits, 5, position), 1);
        params.top_k = 0, params.min_p = 1; /* ties with the best stay */
        int id = pick(&params, logits, 5, position);
        assert_true(id == 1 || id == 3);
        params.top_k = 1, params.top_p = 0;
        assert_int_equal(pick(&params, logits, 5, position), 1);
    }
}

struct ranked {
    double score;
    int id;
};

static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id - y->id;
}

/* The definition, word by word, with everything sorted. */
static int slow_pick(const struct sampler_params *p, const float *logits, int n, uint32_t position)
{
    struct ranked *all = xcalloc((size_t)n, sizeof *all);
    for (int id = 0; id < n; id++)
        all[id] = (struct ranked){logits[id] / p->temperature, id};
    qsort(all, (size_t)n, sizeof *all, compare_ranked);
    int kept = p->top_k && p->top_k < n ? p->top_k : n;
    double sum = 0, before = 0;
    for (int i = 0; i < kept; i++)
        sum += exp(all[i].score - all[0].score);
    if (p->top_p < 1) {
        int i = 0;
        for (; i < kept && (i == 0 || before < p->top_p); i++)
            before += exp(all[i].score - all[0].score) / sum;
        kept = i;
    }
    while (kept > 1 && exp(all[kept - 1].score - all[0].score) < p->min_p)
        kept--;
    int best = 0;
    double best_value = -INFINITY;
    for (int i = 0; i < kept; i++) {
        double value = all[i].score + sampler_noise(p->seed, position, all[i].id);
        if (value > best_value)
            best_value = value, best = all[i].id;
    }
    free(all);
    return best;
}

static void picks_equal_those_of_the_slow_definition(void **state)
{
    (void)state;
    enum { N = 3000 };
    static float logits[N];
    srand(5);
    for (int round = 0; round < 300; round++) {
        double spread = round % 3 == 0 ? 0.5 : round % 3 == 1 ? 4 : 12; /* flat ones need a nucleus of thousands */
        for (int id = 0; id < N; id++)
            logits[id] = (float)(spread * ((double)rand() / RAND_MAX + (double)rand() / RAND_MAX - 1));
        struct sampler_params params = sampler_params_default;
        params.temperature = (double[]){0.3, 1, 1.7}[rand() % 3];
        params.top_k = (int[]){0, 0, 1, 20, 500, N, 2 * N}[rand() % 7];
        params.top_p = (double[]){1, 0.95, 0.5, 0.1}[rand() % 4];
        params.min_p = (double[]){0, 0, 0.05, 0.5}[rand() % 4];
        params.seed = (uint64_t)rand() << 33 ^ (uint64_t)rand();
        assert_int_equal(pick(&params, logits, N, (uint32_t)round), slow_pick(&params, logits, N, (uint32_t)round));
    }
}

/* If id a wins among many, it also wins among any fewer that include it: the noise of an id does not depend on the others. */
static void the_choice_does_not_depend_on_what_else_was_there(void **state)
{
    (void)state;
    enum { N = 64 };
    float logits[N], fewer[N];
    srand(9);
    struct sampler_params params = sampler_params_default;
    params.seed = 77;
    for (uint32_t position = 0; position < 500; position++) {
        for (int id = 0; id < N; id++)
            logits[id] = (float)rand() / (float)RAND_MAX * 3;
        int chosen = pick(&params, logits, N, position);
        memcpy(fewer, logits, sizeof fewer);
        for (int id = 0; id < N; id++)
            if (id != chosen && rand() % 2)
                fewer[id] = -INFINITY;
        assert_int_equal(pick(&params, fewer, N, position), chosen);
        assert_int_equal(pick(&params, logits, chosen + 1, position), chosen);
    }
}

static void the_same_seed_and_position_give_the_same_token(void **state)
{
    (void)state;
    float logits[100];
    int differs_by_seed = 0, differs_by_position = 0;
    for (int id = 0; id < 100; id++)
        logits[id] = (float)(id % 7) / 7;
    for (uint32_t position = 0; position < 100; position++) {
        struct sampler_params params = sampler_params_default, other = sampler_params_default;
        params.seed = 5, other.seed = 5 | 1ull << 32; /* the high word counts too */
        int id = pick(&params, logits, 100, position);
        assert_int_equal(pick(&params, logits, 100, position), id);
        differs_by_seed += pick(&other, logits, 100, position) != id;
        differs_by_position += pick(&params, logits, 100, position + 1000) != id;
    }
    assert_true(differs_by_seed > 80 && differs_by_position > 80);
}

static void penalties_and_bias_change_scores_as_defined(void **state)
{
    (void)state;
    struct sampler_params params = sampler_params_default;
    params.temperature = 0;
    static const struct token_count counts[] = {{0, 0}, {1, 3}, {2, 1}, {99, 5}, {-1, 5}};
    struct sampler_context context = {.counts = counts, .n_counts = 5};
    static const float logits[4] = {4, 3, -1, 2};
    params.repetition_penalty = 2; /* 2, 1.5, -2, 2 */
    assert_int_equal(pick_with(&params, &context, logits, 4).id, 0);
    params.frequency_penalty = -0.5; /* 2, 3, -1.5, 2: the prompt alone does not count */
    assert_int_equal(pick_with(&params, &context, logits, 4).id, 1);
    params.presence_penalty = 1.5; /* 2, 1.5, -3, 2 */
    assert_int_equal(pick_with(&params, &context, logits, 4).id, 0);
    static const struct token_bias bias[] = {{3, 0.5}, {2, 4.0}, {1000, 50}, {-4, 50}};
    params.bias = bias, params.n_bias = 4; /* 2, 1.5, 1, 2.5 */
    struct sampled_token token = pick_with(&params, &context, logits, 4);
    assert_int_equal(token.id, 3);
    double sum = exp(2) + exp(1.5) + exp(1) + exp(2.5);
    assert_true(fabs(token.log_probability - (2.5 - log(sum))) < 1e-12);
}

static void scores_that_are_no_numbers_are_errors(void **state)
{
    (void)state;
    struct sampler_params params = sampler_params_default;
    struct sampler_context context = {0};
    struct sampled_token out;
    struct error err;
    double scratch[16];
    assert_true(sampler_scratch_bytes(4) <= sizeof scratch);
    for (int greedy = 0; greedy < 2; greedy++) {
        params.temperature = greedy ? 0 : 1;
        assert_int_equal(sampler_pick(&params, &context, (float[]){1, NAN, 2, 3}, 4, scratch, 0, &out, &err), STATUS_INVALID);
        assert_non_null(strstr(err.text, "token 1"));
        assert_int_equal(sampler_pick(&params, &context, (float[]){1, 2, INFINITY, 3}, 4, scratch, 0, &out, &err), STATUS_INVALID);
        assert_int_equal(sampler_pick(&params, &context, (float[]){-INFINITY, -INFINITY}, 2, scratch, 0, &out, &err), STATUS_INVALID);
        assert_int_equal(sampler_pick(&params, &context, (float[]){-INFINITY, 1, NAN}, 2, scratch, 0, &out, &err),
                         STATUS_OK); /* NaN in padding */
        assert_int_equal(out.id, 1);
    }
}

static void parameters_out_of_bounds_are_refused_by_name(void **state)
{
    (void)state;
    static const double wrong[] = {NAN, INFINITY, -INFINITY, -0.5, 1e9};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct sampler_params p[4] = {sampler_params_default, sampler_params_default, sampler_params_default, sampler_params_default};
        static const char *const names[] = {"temperature", "top_p", "min_p", "repetition_penalty"};
        p[0].temperature = p[1].top_p = p[2].min_p = p[3].repetition_penalty = wrong[i];
        for (int k = 0; k < 4; k++) {
            struct error err = {0};
            assert_int_equal(sampler_params_check(&p[k], &err), STATUS_INVALID);
            assert_non_null(strstr(err.text, names[k]));
        }
    }
    struct error err;
    struct sampler_params p = sampler_params_default;
    assert_int_equal(sampler_params_check(&p, &err), STATUS_OK);
    p.top_k = -1;
    assert_int_equal(sampler_params_check(&p, &err), STATUS_INVALID);
    struct token_bias bias = {3, NAN};
    p = sampler_params_default, p.bias = &bias, p.n_bias = 1;
    assert_int_equal(sampler_params_check(&p, &err), STATUS_INVALID);
}

static enum status read_config(const char *text, struct generation_config *config, struct error *err)
{
    char path[] = "/tmp/hearth-generation-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    enum status status = generation_config_read(config, path, err);
    unlink(path);
    if (status)
        assert_non_null(strstr(err->text, path));
    return status;
}

static void generation_config_is_read_and_checked(void **state)
{
    (void)state;
    struct generation_config config;
    struct error err;
    assert_int_equal(generation_config_read(&config, SOURCE_DIR "/models/kindling/generation_config.json", &err), STATUS_OK);
    assert_true(config.sampling.temperature == 1 && config.sampling.top_p == 0.95 && config.sampling.top_k == 0 &&
                config.sampling.repetition_penalty == 1);
    assert_int_equal(config.n_eos_ids, 3);
    assert_int_equal(config.eos_ids[2], 3609);
    assert_int_equal(generation_config_read(&config, "/nowhere/generation_config.json", &err), STATUS_OK);
    assert_int_equal(config.n_eos_ids, 0);
    assert_int_equal(read_config("{\"eos_token_id\":7,\"top_k\":20,\"min_p\":0.1,\"temperature\":null}", &config, &err), STATUS_OK);
    assert_true(config.n_eos_ids == 1 && config.eos_ids[0] == 7 && config.sampling.top_k == 20 && config.sampling.min_p == 0.1);
    static const char *const wrong[] = {"[]",
                                        "{\"temperature\":\"hot\"}",
                                        "{\"top_p\":1.5}",
                                        "{\"top_k\":-1}",
                                        "{\"eos_token_id\":\"x\"}",
                                        "{\"eos_token_id\":[-1]}",
                                        "{\"repetition_penalty\":0}",
                                        "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
                                        "{"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (!read_config(wrong[i], &config, &err))
            fail_msg("%s was accepted", wrong[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_words),
        cmocka_unit_test(noise_uses_seed_position_and_id_as_defined),
        cmocka_unit_test(temperature_0_takes_the_largest_and_ties_go_to_the_lower_id),
        cmocka_unit_test(draws_follow_the_softmax_at_every_temperature),
        cmocka_unit_test(draws_follow_the_truncated_softmax),
        cmocka_unit_test(every_cut_keeps_at_least_one),
        cmocka_unit_test(picks_equal_those_of_the_slow_definition),
        cmocka_unit_test(the_choice_does_not_depend_on_what_else_was_there),
        cmocka_unit_test(the_same_seed_and_position_give_the_same_token),
        cmocka_unit_test(penalties_and_bias_change_scores_as_defined),
        cmocka_unit_test(scores_that_are_no_numbers_are_errors),
        cmocka_unit_test(parameters_out_of_bounds_are_refused_by_name),
        cmocka_unit_test(generation_config_is_read_and_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
