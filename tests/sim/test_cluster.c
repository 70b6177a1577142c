/* Goal: whatever happens to nodes, links, the coordinator and its askers, committed tokens are those of one process, everything ends, and
 * the cluster heals. Method: tests/sim/world.c on many seeds; three deliberate defects must be found. usage: sim_cluster [first seed
 * [number of seeds]] */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/lib/golden.h"
#include "tests/sim/world.h"

static uint64_t first_seed = 1, n_seeds = CASE_STRIDE == 1 ? 500 : 60;

static void committed_tokens_equal_one_process_under_faults(void **state)
{
    (void)state;
    struct world_result sum = {0};
    for (uint64_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
        struct world_result r = world_run(seed, DEFECT_NONE);
        if (r.violation[0])
            fail_msg("seed %llu: %s; replay: sim_cluster %llu 1", (unsigned long long)seed, r.violation, (unsigned long long)seed);
        sum.n_done += r.n_done, sum.n_failed += r.n_failed, sum.n_refused += r.n_refused, sum.n_kills += r.n_kills,
            sum.n_pauses += r.n_pauses;
        sum.n_partitions += r.n_partitions, sum.n_lost += r.n_lost, sum.n_redone += r.n_redone, sum.n_cancelled += r.n_cancelled;
        sum.n_replays += r.n_replays, sum.n_coordinator_restarts += r.n_coordinator_restarts, sum.n_messages += r.n_messages;
    }
    printf("%llu seeds: %d answers done, %d failed, %d refused, %d hung up; %d kills, %d pauses, %d partitions, %d coordinator restarts, "
           "%d row messages lost, %d old messages replayed, "
           "%d rows redone, %llu messages\n",
           (unsigned long long)n_seeds, sum.n_done, sum.n_failed, sum.n_refused, sum.n_cancelled, sum.n_kills, sum.n_pauses,
           sum.n_partitions, sum.n_coordinator_restarts, sum.n_lost, sum.n_replays, sum.n_redone, (unsigned long long)sum.n_messages);
    if (n_seeds >= 50) /* the faults and what they lead to did happen */
        assert_true(sum.n_done > 100 && sum.n_failed > 20 && sum.n_kills > 20 && sum.n_pauses > 20 && sum.n_partitions > 20 &&
                    sum.n_redone > 5 && sum.n_replays > 50 && sum.n_coordinator_restarts > 5 && sum.n_cancelled > 5);
}

static int is_found(enum world_defect defect)
{
    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct world_result r = world_run(seed, defect);
        if (r.violation[0]) {
            printf("found with seed %llu: %s\n", (unsigned long long)seed, r.violation);
            return 1;
        }
    }
    return 0;
}

static void a_missing_epoch_check_is_found(void **state)
{
    (void)state;
    assert_true(is_found(DEFECT_NO_EPOCH_CHECK));
}

static void a_cut_that_is_off_by_one_is_found(void **state)
{
    (void)state;
    assert_true(is_found(DEFECT_CUT_OFF_BY_ONE));
}

static void generations_that_are_not_raised_are_found(void **state)
{
    (void)state;
    assert_true(is_found(DEFECT_STALE_GENERATION));
}

int main(int argc, char **argv)
{
    if (argc > 1)
        first_seed = strtoull(argv[1], NULL, 0);
    if (argc > 2)
        n_seeds = strtoull(argv[2], NULL, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(committed_tokens_equal_one_process_under_faults),
        cmocka_unit_test(a_missing_epoch_check_is_found),
        cmocka_unit_test(a_cut_that_is_off_by_one_is_found),
        cmocka_unit_test(generations_that_are_not_raised_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
