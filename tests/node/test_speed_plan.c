/* Goal: what node/speed_plan.h promises of its predictions. Method: machines and models of round figures for which the answer is known by
 * hand, and that more of anything never makes a prediction worse. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "node/speed_plan.h"

/* 10 MB experts, top 4 of each of 10 layers, 50 MB of attention, 10 MB shared; computing takes 1 ms for 40 MB. */
static const struct speed_model model = {.n_dense_layers = 1,
                                         .n_sparse_layers = 10,
                                         .top_k = 4,
                                         .expert_bytes = 10e6,
                                         .dense_layer_bytes = 80e6,
                                         .attention_bytes = 50e6,
                                         .shared_bytes = 10e6,
                                         .head_bytes = 20e6};
static const struct speed_machine machine = {.dense = {40e9, 20e9},
                                             .experts = {40e9, 20e9},
                                             .memory_bytes_per_second = 50e9,
                                             .drive_bytes_per_second = 1e9,
                                             .drive_latency_seconds = 1e-4};

static struct speed_setup streaming(double hit_rate)
{
    return (struct speed_setup){.streams = 1,
                                .hit_rate = hit_rate,
                                .hit_rate_guessing = hit_rate,
                                .resident_share = hit_rate / 2,
                                .chunk_rows = 64,
                                .chunk_experts = 30};
}

static void assert_near(double value, double wanted, double share)
{
    if (!(fabs(value - wanted) <= share * fabs(wanted)))
        fail_msg("%g, wanted %g within %g %%", value, wanted, 100 * share);
}

static const double COMPUTING = (10 * (50 + 10 + 40) + 80 + 20) * 1e6 / 40e9; /* seconds a token */

static void all_in_memory_takes_the_time_of_its_weights(void **state)
{
    (void)state;
    struct speed_setup resident = {.hit_rate = 1, .hit_rate_guessing = 1, .resident_share = 1, .chunk_rows = 64, .chunk_experts = 30};
    struct speed_plan p = speed_plan(&machine, &model, &resident);
    assert_near(p.token_seconds, COMPUTING, 1e-9);
    assert_near(p.tokens_per_second, 1 / COMPUTING, 1e-9);
    assert_int_equal(p.bound, BOUND_MEMORY);
    assert_true(p.missed_bytes == 0 && p.prompt_missed_bytes == 0);
}

static void nothing_in_memory_takes_the_time_of_the_drive(void **state)
{
    (void)state;
    struct speed_setup setup = streaming(0);
    struct speed_plan p = speed_plan(&machine, &model, &setup);
    double layer = 50e6 / 40e9 + 1e-4 + 40e6 / 1e9 + 10e6 / 40e9; /* attention, latency, four experts, the last one's computing */
    assert_near(p.token_seconds, 10 * layer + 100e6 / 40e9, 1e-9);
    assert_near(p.missed_bytes, 400e6, 1e-9);
    assert_int_equal(p.bound, BOUND_DRIVE);
}

static void a_layer_waits_for_the_slower_of_drive_and_computing(void **state)
{
    (void)state;
    struct speed_setup setup = streaming(0.5);
    struct speed_machine fast = machine;
    double ahead = 0;
    assert_near(speed_layer_seconds(&machine, &model, &setup, 0, &ahead), 100e6 / 40e9, 1e-9);
    assert_near(speed_layer_seconds(&machine, &model, &setup, 1, &ahead), 60e6 / 40e9 + 1e-4 + 10e-3, 1e-9);
    fast.drive_bytes_per_second = 100e9; /* one miss comes while the other experts are computed */
    assert_near(speed_layer_seconds(&fast, &model, &setup, 1, &ahead), 100e6 / 40e9, 1e-9);
    fast.landing_seconds_per_byte = 1e-10; /* but takes time of the cores */
    assert_near(speed_layer_seconds(&fast, &model, &setup, 1, &ahead), 100e6 / 40e9 + 1e-3, 1e-9);
    assert_true(ahead == 0); /* nobody guesses */
}

static void guesses_use_the_time_in_which_the_drive_is_idle(void **state)
{
    (void)state;
    struct speed_setup setup = streaming(0.5);
    double ahead = 0;
    setup.guesses = PREFETCH_ON;
    double without = speed_layer_seconds(&machine, &model, &setup, 2, &ahead);
    double idle_bytes = (without - 20e6 / 1e9 - 1e-4) * 1e9;
    assert_true(ahead > idle_bytes / 2 && ahead < idle_bytes); /* some do not come true */
    double read = ahead, with = speed_layer_seconds(&machine, &model, &setup, 2, &ahead);
    assert_near(without - with, read / 1e9, 1e-6);
    struct speed_setup off = streaming(0.5);
    assert_true(speed_plan(&machine, &model, &setup).token_seconds < speed_plan(&machine, &model, &off).token_seconds);
}

static void guesses_that_push_out_more_than_they_bring_are_not_made(void **state)
{
    (void)state;
    struct speed_setup setup = streaming(0.5), never = streaming(0.5);
    setup.hit_rate_guessing = 0.3;
    setup.guesses = PREFETCH_ON;
    double always = speed_plan(&machine, &model, &setup).token_seconds;
    setup.guesses = PREFETCH_AUTO;
    double best = speed_plan(&machine, &model, &setup).token_seconds;
    assert_true(best < always);
    assert_near(best, speed_plan(&machine, &model, &never).token_seconds, 1e-9);
}

