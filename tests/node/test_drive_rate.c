/* Goal: a measurement reads whole extents in pieces, never more in flight than asked, and ends with an error that names the file when a
 * drive fails. Method: a made-up reader that ends reads in a shuffled order and fails where the test says. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/clock.h"
#include "common/memory.h"
#include "node/drive_rate.h"

struct fake_reader {
    struct block_reader reader;
    struct block_read *flying[BLOCK_READS_MAX];
    int n_flying, n_flying_max, n_submits, n_of_store_max;
    int fails_at;         /* which submit; 0: none */
    int refuses_at;       /* the same, in submit itself */
    int32_t result;       /* of the one that fails; >= 0: short */
    int is_blocks;        /* one block here and there, not whole extents */
    uint64_t n_whole;     /* reads of each extent that began at its offset */
    uint64_t last_end[2]; /* of each store: pieces come in order */
};

static int submit(struct block_reader *reader, struct block_read *read)
{
    struct fake_reader *f = (struct fake_reader *)reader;
    assert_true(f->n_flying < reader->depth);
    assert_true(read->bytes && read->bytes % BLOCK_ALIGN_BYTES == 0 && read->offset % BLOCK_ALIGN_BYTES == 0);
    assert_int_equal((uintptr_t)read->into % BLOCK_ALIGN_BYTES, 0);
    for (int i = 0; i < f->n_flying; i++)
        assert_ptr_not_equal(f->flying[i]->into, read->into);
    f->n_submits++;
    if (f->n_submits == f->refuses_at)
        return -EBADF;
    memset(read->into, 1, read->bytes);
    read->submitted_ns = clock_now_ns(clock_monotonic());
    read->result = f->n_submits == f->fails_at ? f->result : (int32_t)read->bytes;
    f->flying[f->n_flying++] = read;
    f->n_flying_max = f->n_flying > f->n_flying_max ? f->n_flying : f->n_flying_max;
    int n_of_store = 0;
    for (int i = 0; i < f->n_flying; i++)
        n_of_store += f->flying[i]->store == read->store;
    f->n_of_store_max = n_of_store > f->n_of_store_max ? n_of_store : f->n_of_store_max;
    /* an extent of 40 KiB at 0 or 1 MiB: a piece begins one, or follows the piece before */
    int begins = read->offset % (1 << 20) == 0;
    assert_true(f->is_blocks ? read->bytes == BLOCK_ALIGN_BYTES && read->offset % (1 << 20) < 40960
                             : begins || read->offset == f->last_end[read->store]);
    f->n_whole += (uint64_t)begins;
    f->last_end[read->store] = read->offset + read->bytes;
    return 0;
}

static int reap(struct block_reader *reader, struct block_read **done, int max, uint64_t timeout_ns)
{
    (void)timeout_ns;
    struct fake_reader *f = (struct fake_reader *)reader;
    int n = f->n_flying > 1 ? f->n_flying / 2 : f->n_flying; /* from the middle: in no order */
    n = n > max ? max : n;
    for (int i = 0; i < n; i++) {
        int at = f->n_flying / 2;
        done[i] = f->flying[at];
        done[i]->done_ns = clock_now_ns(clock_monotonic());
        f->flying[at] = f->flying[--f->n_flying];
    }
    return n;
}

static const struct drive_extent extents[] = {
    {3, 0, 0, 40960, "a"}, {3, 0, 1 << 20, 40960, "a"}, {4, 1, 0, 40960, "b"}, {4, 1, 1 << 20, 40960, "b"}};

static struct fake_reader fake(int depth)
{
    return (struct fake_reader){.reader = {.name = "fake", .depth = depth, .submit = submit, .reap = reap}};
}

static void extents_are_read_whole_at_the_depth(void **state)
{
    (void)state;
    for (int depth = 1; depth <= 8; depth *= 2) {
        struct fake_reader f = fake(2 * depth);
        struct drive_load load = {extents, 4, 16384, depth, 3000000, 7, 0};
        struct drive_rate rate;
        struct error err;
        assert_int_equal(drive_rate_measure(&rate, &f.reader, &load, &err), STATUS_OK);
        assert_int_equal(f.n_flying, 0);
        assert_int_equal(f.n_flying_max, 2 * depth);
        assert_int_equal(f.n_of_store_max, depth);
        assert_int_equal(rate.n_reads, f.n_submits);
        assert_true(f.n_whole >= 2 && rate.bytes > 0 && rate.bytes_per_second > 0 && rate.p50_ns <= rate.p99_ns);
        /* 40960 bytes in pieces of 16384: 16384, 16384, 8192; the last extent of each store may be cut by the end of the time */
        assert_true(rate.bytes >= (f.n_whole - 2) * 40960 && rate.bytes <= f.n_whole * 40960);
    }
}

static void a_time_of_nothing_still_reads_once(void **state)
{
    (void)state;
    struct fake_reader f = fake(2);
    struct drive_load load = {extents, 4, 65536, 1, 0, 0, 0};
    struct drive_rate rate;
    struct error err;
    assert_int_equal(drive_rate_measure(&rate, &f.reader, &load, &err), STATUS_OK);
    assert_int_equal(rate.n_reads, 2);
    assert_int_equal(rate.bytes, 2 * 40960);
}

static void latency_is_of_single_blocks_one_at_a_time_anywhere_in_the_extents(void **state)
{
    (void)state;
    struct fake_reader f = fake(2);
    uint64_t p50_ns = 0;
    struct error err;
    f.is_blocks = 1;
    assert_int_equal(drive_latency_measure(&p50_ns, &f.reader, extents, 4, 3000000, &err), STATUS_OK);
    assert_true(p50_ns > 0 && f.n_submits > 20 && f.n_whole < (uint64_t)f.n_submits / 2);
    assert_int_equal(f.n_of_store_max, 1);
    f.fails_at = f.n_submits + 5;
    f.result = -EIO;
    assert_int_equal(drive_latency_measure(&p50_ns, &f.reader, extents, 4, 3000000, &err), STATUS_IO);
}

static void failures_name_the_file_and_leave_nothing_in_flight(void **state)
{
    (void)state;
    static const struct {
        int fails_at, refuses_at;
        int32_t result;
        enum status status;
        const char *word;
    } cases[] = {{5, 0, -EIO, STATUS_IO, "Input/output error"},
                 {1, 0, -EIO, STATUS_IO, "Input/output error"},
                 {9, 0, 4096, STATUS_CORRUPT, "ends at byte"},
                 {9, 0, 0, STATUS_CORRUPT, "ends at byte"},
                 {0, 1, 0, STATUS_IO, "Bad file"},
                 {0, 6, 0, STATUS_IO, "Bad file"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fake_reader f = fake(8);
        f.fails_at = cases[i].fails_at;
        f.refuses_at = cases[i].refuses_at;
        f.result = cases[i].result;
        struct drive_load load = {extents, 4, 16384, 4, 5000000000, 7, 0};
        struct drive_rate rate;
        struct error err;
        assert_int_equal(drive_rate_measure(&rate, &f.reader, &load, &err), cases[i].status);
        assert_non_null(strstr(err.text, cases[i].word));
        assert_true(!strncmp(err.text, "a:", 2) || !strncmp(err.text, "b:", 2));
        assert_int_equal(f.n_flying, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(extents_are_read_whole_at_the_depth),
        cmocka_unit_test(a_time_of_nothing_still_reads_once),
        cmocka_unit_test(latency_is_of_single_blocks_one_at_a_time_anywhere_in_the_extents),
        cmocka_unit_test(failures_name_the_file_and_leave_nothing_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
