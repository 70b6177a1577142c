/* Goal: whatever is asked for, in whatever order and with however few slots, each expert comes once and with the file's bytes; and what the
 * store says of folders and of earlier runs. Method: a store over a real pack, driven as model/moe.c drives it, by hand and by seeded
 * random sequences with hints, classes, cuts and given-up requests in between; every byte behind every view is compared with the file's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/node/expert_rig.h"

static struct rig rig; /* kindling: 32 experts, top 4 */

static int set_up(void **state)
{
    (void)state;
    char path[512];
    rig_init(&rig, make_pack(checkpoint_path(path, "kindling"), PRECISION_INT4, NULL));
    assert_int_equal(rig.model->n_experts, 32);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rig_release(&rig);
    return 0;
}

static int all_experts[EXPERTS_MAX];

static int count_all(void)
{
    for (int i = 0; i < rig.model->n_experts; i++)
        all_experts[i] = i;
    return rig.model->n_experts;
}

/* ---- few slots ---- */

static void two_slots_serve_a_request_of_all_experts(void **state)
{
    (void)state;
    struct error err = {0};
    int n = count_all();
    for (int r = 0; r < RIG_READERS; r++)
        for (int n_slots = 2; n_slots < 6; n_slots++) {
            rig_open(&rig, rig_readers[r], n_slots);
            for (int layer = rig.layer_begin; layer < rig.layer_end; layer++) {
                rig_take_in_order(&rig, layer, all_experts, n, 40, n);
                if (rig_take(&rig, layer, all_experts, n, 40, &err))
                    fail_msg("%s", err.text);
                rig_take_in_order(&rig, layer, all_experts, n, 40, n); /* what is left of the last one is somewhere in the middle */
            }
            struct expert_stats stats = rig_stats(&rig);
            assert_int_equal(stats.slots, n_slots);
            assert_int_equal(stats.hits + stats.misses, (uint64_t)(3 * n * (rig.layer_end - rig.layer_begin)));
            rig_close(&rig);
        }
}

static void with_room_for_all_nothing_is_read_twice(void **state)
{
    (void)state;
    struct error err = {0};
    int n = count_all(), layers = rig.layer_end - rig.layer_begin;
    rig_open(&rig, "io_uring", n * layers);
    for (int pass = 0; pass < 3; pass++)
        for (int layer = rig.layer_begin; layer < rig.layer_end; layer++)
            assert_int_equal(rig_take(&rig, layer, all_experts, n, 1, &err), STATUS_OK);
    struct expert_stats stats = rig_stats(&rig);
    assert_int_equal(stats.reads, (uint64_t)(n * layers));
    assert_int_equal(stats.bytes_read, stats.reads * rig.layouts[rig.layer_begin].record_bytes);
    assert_int_equal(stats.hits, 2 * stats.reads);
    assert_int_equal(stats.evictions, 0);
    rig_close(&rig);
}

/* ---- random sequences ---- */

/* Ascending ids, at least one. */
static int choose(uint64_t *seed, int *experts)
{
    int n = 0, share = 1 + (int)(noise(seed) % 16);
    for (int e = 0; e < rig.model->n_experts; e++)
        if (noise(seed) % 16 < (unsigned)share && (share > 8 || n < rig.model->top_k))
            experts[n++] = e;
    if (!n)
        experts[n++] = (int)(noise(seed) % (unsigned)rig.model->n_experts);
    return n;
}

static void hint(uint64_t *seed, int layer)
{
    int hints[24], n = (int)(noise(seed) % 24);
    for (int i = 0; i < n; i++)
        hints[i] = (int)(noise(seed) % (unsigned)rig.model->n_experts);
    rig.experts->expect(rig.experts, layer, hints, n);
}

/* A request as prefill makes it when it must let a decode row by: part of it is used, the rest is asked for again and not counted (n_rows
 * 0). */
static void take_with_a_break(uint64_t *seed, int layer, const int *experts, int n)
{
    int n_used = (int)(noise(seed) % (unsigned)(n + 1)), other = (int)(noise(seed) % (unsigned)rig.model->n_experts);
    rig_take_in_order(&rig, layer, experts, n, 20, n_used);
    rig_want_one(&rig, rig.layer_begin, other);
    if (n_used < n)
        rig_take_in_order(&rig, layer, experts + n_used, n - n_used, 0, n - n_used);
}