static void never_faster_than_the_drive_or_computing_alone(void **state)
{
    (void)state;
    for (int guesses = PREFETCH_OFF; guesses <= PREFETCH_AUTO; guesses++)
        for (double hit = 0; hit < 1; hit += 0.07)
            for (double rate = 0.1e9; rate < 200e9; rate *= 1.7) {
                struct speed_machine m = machine;
                struct speed_setup setup = streaming(hit);
                m.drive_bytes_per_second = rate;
                setup.guesses = (enum prefetch_mode)guesses;
                struct speed_plan p = speed_plan(&m, &model, &setup);
                assert_true(p.token_seconds >= COMPUTING * (1 - 1e-9));
                assert_true(p.token_seconds >= 0.97 * p.missed_bytes / rate); /* chance: misses are drawn */
                assert_true(p.token_seconds <= 1.03 * (p.missed_bytes / rate + COMPUTING) + 10 * (1e-4 + 10e6 / 40e9));
            }
}

static void more_of_anything_is_never_slower(void **state)
{
    (void)state;
    struct speed_setup base = streaming(0.6), more = streaming(0.65);
    struct speed_machine drive = machine, kernels = machine;
    struct speed_plan now = speed_plan(&machine, &model, &base);
    drive.drive_bytes_per_second *= 1.1;
    kernels.experts.one_row *= 1.1;
    kernels.experts.batch *= 1.1;
    const struct speed_plan better[] = {speed_plan(&machine, &model, &more), speed_plan(&drive, &model, &base),
                                        speed_plan(&kernels, &model, &base)};
    for (int i = 0; i < 3; i++) {
        assert_true(better[i].token_seconds <= now.token_seconds);
        assert_true(better[i].prompt_row_seconds <= now.prompt_row_seconds);
    }
    assert_true(better[0].token_seconds < now.token_seconds && better[1].token_seconds < now.token_seconds);
}

static void a_chunk_reads_its_experts_once(void **state)
{
    (void)state;
    struct speed_setup setup = streaming(0), larger = streaming(0);
    struct speed_plan p = speed_plan(&machine, &model, &setup);
    assert_near(p.prompt_missed_bytes, 10 * 30 * 10e6 / 64, 1e-9);
    larger.chunk_rows = 256;
    larger.chunk_experts = 32;
    struct speed_plan q = speed_plan(&machine, &model, &larger);
    assert_near(q.prompt_missed_bytes, 10 * 32 * 10e6 / 256, 1e-9);
    assert_true(q.prompt_tokens_per_second > 2 * p.prompt_tokens_per_second);
    assert_int_equal(p.prompt_bound, BOUND_DRIVE);
}

static void what_was_said_before_takes_time_up_to_what_is_attended_to(void **state)
{
    (void)state;
    struct speed_setup setup = {.hit_rate = 1, .hit_rate_guessing = 1, .resident_share = 1, .chunk_rows = 64, .chunk_experts = 30};
    struct speed_model long_model = model;
    struct speed_machine m = machine;
    m.macs_per_second = 100e9;
    long_model.position_macs = 1e6;
    long_model.index_macs = 1e3;
    long_model.attended_max = 2000;
    setup.n_positions = 1000;
    assert_near(speed_plan(&m, &long_model, &setup).token_seconds, COMPUTING + 1000 * 1e6 / 100e9, 1e-9);
    setup.n_positions = 10000;
    assert_near(speed_plan(&m, &long_model, &setup).token_seconds, COMPUTING + (2000 * 1e6 + 10000 * 1e3) / 100e9, 1e-9);
    setup.prompt_rows = 2000;
    double with = speed_plan(&m, &long_model, &setup).prompt_row_seconds, without = speed_plan(&m, &model, &setup).prompt_row_seconds;
    assert_near(with - without, 1000 * 1e6 / 100e9, 1e-6);
}

static void the_bound_is_what_would_help_most(void **state)
{
    (void)state;
    struct speed_setup setup = streaming(0.9);
    struct speed_machine m = machine;
    m.drive_bytes_per_second = 100e9;
    assert_int_equal(speed_plan(&m, &model, &setup).bound, BOUND_MEMORY);
    m.experts = m.dense = (struct speed_rates){10e9, 5e9}; /* far from the rate of memory */
    assert_int_equal(speed_plan(&m, &model, &setup).bound, BOUND_COMPUTING);
    m.drive_bytes_per_second = 0.1e9;
    assert_int_equal(speed_plan(&m, &model, &setup).bound, BOUND_DRIVE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_in_memory_takes_the_time_of_its_weights),
        cmocka_unit_test(nothing_in_memory_takes_the_time_of_the_drive),
        cmocka_unit_test(a_layer_waits_for_the_slower_of_drive_and_computing),
        cmocka_unit_test(guesses_use_the_time_in_which_the_drive_is_idle),
        cmocka_unit_test(guesses_that_push_out_more_than_they_bring_are_not_made),
        cmocka_unit_test(never_faster_than_the_drive_or_computing_alone),
        cmocka_unit_test(more_of_anything_is_never_slower),
        cmocka_unit_test(a_chunk_reads_its_experts_once),
        cmocka_unit_test(what_was_said_before_takes_time_up_to_what_is_attended_to),
        cmocka_unit_test(the_bound_is_what_would_help_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
