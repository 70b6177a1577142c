/* Goal: the line about an answer counts from when it began, and says when others ran beside it. Method: made-up figures, and the text of
 * the line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "node/answer_log.h"

static const struct answer_figures before = {
    .now_ns = 1000000000, .rows = 100, .busy_ns = 500000000, .experts = {.hits = 50, .misses = 50, .bytes_read = 3000000, .wait_ns = 100}};
static const struct answer_figures after = {.now_ns = 4500000000,
                                            .rows = 140,
                                            .busy_ns = 2500000000,
                                            .experts = {.hits = 140, .misses = 60, .bytes_read = 15500000, .wait_ns = 250000100}};

static void figures_count_from_the_answers_begin(void **state)
{
    (void)state;
    char text[256];
    answer_log_text(text, sizeof text, &(struct answer_start){1, 0, before}, &after);
    assert_string_equal(text,
                        "40 rows in 3.5 s, 2.0 s of it computing; experts: 90.0 % of 100 were there, 12.5 MB read, 0.25 s waited for");
}

static void experts_in_ram_and_others_at_the_same_time(void **state)
{
    (void)state;
    char text[256];
    struct answer_figures a = before, b = after;
    a.experts = b.experts = (struct expert_stats){0};
    answer_log_text(text, sizeof text, &(struct answer_start){1, 2, a}, &b);
    assert_string_equal(text, "40 rows in 3.5 s, 2.0 s of it computing; with 2 other answers at the same time");
}

static void every_answer_has_its_own_begin(void **state)
{
    (void)state;
    static struct answer_log log;
    answer_log_begin(&log, 7, &before);
    answer_log_begin(&log, 8, &after);
    answer_log_begin(&log, 7, &after); /* asked twice */
    assert_int_equal(log.n_open, 2);
    assert_int_equal(log.open[0].figures.rows, before.rows);
    assert_int_equal(log.open[0].n_others, 1);
    assert_int_equal(log.open[1].n_others, 1);
    answer_log_end(&log, 9, &after);
    answer_log_end(&log, 7, &after);
    assert_int_equal(log.n_open, 1);
    assert_int_equal(log.open[0].sequence, 8);
    answer_log_begin(&log, 9, &after);
    assert_int_equal(log.open[0].n_others, 2);
    for (uint64_t id = 100; id < 100 + 2 * SEQUENCES_MAX; id++) /* more than any stage opens */
        answer_log_begin(&log, id, &after);
    assert_int_equal(log.n_open, SEQUENCES_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_count_from_the_answers_begin),
        cmocka_unit_test(experts_in_ram_and_others_at_the_same_time),
        cmocka_unit_test(every_answer_has_its_own_begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