static void random_steps(uint64_t seed, int n_steps)
{
    int layer = rig.layer_begin, experts[EXPERTS_MAX];
    for (int step = 0; step < n_steps; step++) {
        struct error err = {0};
        int n = choose(&seed, experts), n_rows = 1 + (int)(noise(&seed) % 3), way = (int)(noise(&seed) % 8);
        layer = layer + 1 < rig.layer_end && noise(&seed) % 8 ? layer + 1 : rig.layer_begin;
        expert_store_set_class(rig.store, (enum read_class)(noise(&seed) % (READ_DRAFT + 1)));
        if (noise(&seed) % 16 == 0)
            expert_store_withdraw(rig.store);
        if (noise(&seed) % 2)
            hint(&seed, rig.layer_begin + (int)(noise(&seed) % (unsigned)(rig.layer_end - rig.layer_begin)));
        if (way == 0)
            take_with_a_break(&seed, layer, experts, n);
        else if (way < 3)
            rig_take_in_order(&rig, layer, experts, n, n_rows, n);
        else if (rig_take(&rig, layer, experts, n, n_rows, &err))
            fail_msg("step %d: %s", step, err.text);
        if (noise(&seed) % 64 == 0)
            expert_store_idle(rig.store);
    }
}

static void random_sequences_give_the_right_bytes_with_any_number_of_slots(void **state)
{
    (void)state;
    int top_k = rig.model->top_k, all = rig.model->n_experts * (rig.layer_end - rig.layer_begin);
    int slots[] = {2, 3, top_k - 1, top_k, all / 2, all};
    for (int i = 0; i < 6; i++)
        for (int r = 0; r < RIG_READERS; r++) {
            uint64_t seed = 20240611 + (uint64_t)(2 * i + r);
            printf("%d slots, %s, seed %llu\n", slots[i], rig_readers[r], (unsigned long long)seed);
            rig_open(&rig, rig_readers[r], slots[i]);
            random_steps(seed, 2000 / RIG_READERS);
            struct expert_stats stats = rig_stats(&rig);
            assert_int_equal(stats.read_errors + stats.retries + stats.checksum_errors, 0);
            assert_true(stats.slots_used <= stats.slots);
            assert_true(stats.prefetch_useful_bytes + stats.prefetch_wasted_bytes <= stats.bytes_read);
            rig_close(&rig);
        }
}

/* A slow drive: guesses are still on their way when they come true, are called back, or are overtaken. */
static void random_sequences_give_the_right_bytes_from_a_slow_drive(void **state)
{
    (void)state;
    rig.options.emulate_disk = "0.2,300,500";
    for (int n_slots = 2; n_slots < 40; n_slots += 12) {
        rig_open(&rig, n_slots % 8 ? "io_uring" : "pread", n_slots);
        random_steps(77 + (uint64_t)n_slots, 150);
        rig_close(&rig);
    }
    rig.options.emulate_disk = NULL;
}

/* Records of several pieces, guessed, called back between two pieces, and wanted after all. */
static void random_sequences_give_the_right_bytes_in_several_pieces(void **state)
{
    (void)state;
    struct rig own = rig;
    rig_init(&rig, rig_large_pack());
    rig.options.emulate_disk = "1,200,500";
    for (int n_slots = 2; n_slots < 16; n_slots += 2) {
        rig_open(&rig, n_slots % 4 ? "io_uring" : "pread", n_slots);
        random_steps(177 + (uint64_t)n_slots, 100);
        assert_true(rig_stats(&rig).retries == 0);
        rig_close(&rig);
    }
    rig_release(&rig);
    rig = own;
}

/* The rest of a request that was given up may be the first that a store ever sees, and again. */
static void rests_of_requests_are_no_passes(void **state)
{
    (void)state;
    int n = count_all();
    rig_open(&rig, "pread", 4);
    for (int i = 0; i < 3; i++)
        rig_take_in_order(&rig, rig.layer_begin, all_experts, n, 0, n);
    rig_close(&rig);
}

/* ---- folders ---- */

static const char *file_in(char path[700], const char *folder, int layer)
{
    char name[32];
    part_file_name(name, PART_EXPERTS, layer);
    snprintf(path, 700, "%s/%s", folder, name);
    return path;
}

static void copy_to(const char *folder, int layer)
{
    char name[32];
    part_file_name(name, PART_EXPERTS, layer);
    write_file(folder, name, rig.files[layer], rig.file_bytes[layer]);
}

static void take_everything(void)
{
    struct error err = {0};
    int n = count_all();
    for (int layer = rig.layer_begin; layer < rig.layer_end; layer++)
        if (rig_take(&rig, layer, all_experts, n, 1, &err))
            fail_msg("%s", err.text);
}

