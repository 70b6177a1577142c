/* Goal: the faults that tests put in happen to the reads they were meant for, as often as was said, and to no other. Method: reads of one
 * file through a fault reader above a drive with so much jitter that reads end in any order; every read's bytes are compared with the file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "tests/lib/fault_reader.h"

enum { N = 16, PIECE = 4 * BLOCK_ALIGN_BYTES };
static const uint64_t LONG_NS = 30000000000;

static char path[] = "fault_reader_XXXXXX";
static uint8_t content[N * PIECE];
static int fd, other_fd;

static int make_file(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof content; i++)
        content[i] = (uint8_t)(i * 2654435761u >> 13);
    fd = mkstemp(path);
    other_fd = open("/dev/zero", O_RDONLY);
    return fd >= 0 && other_fd >= 0 && write(fd, content, sizeof content) == (ssize_t)sizeof content ? 0 : -1;
}

static int remove_file(void **state)
{
    (void)state;
    close(fd);
    close(other_fd);
    return unlink(path);
}

static struct block_reader *open_reader(void)
{
    struct block_reader *reader;
    struct error err;
    assert_int_equal(block_reader_open(&reader, "auto", N, &err), STATUS_OK);
    reader = emulated_reader_new(&reader, &(struct emulated_drive){10e9, 1000, 2000000}, 7);
    return fault_reader_new(&reader);
}

/* Reads every piece of the file once, all in flight together. Returns how many ended. */
struct pass {
    struct block_read reads[N];
    uint8_t *memory;
    int order_differs;
};

static int read_all(struct block_reader *reader, struct pass *pass, uint64_t timeout_ns)
{
    struct block_read *done[N];
    void *memory = NULL;
    int n = 0, got;
    assert_int_equal(posix_memalign(&memory, BLOCK_ALIGN_BYTES, sizeof content), 0);
    pass->memory = memory;
    for (int i = 0; i < N; i++) {
        pass->reads[i] = (struct block_read){.fd = fd, .offset = (uint64_t)i * PIECE, .bytes = PIECE, .into = pass->memory + i * PIECE};
        pass->reads[i].result = -1000;
        assert_int_equal(reader->submit(reader, &pass->reads[i]), 0);
    }
    while (n < N && (got = reader->reap(reader, done + n, 3, timeout_ns)))
        n += got;
    pass->order_differs = 0;
    for (int i = 1; i < n; i++)
        pass->order_differs |= done[i] < done[i - 1];
    return n;
}

static int wrong_bits(const struct pass *pass, int piece)
{
    int n = 0;
    for (int i = piece * PIECE; i < (piece + 1) * PIECE; i++)
        n += __builtin_popcount(pass->memory[i] ^ content[i]);
    return n;
}

/* All pieces but one are whole and right. */
static void assert_others_right(const struct pass *pass, int but)
{
    for (int i = 0; i < N; i++)
        if (i != but) {
            assert_int_equal(pass->reads[i].result, PIECE);
            assert_int_equal(wrong_bits(pass, i), 0);
        }
}

static void assert_all_well(struct block_reader *reader)
{
    struct pass pass;
    assert_int_equal(read_all(reader, &pass, LONG_NS), N);
    assert_others_right(&pass, -1);
    free(pass.memory);
}

static void without_faults_all_is_well_in_any_order(void **state)
{
    (void)state;
    struct block_reader *reader = open_reader();
    struct pass pass;
    int n = 0, order_differs = 0;
    for (; !order_differs && n < 20; n++) {
        assert_int_equal(read_all(reader, &pass, LONG_NS), N);
        assert_others_right(&pass, -1);
        order_differs = pass.order_differs;
        free(pass.memory);
    }
    assert_true(order_differs);
    assert_int_equal(fault_reader_reads(reader), n * N);
    assert_int_equal(reader->close(reader, LONG_NS), 1);
}

static void assert_eio(const struct pass *pass, int piece)
{
    assert_int_equal(pass->reads[piece].result, -EIO);
    assert_true(wrong_bits(pass, piece) > 1000); /* whoever uses the memory all the same is found out */
}

