/* Goal: whatever a drive does, an expert that is handed out has the file's bytes, or the request fails with a sentence that names file and
 * record and the store goes on with the others. Method: a store over a real pack, whose reader is made to fail, lie, hang or answer late;
 * every byte behind every view is compared with the file's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <fcntl.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/node/expert_rig.h"

static struct rig small, large; /* records of one piece, and of several */

static int set_up(void **state)
{
    (void)state;
    char path[512];
    rig_init(&small, make_pack(checkpoint_path(path, "tiny-groups"), PRECISION_INT4, NULL));
    rig_init(&large, rig_large_pack());
    assert_true(large.layouts[large.layer_begin].record_bytes > 2 * EXPERT_PIECE_BYTES);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rig_release(&small);
    rig_release(&large);
    return 0;
}

/* A pack of the test's own, to be damaged. */
static void copy_rig(struct rig *rig)
{
    rig_init(rig, temporary_copy(small.pack));
}

static void write_at(const char *path, uint64_t offset, const void *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0 && pwrite(fd, bytes, n, (off_t)offset) == (ssize_t)n && !fsync(fd));
    close(fd);
}

static const struct {
    enum fault_kind kind;
    enum status status;
    const char *words;
} failures[] = {
    {FAULT_EIO, STATUS_IO, "Input/output error"}, {FAULT_SHORT, STATUS_IO, "shorter"}, {FAULT_FLIP, STATUS_CORRUPT, "checksum"}};
enum { FAILURES = sizeof failures / sizeof *failures };

static void a_read_that_fails_once_gives_the_right_bytes(void **state)
{
    (void)state;
    for (int r = 0; r < RIG_READERS; r++)
        for (int k = 0; k < FAILURES; k++) {
            rig_open(&small, rig_readers[r], 4);
            int fault = rig_fault(&small, failures[k].kind, small.layer_begin, 5, 1);
            rig_want_one(&small, small.layer_begin, 5);
            struct expert_stats stats = rig_stats(&small);
            assert_int_equal(fault_reader_count(small.faults, fault), 1);
            assert_int_equal(stats.retries, 1);
            assert_int_equal(stats.reads, 1);
            assert_int_equal(stats.read_errors, failures[k].kind != FAULT_FLIP);
            assert_int_equal(stats.checksum_errors, failures[k].kind == FAULT_FLIP);
            rig_close(&small);
        }
}

/* Times 2: both tries of the first request fail, then the drive is well again. */
static void a_read_that_fails_twice_is_an_error_that_names_it_and_spares_the_others(void **state)
{
    (void)state;
    for (int r = 0; r < RIG_READERS; r++)
        for (int k = 0; k < FAILURES; k++) {
            static const int experts[] = {3, 5, 9};
            struct error err = {0};
            rig_open(&small, rig_readers[r], 4);
            int fault = rig_fault(&small, failures[k].kind, small.layer_begin, 5, 2);
            assert_int_equal(rig_take(&small, small.layer_begin, experts, 3, 1, &err), failures[k].status);
            rig_assert_names(&err, small.layer_begin, 5);
            assert_non_null(strstr(err.text, failures[k].words));
            assert_int_equal(fault_reader_count(small.faults, fault), 2);
            rig_want_one(&small, small.layer_begin, 3);
            rig_want_one(&small, small.layer_begin + 1, 5);
            rig_want_one(&small, small.layer_begin, 5);
            rig_close(&small);
        }
}

/* Nothing of the bad record is ever shown: rig_take compares the bytes of every view. */
static void a_read_that_always_fails_never_gives_a_view(void **state)
{
    (void)state;
    for (int r = 0; r < RIG_READERS; r++)
        for (int k = 0; k < FAILURES; k++) {
            rig_open(&small, rig_readers[r], 2);
            rig_fault(&small, failures[k].kind, small.layer_begin, 5, FAULT_ALWAYS);
            for (int i = 0; i < 20; i++) {
                struct error err = {0};
                small.experts->expect(small.experts, small.layer_begin, (int[]){5}, 1);
                assert_int_equal(rig_take_one(&small, small.layer_begin, 5, &err), failures[k].status);
                rig_assert_names(&err, small.layer_begin, 5);
                rig_want_one(&small, small.layer_begin, i % 5);
            }
            assert_true(rig_stats(&small).slots_used <= 2);
            rig_close(&small);
        }
}