static void files_may_be_split_or_doubled_over_folders(void **state)
{
    (void)state;
    char *a = temporary_folder(), *b = temporary_folder(), *stores = xasprintf("%s,%s", a, b), path[700];
    for (int layer = rig.layer_begin; layer < rig.layer_end; layer++)
        copy_to(layer % 2 ? a : b, layer);
    rig.options.store = stores;
    for (int r = 0; r < RIG_READERS; r++) {
        rig_open(&rig, rig_readers[r], 8);
        take_everything();
        assert_true(rig_gate_reads(rig.gate, 0) > 0 && rig_gate_reads(rig.gate, 1) > 0);
        rig_close(&rig);
    }
    for (int layer = rig.layer_begin + 1; layer < rig.layer_end; layer++) { /* both have all but the first, that only one has */
        copy_to(a, layer);
        copy_to(b, layer);
    }
    rig.options.emulate_disk = "1,100"; /* so that one drive has something to do when the next read is issued */
    for (int r = 0; r < RIG_READERS; r++) {
        rig_open(&rig, rig_readers[r], 16);
        take_everything();
        int total = rig_gate_reads(rig.gate, 0) + rig_gate_reads(rig.gate, 1);
        assert_true(rig_gate_reads(rig.gate, 0) > total / 4 && rig_gate_reads(rig.gate, 1) > total / 4);
        rig_close(&rig);
    }
    rig.options.emulate_disk = NULL;
    struct error err = {0};
    unlink(file_in(path, a, rig.layer_begin));
    unlink(file_in(path, b, rig.layer_begin));
    assert_int_equal(rig_try_open(&rig, 8, &err), STATUS_NOT_FOUND);
    snprintf(path, sizeof path, "layer %d: experts-%02d", rig.layer_begin, rig.layer_begin);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, a));
    assert_non_null(strstr(err.text, b));
    rig.options.store = NULL;
    temporary_remove(&a);
    temporary_remove(&b);
    free(stores);
}

/* Both folders have everything and one drive is broken. */
static void read_beside_a_broken_drive(void)
{
    static const enum fault_kind kinds[] = {FAULT_EIO, FAULT_SHORT, FAULT_FLIP};
    const int n_kinds = sizeof kinds / sizeof *kinds;
    char *folders[] = {temporary_folder(), temporary_folder()}, *stores = xasprintf("%s,%s", folders[0], folders[1]), path[700];
    uint64_t retries = 0;
    for (int layer = rig.layer_begin; layer < rig.layer_end; layer++)
        for (int i = 0; i < 2; i++)
            copy_to(folders[i], layer);
    rig.options.store = stores;
    for (int i = 0; i < 2 * n_kinds; i++) {
        rig_open(&rig, rig_readers[i % RIG_READERS], 8);
        for (int layer = rig.layer_begin; layer < rig.layer_end; layer++) {
            struct fault fault = {.kind = kinds[i / 2], .path = file_in(path, folders[i % 2], layer), .times = FAULT_ALWAYS};
            fault_reader_add(rig.faults, &fault);
        }
        take_everything();
        retries += rig_stats(&rig).retries;
        rig_close(&rig);
    }
    assert_true(retries > 0);
    rig.options.store = NULL;
    temporary_remove(&folders[0]);
    temporary_remove(&folders[1]);
    free(stores);
}

static void a_record_that_one_drive_fails_comes_from_another_that_has_it(void **state)
{
    (void)state;
    struct rig own = rig;
    read_beside_a_broken_drive();
    rig_init(&rig, rig_large_pack()); /* of pieces from two drives, a wrong checksum does not tell which one lied */
    read_beside_a_broken_drive();
    rig_release(&rig);
    rig = own;
}

