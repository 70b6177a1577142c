/* Goal: what goes into memory is summed and refused before it is allocated, and what is refused says why and what to do. Method: plans for
 * real packs and folders under made-up limits and beside made-up accounts; limits of the process in a child. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "model/resident_experts.h"
#include "node/expert_slots.h"
#include "node/expert_store.h"
#include "node/memory_plan.h"
#include "tests/lib/golden.h"
#include "tests/lib/packs.h"

static struct weights_source *pack, *vendor;
static char *pack_dir, *vendor_dir;
static int layers;
static const uint64_t MIB = 1 << 20;

static int set_up(void **state)
{
    (void)state;
    char path[512];
    struct error err = {0};
    pack_dir = make_pack(checkpoint_path(path, "kindling"), PRECISION_INT4, NULL);
    vendor_dir = temporary_copy(checkpoint_path(path, "tiny-groups"));
    if (weights_source_open(&pack, pack_dir, &err) || weights_source_open(&vendor, vendor_dir, &err))
        fail_msg("%s", err.text);
    layers = weights_source_config(pack)->n_layers;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    weights_source_close(&pack);
    weights_source_close(&vendor);
    temporary_remove(&pack_dir);
    temporary_remove(&vendor_dir);
    return 0;
}

static const struct expert_options nothing_asked = {.reader = "auto", .prefetch = "auto"};

static struct budget budget_of(uint64_t limit)
{
    struct budget b = {.limit = limit};
    budget_add(&b, "dense weights", 3 * MIB, NULL);
    budget_add(&b, "positions", MIB, "lower --context");
    return b;
}

static void what_fits_is_resident(void **state)
{
    (void)state;
    uint64_t all = resident_experts_bytes(pack, 0, layers), bytes;
    struct budget b = budget_of(4 * MIB + all);
    struct memory_plan plan;
    struct error err = {0};
    assert_int_equal(memory_plan_experts(&plan, &b, pack, 0, layers, &nothing_asked, &err), STATUS_OK);
    assert_int_equal(plan.streams, 0);
    assert_int_equal(plan.n_experts, expert_store_n_experts(pack, 0, layers, &bytes));
    assert_int_equal(plan.n_slots, plan.n_experts);
    assert_true(budget_sum(&b) == b.limit);
}

/* With a byte less they stream. As many slots as there is room for: the sum is within the limit, and one more would not be. */
static void what_does_not_fit_streams_through_all_the_slots_that_do(void **state)
{
    (void)state;
    uint64_t all = resident_experts_bytes(pack, 0, layers), record;
    int n_experts = expert_store_n_experts(pack, 0, layers, &record);
    uint64_t tables = expert_store_overhead_bytes(pack, 0, layers, n_experts);
    for (uint64_t limit = 4 * MIB + all - 1; limit > 4 * MIB + tables + 2 * MIB; limit -= 123457) {
        struct budget b = budget_of(limit);
        struct memory_plan plan;
        struct error err = {0};
        if (memory_plan_experts(&plan, &b, pack, 0, layers, &nothing_asked, &err))
            fail_msg("%llu: %s", (unsigned long long)limit, err.text);
        assert_int_equal(plan.streams, 1);
        assert_true(plan.n_slots >= EXPERT_SLOTS_MIN && plan.n_slots <= n_experts && plan.expert_bytes == record);
        assert_true(budget_sum(&b) <= limit);
        assert_true(plan.n_slots == n_experts ||
                    budget_sum(&b) - expert_slots_arena_bytes(plan.n_slots, record) + expert_slots_arena_bytes(plan.n_slots + 1, record) >
                        limit);
    }
}