static void assert_short(const struct pass *pass, int piece)
{
    assert_int_equal(pass->reads[piece].result, PIECE / 2);
    assert_true(wrong_bits(pass, piece) > 1000);
}

static void assert_flip(const struct pass *pass, int piece)
{
    assert_int_equal(pass->reads[piece].result, PIECE);
    assert_int_equal(wrong_bits(pass, piece), 1);
}

/* Once after one read that passes; and always. */
static void check_fault(enum fault_kind kind, void (*assert_fault)(const struct pass *pass, int piece))
{
    struct block_reader *reader = open_reader();
    struct pass pass;
    int once =
        fault_reader_add(reader, &(struct fault){.kind = kind, .fd = fd, .offset = 5 * PIECE + 100, .bytes = 1, .skip = 1, .times = 1});
    assert_all_well(reader);
    assert_int_equal(read_all(reader, &pass, LONG_NS), N);
    assert_fault(&pass, 5);
    assert_others_right(&pass, 5);
    free(pass.memory);
    assert_all_well(reader);
    assert_int_equal(fault_reader_count(reader, once), 1);
    int always = fault_reader_add(reader, &(struct fault){.kind = kind, .path = path, .offset = 15 * PIECE, .times = FAULT_ALWAYS});
    for (int i = 0; i < 5; i++) {
        assert_int_equal(read_all(reader, &pass, LONG_NS), N);
        assert_fault(&pass, 15);
        assert_others_right(&pass, 15);
        free(pass.memory);
    }
    assert_int_equal(fault_reader_count(reader, always), 5);
    assert_int_equal(reader->close(reader, LONG_NS), 1);
}

static void an_error_happens_once_or_always(void **state)
{
    (void)state;
    check_fault(FAULT_EIO, assert_eio);
}

static void a_short_read_happens_once_or_always(void **state)
{
    (void)state;
    check_fault(FAULT_SHORT, assert_short);
}

static void one_bit_flips_once_or_always(void **state)
{
    (void)state;
    check_fault(FAULT_FLIP, assert_flip);
}

static void another_file_has_no_part_in_it(void **state)
{
    (void)state;
    struct block_reader *reader = open_reader();
    int by_fd = fault_reader_add(reader, &(struct fault){.kind = FAULT_EIO, .fd = other_fd, .times = FAULT_ALWAYS});
    int by_path = fault_reader_add(reader, &(struct fault){.kind = FAULT_EIO, .path = "/dev/zero", .times = FAULT_ALWAYS});
    int never = fault_reader_add(reader, &(struct fault){.kind = FAULT_EIO, .fd = fd, .times = 0});
    assert_all_well(reader);
    assert_int_equal(fault_reader_count(reader, by_fd) + fault_reader_count(reader, by_path) + fault_reader_count(reader, never), 0);
    assert_int_equal(reader->close(reader, LONG_NS), 1);
}

static struct pass hanging; /* must stay, as the contract says */

static void a_hanging_read_never_ends_and_close_says_so(void **state)
{
    (void)state;
    struct block_reader *reader = open_reader();
    int fault = fault_reader_add(reader, &(struct fault){.kind = FAULT_HANG, .offset = 3 * PIECE, .bytes = PIECE, .times = 1});
    assert_int_equal(read_all(reader, &hanging, 50000000), N - 1);
    assert_others_right(&hanging, 3);
    assert_int_equal(hanging.reads[3].result, -1000);
    assert_int_equal(fault_reader_count(reader, fault), 1);
    assert_all_well(reader);
    assert_int_equal(reader->close(reader, 10000000), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_faults_all_is_well_in_any_order), cmocka_unit_test(an_error_happens_once_or_always),
        cmocka_unit_test(a_short_read_happens_once_or_always),     cmocka_unit_test(one_bit_flips_once_or_always),
        cmocka_unit_test(another_file_has_no_part_in_it),          cmocka_unit_test(a_hanging_read_never_ends_and_close_says_so),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