static void any_piece_of_a_record_may_fail_once(void **state)
{
    (void)state;
    const struct part_layout *layout = &large.layouts[large.layer_begin];
    int n_pieces = (int)((layout->record_bytes + EXPERT_PIECE_BYTES - 1) / EXPERT_PIECE_BYTES);
    for (int r = 0; r < RIG_READERS; r++)
        for (int piece = 0; piece < n_pieces; piece++) {
            rig_open(&large, rig_readers[r], 3);
            for (int k = 0; k < FAILURES; k++) {
                struct fault fault = {.kind = failures[k].kind, .path = rig_path(&large, large.layer_begin), .bytes = 1, .times = 1};
                fault.offset = PACK_HEADER_BYTES + (uint64_t)k * layout->record_bytes + (uint64_t)piece * EXPERT_PIECE_BYTES + 77;
                fault_reader_add(large.faults, &fault);
                rig_want_one(&large, large.layer_begin, k);
            }
            assert_int_equal(rig_stats(&large).retries, FAILURES);
            rig_close(&large);
        }
}

/* Two faults in one record: the first try ends at its last piece, the second reads all pieces anew and fails with the error of its own, in
 * a piece that was right before. Pieces are issued in ascending order (next_piece in node/record_reads.c): the first try has read that
 * piece when its last one fails. */
static void each_try_is_judged_by_itself(void **state)
{
    (void)state;
    uint64_t bytes = large.layouts[large.layer_begin].record_bytes, at = PACK_HEADER_BYTES + 2 * bytes;
    for (int r = 0; r < RIG_READERS; r++) {
        struct error err = {0};
        rig_open(&large, rig_readers[r], 3);
        const char *path = rig_path(&large, large.layer_begin);
        struct fault flip = {.kind = FAULT_FLIP, .path = path, .offset = at, .bytes = 1, .skip = 1, .times = 1};
        struct fault eio = {.kind = FAULT_EIO, .path = path, .offset = at + bytes - 1, .bytes = 1, .times = 1};
        fault_reader_add(large.faults, &flip);
        fault_reader_add(large.faults, &eio);
        assert_int_equal(rig_take_one(&large, large.layer_begin, 2, &err), STATUS_CORRUPT);
        rig_assert_names(&err, large.layer_begin, 2);
        assert_non_null(strstr(err.text, "checksum"));
        struct expert_stats stats = rig_stats(&large);
        assert_int_equal(stats.retries, 1);
        assert_int_equal(stats.read_errors, 1);
        assert_int_equal(stats.checksum_errors, 1);
        rig_want_one(&large, large.layer_begin, 3);
        rig_want_one(&large, large.layer_begin, 2);
        rig_close(&large);
    }
}

/* Wherever and however reads go wrong, what comes is right. */
static void a_drive_that_fails_at_random_gives_right_bytes_or_an_error(void **state)
{
    (void)state;
    uint64_t seed = 20240611;
    int n_right = 0, n_errors = 0;
    printf("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 16; round++) {
        struct rig *rig = round % 2 ? &large : &small;
        int layers = rig->layer_end - rig->layer_begin;
        rig->options.emulate_disk = round & 4 ? "1,100,300" : NULL; /* guesses are still on their way when they are called back */
        rig_open(rig, rig_readers[round / 2 % 2], 2 + round % 4);
        for (int i = 0; i < FAULTS_MAX; i++)
            fault_reader_add(rig->faults, &(struct fault){.kind = failures[noise(&seed) % FAILURES].kind,
                                                          .skip = (int)(noise(&seed) % 20),
                                                          .times = 1 + (int)(noise(&seed) % 3)});
        for (int step = 0; step < 60; step++) {
            int experts[4], n = 0, layer = rig->layer_begin + (int)(noise(&seed) % (uint64_t)layers), hint = (int)(noise(&seed) % 8);
            for (int e = 0; e < 8 && n < 4; e++)
                if (noise(&seed) % 3 == 0)
                    experts[n++] = e;
            struct error err = {0};
            rig->experts->expect(rig->experts, layer, &hint, 1);
            if (noise(&seed) % 4 == 0)
                expert_store_withdraw(rig->store);
            if (n && rig_take(rig, layer, experts, n, 1, &err))
                n_errors++;
            else
                n_right++;
        }
        rig_close(rig);
        rig->options.emulate_disk = NULL;
    }
    assert_true(n_right > 100 && n_errors > 0);
}