static void less_than_two_experts_is_refused_with_every_account_and_the_ways_out(void **state)
{
    (void)state;
    uint64_t record;
    uint64_t tables = expert_store_overhead_bytes(pack, 0, layers, expert_store_n_experts(pack, 0, layers, &record));
    const uint64_t limits[] = {0, 2 * MIB, 4 * MIB, 4 * MIB + tables, 4 * MIB + tables + expert_slots_arena_bytes(2, record) - 1};
    static const char *const words[] = {
        "dense weights 3.0 MiB", "positions 1.0 MiB (lower --context)", "expert slots", "raise --memory", "expert tables", "allowed"};
    struct memory_plan plan;
    struct error err = {0};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct budget b = budget_of(limits[i]);
        assert_int_equal(memory_plan_experts(&plan, &b, pack, 0, layers, &nothing_asked, &err), STATUS_NO_MEMORY);
        for (size_t w = 0; w < sizeof words / sizeof *words; w++)
            if (!strstr(err.text, words[w]))
                fail_msg("no '%s' in: %s", words[w], err.text);
    }
    struct budget b = budget_of(4 * MIB + tables + expert_slots_arena_bytes(2, record));
    assert_int_equal(memory_plan_experts(&plan, &b, pack, 0, layers, &nothing_asked, &err), STATUS_OK);
}

static void slots_that_a_person_asks_for_win(void **state)
{
    (void)state;
    struct memory_plan plan;
    struct error err = {0};
    const int64_t asked[] = {1, 2, 17, 1 << 24};
    for (int i = 0; i < 4; i++) {
        struct expert_options o = nothing_asked;
        struct budget b = budget_of(1024 * MIB);
        o.slots = asked[i];
        assert_int_equal(memory_plan_experts(&plan, &b, pack, 0, layers, &o, &err), STATUS_OK);
        assert_int_equal(plan.streams, 1);
        assert_int_equal(plan.n_slots, asked[i] < 2 ? 2 : asked[i] > plan.n_experts ? plan.n_experts : asked[i]);
    }
    struct expert_options o = nothing_asked;
    struct budget b = budget_of(8 * MIB);
    o.slots = 1 << 20;
    assert_int_equal(memory_plan_experts(&plan, &b, pack, 0, layers, &o, &err), STATUS_NO_MEMORY);
    assert_non_null(strstr(err.text, "lower --slots"));
}

static void whoever_names_drives_gets_experts_from_them(void **state)
{
    (void)state;
    struct expert_options asks[3] = {nothing_asked, nothing_asked, nothing_asked};
    asks[0].store = pack_dir;
    asks[1].emulate_disk = "1,80";
    asks[2].pin = 1;
    for (int i = 0; i < 3 - (geteuid() != 0); i++) {
        struct budget b = budget_of(1024 * MIB);
        struct memory_plan plan;
        struct error err = {0};
        assert_int_equal(memory_plan_experts(&plan, &b, pack, 0, layers, &asks[i], &err), STATUS_OK);
        assert_int_equal(plan.streams, 1);
        assert_int_equal(plan.n_slots, plan.n_experts);
    }
}

static void a_vendor_folder_is_resident_or_refused(void **state)
{
    (void)state;
    int n = weights_source_config(vendor)->n_layers;
    struct memory_plan plan;
    struct error err = {0};
    struct budget b = budget_of(1024 * MIB), tight = budget_of(4 * MIB + 1), roomy = budget_of(1024 * MIB);
    struct expert_options o = nothing_asked;
    assert_int_equal(memory_plan_experts(&plan, &b, vendor, 0, n, &nothing_asked, &err), STATUS_OK);
    assert_int_equal(plan.streams, 0);
    assert_int_equal(memory_plan_experts(&plan, &tight, vendor, 0, n, &nothing_asked, &err), STATUS_NO_MEMORY);
    assert_non_null(strstr(err.text, "hearth convert"));
    o.slots = 4;
    assert_int_equal(memory_plan_experts(&plan, &roomy, vendor, 0, n, &o, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "hearth convert"));
}

/* Layers without experts need nothing of this. */
static void a_range_of_dense_layers_has_no_experts_to_plan_for(void **state)
{
    (void)state;
    struct memory_plan plan;
    struct error err = {0};
    struct budget b = budget_of(4 * MIB);
    assert_false(weights_source_config(pack)->is_sparse[0]);
    assert_int_equal(memory_plan_experts(&plan, &b, pack, 0, 1, &nothing_asked, &err), STATUS_OK);
    assert_int_equal(plan.streams + plan.n_slots + plan.n_experts, 0);
}

