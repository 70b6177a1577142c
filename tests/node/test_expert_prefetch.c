/* Goal: guesses stay where they pay and go where they cost, and neither a memory that is still filling nor one slow moment decides it.
 * Method: passes of made-up times through the pure trial. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <cmocka.h>

#include "node/expert_prefetch.h"

enum { TRIAL_PASSES = PREFETCH_WINDOW_PASSES * PREFETCH_TRIAL_WINDOWS };

/* Time of a pass, in its place of the trial. */
typedef double pass_time(int pass, double cost, int is_on);

static double steady(int pass, double cost, int is_on)
{
    (void)pass;
    return is_on ? 1 + cost : 1;
}

/* A memory that fills: each window of passes takes 4 % less than the one before. */
static double warming(int pass, double cost, int is_on)
{
    return steady(pass, cost, is_on) * pow(0.96, (double)pass / PREFETCH_WINDOW_PASSES);
}

/* A conversation that grows: each window takes 2 % of the first one more. */
static double growing(int pass, double cost, int is_on)
{
    return steady(pass, cost, is_on) * (1 + 0.02 * pass / PREFETCH_WINDOW_PASSES);
}

static void run_trial(struct prefetch_trial *t, pass_time *time_of, double cost)
{
    for (int pass = 0; pass < TRIAL_PASSES; pass++)
        prefetch_trial_pass(t, (uint64_t)(1e8 * time_of(pass, cost, t->is_on)), 0);
}

static int decision(pass_time *time_of, double cost)
{
    struct prefetch_trial t;
    prefetch_trial_init(&t, PREFETCH_AUTO);
    assert_true(t.is_on); /* nothing is decided yet, and guesses are tried first */
    run_trial(&t, time_of, cost);
    assert_int_equal(t.windows, PREFETCH_TRIAL_WINDOWS);
    assert_true(t.last_ratio > 0);
    return t.is_on;
}

static void guesses_that_cost_go_and_those_that_gain_stay(void **state)
{
    (void)state;
    assert_false(decision(steady, 0.05));
    assert_false(decision(steady, 0.02));
    assert_true(decision(steady, 0));
    assert_true(decision(steady, -0.05));
}

static void a_rate_that_rises_or_falls_meanwhile_favours_neither(void **state)
{
    (void)state;
    static pass_time *const trends[] = {warming, growing};
    for (int i = 0; i < 2; i++) {
        assert_false(decision(trends[i], 0.05));
        assert_false(decision(trends[i], 0.03));
        assert_true(decision(trends[i], 0));
        assert_true(decision(trends[i], -0.03));
    }
}

/* Whichever window it is: five times slower, or so fast that a clock must have jumped. */
static void one_odd_window_decides_nothing(void **state)
{
    (void)state;
    static const double costs[] = {0.05, -0.05}, odd[] = {5, 0.01};
    for (int window = 0; window < PREFETCH_TRIAL_WINDOWS; window++)
        for (int i = 0; i < 4; i++) {
            struct prefetch_trial t;
            prefetch_trial_init(&t, PREFETCH_AUTO);
            for (int pass = 0; pass < TRIAL_PASSES; pass++)
                prefetch_trial_pass(
                    &t, (uint64_t)(1e8 * steady(pass, costs[i % 2], t.is_on) * (pass / PREFETCH_WINDOW_PASSES == window ? odd[i / 2] : 1)), 0);
            assert_int_equal(t.is_on, costs[i % 2] < 0);
        }
}

/* What paid once may cost later, and the other way round. */
static void a_decision_holds_for_a_while_and_is_tried_again(void **state)
{
    (void)state;
    struct prefetch_trial t;
    prefetch_trial_init(&t, PREFETCH_AUTO);
    for (int round = 0; round < 4; round++) {
        run_trial(&t, steady, round % 2 ? -0.05 : 0.05);
        int decided = t.is_on;
        assert_int_equal(decided, round % 2);
        for (int pass = 0; pass < PREFETCH_KEEP_PASSES - 1; pass++) {
            prefetch_trial_pass(&t, UINT64_C(1) << (pass % 40), 0); /* times mean nothing now */
            assert_int_equal(t.is_on, decided);
        }
        prefetch_trial_pass(&t, 1, 0);
        assert_true(t.is_on);
        assert_int_equal(t.windows, 0);
    }
}

static void what_a_person_has_chosen_is_not_tried(void **state)
{
    (void)state;
    for (int mode = PREFETCH_OFF; mode <= PREFETCH_ON; mode++) {
        struct prefetch_trial t;
        prefetch_trial_init(&t, (enum prefetch_mode)mode);
        for (int i = 0; i < 5; i++)
            run_trial(&t, steady, mode == PREFETCH_ON ? 0.5 : -0.5);
        assert_int_equal(t.is_on, mode == PREFETCH_ON);
    }
}

/* Nothing was waited for: no arm is better, and nothing is divided by zero. */
static void passes_that_take_no_time_are_no_reason_to_stop(void **state)
{
    (void)state;
    struct prefetch_trial t;
    prefetch_trial_init(&t, PREFETCH_AUTO);
    for (int i = 0; i < TRIAL_PASSES; i++)
        prefetch_trial_pass(&t, 0, 0);
    assert_true(t.is_on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_that_cost_go_and_those_that_gain_stay),
        cmocka_unit_test(a_rate_that_rises_or_falls_meanwhile_favours_neither),
        cmocka_unit_test(one_odd_window_decides_nothing),
        cmocka_unit_test(a_decision_holds_for_a_while_and_is_tried_again),
        cmocka_unit_test(what_a_person_has_chosen_is_not_tried),
        cmocka_unit_test(passes_that_take_no_time_are_no_reason_to_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
