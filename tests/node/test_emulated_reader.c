/* Goal: an emulated drive is never faster than it says, and a drive's text is read as meant or refused. Method: many reads at once of a
 * file that lies in the page cache, their ends compared with the drive's clock; lower bounds only, and the best of several tries where two
 * times are compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <time.h>

#include "tests/node/known_file.h"

enum { PIECE = 64 << 10 };
static const struct emulated_drive slow = {100e6, 2000000, 0}, jittery = {100e6, 2000000, 4000000};

/* n reads of PIECE at once, over n_stores in turn; each must end no earlier than its store's clock allows. Returns the time of all,
 * *late_ns: the most that one was later than the clock. */
static uint64_t read_pieces(struct block_reader *reader, const struct emulated_drive *drive, int n, int n_stores, uint64_t *late_ns)
{
    struct block_read reads[BLOCK_READS_MAX], *done[BLOCK_READS_MAX];
    uint8_t *memory = known_memory((size_t)n * PIECE);
    uint64_t last = 0;
    *late_ns = 0;
    for (int i = 0; i < n; i++) {
        reads[i] = (struct block_read){.fd = known_plain_fd, .store = i % n_stores, .bytes = PIECE, .into = memory + (size_t)i * PIECE};
        reads[i].offset = (uint64_t)i * PIECE;
        assert_int_equal(reader->submit(reader, &reads[i]), 0);
    }
    known_reap_all(reader, done, n, 3);
    for (int i = 0; i < n; i++) {
        assert_int_equal(reads[i].result, PIECE);
        known_assert_bytes(&reads[i], PIECE);
        uint64_t earliest = reads[i % n_stores].submitted_ns + drive->latency_ns;
        earliest += (uint64_t)((double)(i / n_stores + 1) * PIECE * 1e9 / drive->bytes_per_second) - (uint64_t)n; /* rounding */
        assert_true(reads[i].done_ns >= earliest);
        *late_ns = reads[i].done_ns - earliest > *late_ns ? reads[i].done_ns - earliest : *late_ns;
        last = reads[i].done_ns > last ? reads[i].done_ns : last;
    }
    free(memory);
    return last - reads[0].submitted_ns;
}

static struct block_reader *open_drive(const char *kind, const struct emulated_drive *drive)
{
    struct block_reader *reader;
    struct error err;
    if (block_reader_open(&reader, kind, 32, &err))
        fail_msg("%s", err.text);
    return emulated_reader_new(&reader, drive, KNOWN_SEED);
}

static void an_emulated_drive_is_never_faster_than_it_says(void **state)
{
    (void)state;
    uint64_t late;
    struct block_reader *reader = open_drive("auto", &slow);
    read_pieces(reader, &slow, 32, 1, &late);
    read_pieces(reader, &slow, 1, 1, &late);
    nanosleep(&(struct timespec){0, 40000000}, NULL);
    read_pieces(reader, &slow, 32, 1, &late); /* an idle drive has saved no credit */
    assert_int_equal(reader->close(reader, KNOWN_LONG_NS), 1);
}

static void jitter_delays_and_never_hastens(void **state)
{
    (void)state;
    uint64_t late;
    struct block_reader *reader = open_drive("pread", &jittery);
    read_pieces(reader, &jittery, 32, 1, &late);
    assert_true(late > jittery.jitter_ns / 2); /* of 32 equally likely delays */
    assert_int_equal(reader->close(reader, KNOWN_LONG_NS), 1);
}

static void two_stores_are_read_side_by_side(void **state)
{
    (void)state;
    uint64_t late, one = UINT64_MAX, two = UINT64_MAX;
    struct block_reader *reader = open_drive("auto", &slow);
    for (int i = 0; i < 3; i++) { /* the best of three: other programs only slow it down */
        uint64_t t = read_pieces(reader, &slow, 32, 1, &late);
        one = t < one ? t : one;
        t = read_pieces(reader, &slow, 32, 2, &late);
        two = t < two ? t : two;
    }
    assert_int_equal(reader->close(reader, KNOWN_LONG_NS), 1);
    assert_true((double)two < 0.85 * (double)one);
}

static void a_drive_is_read_from_its_text(void **state)
{
    (void)state;
    static const char *const wrong[] = {"3.5",   "fast",  "3.5,",    "3.5,80,", "3.5;80", "3.5,80,200,1", "0,80",
                                        "-1,80", "1,-80", "1,80,-2", "nan,80",  "1e9,1",  "1,80 us"};
    struct emulated_drive drive;
    struct error err;
    assert_int_equal(emulated_drive_parse("3.5,80", &drive, &err), STATUS_OK);
    assert_true(drive.bytes_per_second == 3.5e9 && drive.latency_ns == 80000 && drive.jitter_ns == 0);
    assert_int_equal(emulated_drive_parse("1,80.5,200", &drive, &err), STATUS_OK);
    assert_true(drive.bytes_per_second == 1e9 && drive.latency_ns == 80500 && drive.jitter_ns == 200000);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(emulated_drive_parse(wrong[i], &drive, &err), STATUS_INVALID);
        assert_non_null(strstr(err.text, wrong[i]));
        assert_true(drive.bytes_per_second == 0);
    }
    assert_int_equal(emulated_drive_parse(NULL, &drive, &err), STATUS_OK);
    assert_int_equal(emulated_drive_parse("", &drive, &err), STATUS_OK);
    struct block_reader *reader, *same;
    assert_int_equal(block_reader_open(&reader, "pread", 1, &err), STATUS_OK);
    same = reader;
    reader = emulated_reader_new(&reader, &drive, KNOWN_SEED);
    assert_ptr_equal(reader, same);
    assert_int_equal(reader->close(reader, KNOWN_LONG_NS), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_emulated_drive_is_never_faster_than_it_says),
        cmocka_unit_test(jitter_delays_and_never_hastens),
        cmocka_unit_test(two_stores_are_read_side_by_side),
        cmocka_unit_test(a_drive_is_read_from_its_text),
    };
    return cmocka_run_group_tests(tests, known_file_make, known_file_remove);
}