static void a_file_of_another_size_or_header_is_refused(void **state)
{
    (void)state;
    struct error err = {0};
    char *folder = temporary_folder(), path[700];
    for (int layer = rig.layer_begin; layer < rig.layer_end; layer++)
        copy_to(folder, layer);
    rig.options.store = folder;
    assert_int_equal(truncate(file_in(path, folder, rig.layer_begin + 1), (off_t)rig.file_bytes[rig.layer_begin] - 1), 0);
    assert_int_equal(rig_try_open(&rig, 8, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(rename(file_in(path, folder, rig.layer_begin), file_in((char[700]){0}, folder, rig.layer_begin + 1)), 0);
    copy_to(folder, rig.layer_begin);
    assert_int_equal(rig_try_open(&rig, 8, &err), STATUS_CORRUPT); /* the file of another layer */
    static const char *const wrong[] = {"/nowhere,", ",/nowhere", "a,,b", "a,b,c,d,e,f,g,h,i"};
    for (int i = 0; i < 4; i++) {
        rig.options.store = wrong[i];
        assert_int_equal(rig_try_open(&rig, 8, &err), STATUS_INVALID);
        assert_non_null(strstr(err.text, wrong[i]));
    }
    rig.options.store = NULL;
    temporary_remove(&folder);
}

static void experts_of_a_vendor_folder_do_not_stream(void **state)
{
    (void)state;
    char path[512];
    struct error err = {0};
    char *folder = temporary_copy(checkpoint_path(path, "tiny-groups"));
    struct weights_source *vendor, *own = rig.source;
    assert_int_equal(weights_source_open(&vendor, folder, &err), STATUS_OK);
    rig.source = vendor;
    assert_int_equal(rig_try_open(&rig, 8, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "hearth convert"));
    rig.source = own;
    weights_source_close(&vendor);
    temporary_remove(&folder);
}

/* ---- warming ---- */

static void wait_for_reads(uint64_t n)
{
    uint64_t start = clock_now_ns(clock_monotonic());
    while (rig_stats(&rig).reads < n && !rig_is_late(start))
        rig_sleep_ms(1);
    assert_true(rig_stats(&rig).reads >= n);
}

static void use_hot_experts(void)
{
    static const int hot[] = {3, 7, 11, 30};
    struct error err = {0};
    for (int i = 0; i < 50; i++)
        for (int layer = rig.layer_begin; layer < rig.layer_end; layer++)
            assert_int_equal(rig_take(&rig, layer, hot, 4, 1, &err), STATUS_OK);
}

static void what_earlier_runs_used_most_is_read_in_the_background(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    int layers = rig.layer_end - rig.layer_begin, n_hot = 4 * layers;
    rig.options.use_counts = folder;
    rig_open(&rig, "io_uring", n_hot + 8); /* room for them and for what a request has in transit */
    use_hot_experts();
    rig_close(&rig);
    for (int r = 0; r < RIG_READERS; r++) {
        rig_open(&rig, rig_readers[r], n_hot + 8);
        wait_for_reads((uint64_t)n_hot);
        assert_int_equal(rig_stats(&rig).requests, 0);
        use_hot_experts();
        struct expert_stats stats = rig_stats(&rig);
        assert_int_equal(stats.misses, 0);
        assert_int_equal(stats.hits, (uint64_t)(50 * n_hot));
        rig_close(&rig);
    }
    rig.options.use_counts = "none";
    temporary_remove(&folder);
}

/* A read that hung while nobody needed it, was then asked for, and came home late: warming goes on where it stopped. */
static void warming_goes_on_after_a_drive_that_did_not_answer(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    struct error err = {0};
    rig.options.use_counts = folder;
    rig_open(&rig, "pread", 64);
    use_hot_experts();
    rig_close(&rig);
    rig.timeout_ns = 200 * RIG_MS;
    rig.starts_held = 1;
    rig_open(&rig, "pread", 64);
    rig.starts_held = 0;
    rig_sleep_ms(500);
    assert_int_equal(rig_take(&rig, rig.layer_begin, (int[]){3, 7, 11, 30}, 4, 1, &err), STATUS_TIMEOUT);
    rig_gate_hold(rig.gate, 0);
    wait_for_reads(20);
    rig_close(&rig);
    rig.timeout_ns = 0;
    rig.options.use_counts = "none";
    temporary_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_slots_serve_a_request_of_all_experts),
        cmocka_unit_test(with_room_for_all_nothing_is_read_twice),
        cmocka_unit_test(random_sequences_give_the_right_bytes_with_any_number_of_slots),
        cmocka_unit_test(random_sequences_give_the_right_bytes_from_a_slow_drive),
        cmocka_unit_test(random_sequences_give_the_right_bytes_in_several_pieces),
        cmocka_unit_test(rests_of_requests_are_no_passes),
        cmocka_unit_test(files_may_be_split_or_doubled_over_folders),
        cmocka_unit_test(a_record_that_one_drive_fails_comes_from_another_that_has_it),
        cmocka_unit_test(a_file_of_another_size_or_header_is_refused),
        cmocka_unit_test(experts_of_a_vendor_folder_do_not_stream),
        cmocka_unit_test(what_earlier_runs_used_most_is_read_in_the_background),
        cmocka_unit_test(warming_goes_on_after_a_drive_that_did_not_answer),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