static void more_than_the_machine_has_is_refused(void **state)
{
    (void)state;
    uint64_t limit;
    struct error err = {0};
    assert_int_equal(memory_plan_limit(UINT64_C(1) << 60, &limit, &err), STATUS_NO_MEMORY);
    assert_non_null(strstr(err.text, "--memory"));
    assert_int_equal(memory_plan_limit(MIB, &limit, &err), STATUS_OK);
    assert_true(limit == MIB);
    assert_int_equal(memory_plan_limit(0, &limit, &err), STATUS_OK);
    assert_true(limit > 0 && limit < UINT64_C(1) << 50);
}

/* ---- locked memory ---- */

/* In a child that may lock 64 KiB and is not root. 0: refused as it must be. */
static int plan_to_pin(void)
{
    struct rlimit limit = {65536, 65536};
    struct expert_options o = nothing_asked;
    struct budget b = budget_of(1024 * MIB);
    struct memory_plan plan;
    struct error err = {0};
    o.pin = 1;
    if (setrlimit(RLIMIT_MEMLOCK, &limit) || (geteuid() == 0 && (setgid(65534) || setuid(65534))))
        return 2;
    if (memory_plan_experts(&plan, &b, pack, 0, layers, &o, &err) != STATUS_NO_MEMORY)
        return 3;
    return strstr(err.text, "--pin") && strstr(err.text, "64.0 KiB") && strstr(err.text, "ulimit -l") ? 0 : 4;
}

static void what_may_not_be_locked_is_refused_before_it_is_tried(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child)
        _exit(plan_to_pin());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The longer reading all experts takes against computing a row, the longer the sets; sizes of experts and models cancel out. */
static void sets_are_as_long_as_reading_outweighs_computing(void **state)
{
    (void)state;
    assert_int_equal(memory_plan_balanced_rows(3.5e9, 20e9, 256, 8), 2048); /* GLM-5.2: balanced at 1,463 rows */
    assert_int_equal(memory_plan_balanced_rows(7e9, 20e9, 256, 8), 1024);
    assert_int_equal(memory_plan_balanced_rows(14e9, 10e9, 64, 8), 64);
    assert_int_equal(memory_plan_balanced_rows(1e6, 20e9, 256, 8), PREFILL_ROWS_MAX);
    assert_int_equal(memory_plan_balanced_rows(1e12, 1e9, 8, 8), 64);
}

static uint64_t a_megabyte_a_row(const struct model_config *config, int rows)
{
    (void)config;
    return (uint64_t)rows << 20;
}

/* Rows of a set once took the memory that the last two experts needed. */
static void sets_leave_three_quarters_of_what_is_free_to_experts(void **state)
{
    (void)state;
    for (uint64_t limit = UINT64_C(1) << 30; limit < UINT64_C(1) << 40; limit *= 2)
        for (int sixteenths = 0; sixteenths <= 18; sixteenths++) {
            struct budget others = {.limit = limit};
            budget_add(&others, "others", limit / 16 * (uint64_t)sixteenths, NULL);
            uint64_t used = budget_sum(&others), room = limit > used ? limit - used : 0;
            int rows = memory_plan_prefill_rows(&others, a_megabyte_a_row, NULL, 512);
            assert_true(rows >= 64 && rows <= 512 && (rows & (rows - 1)) == 0);
            uint64_t bytes = a_megabyte_a_row(NULL, rows), twice = 2 * bytes;
            assert_true(rows == 64 || (bytes <= room / 4 && bytes <= limit / 16));
            assert_true(rows == 512 || twice > room / 4 || twice > limit / 16);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_is_resident),
        cmocka_unit_test(what_does_not_fit_streams_through_all_the_slots_that_do),
        cmocka_unit_test(less_than_two_experts_is_refused_with_every_account_and_the_ways_out),
        cmocka_unit_test(slots_that_a_person_asks_for_win),
        cmocka_unit_test(whoever_names_drives_gets_experts_from_them),
        cmocka_unit_test(a_vendor_folder_is_resident_or_refused),
        cmocka_unit_test(a_range_of_dense_layers_has_no_experts_to_plan_for),
        cmocka_unit_test(more_than_the_machine_has_is_refused),
        cmocka_unit_test(what_may_not_be_locked_is_refused_before_it_is_tried),
        cmocka_unit_test(sets_are_as_long_as_reading_outweighs_computing),
        cmocka_unit_test(sets_leave_three_quarters_of_what_is_free_to_experts),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