static void a_file_cut_short_under_us_fails_where_it_is_short(void **state)
{
    (void)state;
    for (int r = 0; r < RIG_READERS; r++) {
        struct rig rig;
        struct error err = {0};
        copy_rig(&rig);
        rig_open(&rig, rig_readers[r], 4);
        assert_int_equal(
            truncate(rig_path(&rig, rig.layer_begin), PACK_HEADER_BYTES + (off_t)rig.layouts[rig.layer_begin].record_bytes * 5 + 100), 0);
        rig_want_one(&rig, rig.layer_begin, 4);
        for (int expert = 5; expert < 7; expert++) { /* partly there, and not at all */
            assert_int_equal(rig_take_one(&rig, rig.layer_begin, expert, &err), STATUS_IO);
            rig_assert_names(&err, rig.layer_begin, expert);
            assert_non_null(strstr(err.text, "shorter"));
        }
        rig_want_one(&rig, rig.layer_begin + 1, 6);
        rig_close(&rig);
        rig_release(&rig);
    }
}

static void a_record_damaged_on_disk_is_never_used(void **state)
{
    (void)state;
    for (int r = 0; r < RIG_READERS; r++) {
        struct rig rig;
        struct error err = {0};
        copy_rig(&rig);
        uint64_t bytes = rig.layouts[rig.layer_begin].record_bytes, at[] = {0, bytes / 2, bytes - 1};
        rig_open(&rig, rig_readers[r], 4);
        for (int i = 0; i < 3; i++) { /* the first byte, the middle, the padding at the end */
            uint64_t offset = PACK_HEADER_BYTES + (uint64_t)(5 + i) * bytes + at[i];
            uint8_t other = rig.files[rig.layer_begin][offset] ^ 1;
            write_at(rig_path(&rig, rig.layer_begin), offset, &other, 1);
            assert_int_equal(rig_take_one(&rig, rig.layer_begin, 5 + i, &err), STATUS_CORRUPT);
            rig_assert_names(&err, rig.layer_begin, 5 + i);
        }
        rig_want_one(&rig, rig.layer_begin, 4);
        rig_close(&rig);
        rig_release(&rig);
    }
}

static void a_file_removed_or_replaced_while_open_still_gives_its_bytes(void **state)
{
    (void)state;
    for (int r = 0; r < RIG_READERS; r++) {
        struct rig rig;
        copy_rig(&rig);
        rig_open(&rig, rig_readers[r], 2);
        char *other = xasprintf("%s/other", rig.pack);
        write_file(rig.pack, "other", "rubbish", 7);
        assert_int_equal(unlink(rig_path(&rig, rig.layer_begin)), 0);
        assert_int_equal(rename(other, rig_path(&rig, rig.layer_begin + 1)), 0);
        for (int expert = 0; expert < rig.model->n_experts; expert++) {
            rig_want_one(&rig, rig.layer_begin, expert);
            rig_want_one(&rig, rig.layer_begin + 1, expert);
        }
        free(other);
        rig_close(&rig);
        rig_release(&rig);
    }
}

/* ---- drives that do not answer ---- */

static void a_read_that_hangs_is_a_timeout_and_the_others_go_on(void **state)
{
    (void)state;
    for (int r = 0; r < RIG_READERS; r++) {
        static const int experts[] = {4, 5, 6};
        struct error err = {0};
        uint64_t start = clock_now_ns(clock_monotonic());
        small.timeout_ns = 1000 * RIG_MS; /* five times as often as deadlines are looked at */
        rig_open(&small, rig_readers[r], 4);
        rig_fault(&small, FAULT_HANG, small.layer_begin, 5, 1);
        for (int i = 0; i < 3; i++) { /* what is lost stays lost, and says so at once */
            assert_int_equal(rig_take(&small, small.layer_begin, experts, 3, 1, &err), STATUS_TIMEOUT);
            rig_assert_names(&err, small.layer_begin, 5);
        }
        assert_non_null(strstr(err.text, "within 1 s"));
        for (int expert = 6; expert < 16; expert++)
            rig_want_one(&small, small.layer_begin, expert);
        rig_want_one(&small, small.layer_begin + 1, 5);
        rig_close(&small); /* gives up on the drive and keeps the memory */
        assert_false(rig_is_late(start));
        small.timeout_ns = 0;
    }
}

/* Every slot is lost: nothing can be read any more, and still every request ends. */
static void a_drive_that_hangs_for_good_bounds_every_request(void **state)
{
    (void)state;
    struct error err = {0};
    uint64_t start = clock_now_ns(clock_monotonic());
    small.timeout_ns = 200 * RIG_MS;
    rig_open(&small, "pread", 2);
    rig_fault(&small, FAULT_HANG, small.layer_begin, -1, FAULT_ALWAYS);
    for (int expert = 0; expert < 5; expert++) {
        assert_int_equal(rig_take_one(&small, small.layer_begin, expert, &err), STATUS_TIMEOUT);
        assert_non_null(strstr(err.text, "experts-"));
    }
    rig_close(&small);
    assert_false(rig_is_late(start));
    small.timeout_ns = 0;
}

/* The drive answers after the deadline: the memory is good again, both slots of it, and so are the experts. */
static void an_answer_that_comes_late_gives_the_slot_back(void **state)
{
    (void)state;
    for (int r = 0; r < RIG_READERS; r++) {
        static const int experts[] = {1, 2};
        struct error err = {0};
        small.timeout_ns = 300 * RIG_MS;
        rig_open(&small, rig_readers[r], 2);
        rig_gate_hold(small.gate, 1);
        assert_int_equal(rig_take(&small, small.layer_begin, experts, 2, 1, &err), STATUS_TIMEOUT);
        assert_int_equal(rig_take_one(&small, small.layer_begin, 2, &err), STATUS_TIMEOUT);
        rig_gate_hold(small.gate, 0);
        uint64_t start = clock_now_ns(clock_monotonic());
        while (rig_take(&small, small.layer_begin, experts, 2, 1, &err) && !rig_is_late(start))
            rig_sleep_ms(1);
        uint64_t hits = rig_stats(&small).hits;
        assert_int_equal(rig_take(&small, small.layer_begin, experts, 2, 1, &err), STATUS_OK);
        assert_int_equal(rig_stats(&small).hits, hits + 2);
        for (int expert = 0; expert < 16; expert++)
            rig_want_one(&small, small.layer_begin, expert);
        rig_close(&small);
        small.timeout_ns = 0;
    }
}

/* Parts of a second count. */
static void a_request_waits_as_long_as_its_reads_may_take(void **state)
{
    (void)state;
    struct error err = {0};
    small.timeout_ns = 400 * RIG_MS;
    rig_open(&small, "pread", 2);
    rig_gate_hold(small.gate, 1);
    uint64_t start = clock_now_ns(clock_monotonic());
    assert_int_equal(rig_take_one(&small, small.layer_begin, 1, &err), STATUS_TIMEOUT);
    assert_true(strstr(err.text, "within 0.4 s") || strstr(err.text, "within 0.8 s")); /* the read's deadline, or the request's */
    assert_true(clock_now_ns(clock_monotonic()) - start >= small.timeout_ns);
    rig_gate_hold(small.gate, 0);
    rig_close(&small);
    small.timeout_ns = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_read_that_fails_once_gives_the_right_bytes),
        cmocka_unit_test(a_read_that_fails_twice_is_an_error_that_names_it_and_spares_the_others),
        cmocka_unit_test(a_read_that_always_fails_never_gives_a_view),
        cmocka_unit_test(any_piece_of_a_record_may_fail_once),
        cmocka_unit_test(each_try_is_judged_by_itself),
        cmocka_unit_test(a_drive_that_fails_at_random_gives_right_bytes_or_an_error),
        cmocka_unit_test(a_file_cut_short_under_us_fails_where_it_is_short),
        cmocka_unit_test(a_record_damaged_on_disk_is_never_used),
        cmocka_unit_test(a_file_removed_or_replaced_while_open_still_gives_its_bytes),
        cmocka_unit_test(a_read_that_hangs_is_a_timeout_and_the_others_go_on),
        cmocka_unit_test(a_drive_that_hangs_for_good_bounds_every_request),
        cmocka_unit_test(an_answer_that_comes_late_gives_the_slot_back),
        cmocka_unit_test(a_request_waits_as_long_as_its_reads_may_take),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
