/* Goal: every reader brings the bytes of the file, tells how a read failed, ends a wait when asked, and closes in time; an emulated drive
 * is never faster than it says; without io_uring there is still a reader. Method: real files whose content follows from the position, each
 * promise for io_uring, pread, and both behind an emulated drive and behind the fault reader without faults; times are compared with lower
 * bounds only. */
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
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/fault_reader.h"
#include "tests/node/known_file.h"

enum { BLOCKS_MAX = 64, READ_BYTES_MAX = BLOCKS_MAX * BLOCK_ALIGN_BYTES };

/* ---- readers ---- */

static const struct kind {
    const char *name, *inner;
    int is_emulated, has_faults;
} kinds[] = {{"io_uring", "io_uring", 0, 0},
             {"pread", "pread", 0, 0},
             {"emulated io_uring", "io_uring", 1, 0},
             {"emulated pread", "pread", 1, 0},
             {"faults, emulated io_uring", "io_uring", 1, 1}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* NULL: this machine forbids io_uring. */
static struct block_reader *open_reader(const struct kind *kind, int depth)
{
    struct block_reader *reader = NULL;
    struct error err;
    enum status status = block_reader_open(&reader, kind->inner, depth, &err);
    if (status == STATUS_UNSUPPORTED) {
        print_message("skipped %s: %s\n", kind->name, err.text);
        return NULL;
    }
    assert_int_equal(status, STATUS_OK);
    if (kind->is_emulated)
        reader = emulated_reader_new(&reader, &(struct emulated_drive){20e9, 30000, 50000}, KNOWN_SEED);
    if (kind->has_faults)
        reader = fault_reader_new(&reader);
    assert_int_equal(reader->depth, depth);
    return reader;
}

static void for_every_reader(int depth, void (*test)(struct block_reader *reader))
{
    for (int i = 0; i < N_KINDS; i++) {
        struct block_reader *reader = open_reader(&kinds[i], depth);
        if (!reader)
            continue;
        print_message("%s: %s\n", kinds[i].name, reader->name);
        test(reader);
        assert_int_equal(reader->close(reader, KNOWN_LONG_NS), 1);
    }
}

/* ---- reading ---- */

static uint64_t random_state = KNOWN_SEED;

static uint64_t random_below(uint64_t n)
{
    return splitmix64(&random_state) % n;
}

static void choose_read(struct block_read *read, int fd)
{
    read->fd = fd;
    read->bytes = (uint32_t)(1 + random_below(BLOCKS_MAX)) * BLOCK_ALIGN_BYTES;
    read->offset = random_below((KNOWN_BYTES - read->bytes) / BLOCK_ALIGN_BYTES + 1) * BLOCK_ALIGN_BYTES;
    read->store = (int)random_below(2);
    memset(read->into, 0xee, read->bytes);
}

static void read_randomly(struct block_reader *reader, int fd, int n)
{
    struct block_read reads[BLOCK_READS_MAX] = {0}, *done[BLOCK_READS_MAX];
    uint8_t *memory = known_memory((size_t)reader->depth * READ_BYTES_MAX);
    int started = 0, ended = 0;
    for (; started < reader->depth && started < n; started++) {
        reads[started].into = memory + (size_t)started * READ_BYTES_MAX;
        choose_read(&reads[started], fd);
        assert_int_equal(reader->submit(reader, &reads[started]), 0);
    }
    while (ended < n) {
        int got = reader->reap(reader, done, BLOCK_READS_MAX, KNOWN_LONG_NS);
        assert_true(got > 0);
        for (int i = 0; i < got; i++, ended++) {
            assert_int_equal(done[i]->result, done[i]->bytes);
            assert_true(done[i]->done_ns >= done[i]->submitted_ns);
            known_assert_bytes(done[i], done[i]->bytes);
            if (started == n)
                continue;
            started++;
            choose_read(done[i], fd);
            assert_int_equal(reader->submit(reader, done[i]), 0);
        }
    }
    assert_int_equal(reader->reap(reader, done, BLOCK_READS_MAX, 0), 0);
    free(memory);
}

static void check_random_reads(struct block_reader *reader)
{
    read_randomly(reader, known_direct_fd, 600);
    read_randomly(reader, known_plain_fd, 300);
}

static void random_reads_at_full_depth_bring_the_right_bytes(void **state)
{
    (void)state;
    static const int depths[] = {1, 7, BLOCK_READS_MAX};
    for (int i = 0; i < 3; i++)
        for_every_reader(depths[i], check_random_reads);
}

static void check_end_of_file(struct block_reader *reader)
{
    char name[] = "block_reader_XXXXXX";
    int fd = mkstemp(name), at_end = 3 * BLOCK_ALIGN_BYTES + 1000;
    uint8_t *memory = known_memory(2 * READ_BYTES_MAX);
    struct block_read *done[2];
    assert_int_equal(ftruncate(fd, at_end), 0);
    close(fd);
    fd = known_open_direct(name);
    struct block_read across = {.fd = fd, .offset = BLOCK_ALIGN_BYTES, .bytes = READ_BYTES_MAX, .into = memory};
    struct block_read beyond = {.fd = fd, .offset = 8 * BLOCK_ALIGN_BYTES, .bytes = READ_BYTES_MAX, .into = memory + READ_BYTES_MAX};
    assert_int_equal(reader->submit(reader, &across), 0);
    assert_int_equal(reader->submit(reader, &beyond), 0);
    known_reap_all(reader, done, 2, 2);
    assert_int_equal(across.result, at_end - BLOCK_ALIGN_BYTES);
    assert_int_equal(beyond.result, 0);
    close(fd);
    unlink(name);
    free(memory);
}

static void a_read_across_the_end_of_a_file_says_how_much_there_was(void **state)
{
    (void)state;
    for_every_reader(4, check_end_of_file);
}

/* Older kernels stop a batch at a bad descriptor: those behind it must come all the same. */
static void check_bad_fd(struct block_reader *reader)
{
    enum { N = 8 };
    struct block_read reads[N], *done[N];
    uint8_t *memory = known_memory(N * BLOCK_ALIGN_BYTES);
    for (int i = 0; i < N; i++) {
        uint8_t *into = memory + i * BLOCK_ALIGN_BYTES;
        reads[i] = (struct block_read){
            .fd = i % 3 ? known_direct_fd : 9999, .offset = (uint64_t)i << 16, .bytes = BLOCK_ALIGN_BYTES, .into = into};
        assert_int_equal(reader->submit(reader, &reads[i]), 0);
    }
    known_reap_all(reader, done, N, 1);
    for (int i = 0; i < N; i++) {
        assert_int_equal(reads[i].result, i % 3 ? BLOCK_ALIGN_BYTES : -EBADF);
        if (i % 3)
            known_assert_bytes(&reads[i], BLOCK_ALIGN_BYTES);
    }
    free(memory);
}

static void a_bad_descriptor_fails_its_own_read_only(void **state)
{
    (void)state;
    for_every_reader(8, check_bad_fd);
}

static void check_looking(struct block_reader *reader)
{
    struct block_read read = {.fd = known_direct_fd, .bytes = BLOCK_ALIGN_BYTES, .into = known_memory(BLOCK_ALIGN_BYTES)}, *done[1];
    uint64_t start = known_now_ns();
    assert_int_equal(reader->submit(reader, &read), 0);
    while (!reader->reap(reader, done, 1, 0))
        assert_true(known_now_ns() - start < KNOWN_LONG_NS);
    known_assert_bytes(&read, BLOCK_ALIGN_BYTES);
    free(read.into);
}

static void whoever_only_looks_gets_the_read_too(void **state)
{
    (void)state;
    for_every_reader(2, check_looking);
}

/* Older kernels stop a batch at a bad descriptor. That what stood behind it goes on shows by a pipe that is emptied. */
static void a_bad_descriptor_holds_up_no_read_until_the_next_reap(void **state)
{
    (void)state;
    struct block_reader *reader = open_reader(&kinds[0], 4);
    int fds[2], left = 1;
    if (!reader)
        skip();
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], "x", 1), 1);
    struct block_read bad = {.fd = 9999, .bytes = BLOCK_ALIGN_BYTES, .into = known_memory(BLOCK_ALIGN_BYTES)}, *done[2];
    struct block_read good = {.fd = fds[0], .bytes = BLOCK_ALIGN_BYTES, .into = known_memory(BLOCK_ALIGN_BYTES)};
    assert_int_equal(reader->submit(reader, &bad), 0);
    assert_int_equal(reader->submit(reader, &good), 0);
    int n = reader->reap(reader, done, 2, KNOWN_LONG_NS);
    uint64_t start = known_now_ns();
    for (; left && known_now_ns() - start < KNOWN_LONG_NS; sched_yield())
        assert_int_equal(ioctl(fds[0], FIONREAD, &left), 0);
    assert_int_equal(left, 0);
    known_reap_all(reader, done, 2 - n, 2);
    assert_int_equal(bad.result, -EBADF);
    assert_int_equal(good.result, 1);
    assert_int_equal(reader->close(reader, KNOWN_LONG_NS), 1);
    free(bad.into);
    free(good.into);
    close(fds[0]);
    close(fds[1]);
}

/* ---- waiting ---- */

struct waker {
    struct block_reader *reader;
    int n, pause_us;
};

static void *wake_again_and_again(void *argument)
{
    struct waker *w = argument;
    for (int i = 0; i < w->n; i++) {
        nanosleep(&(struct timespec){0, w->pause_us * 1000}, NULL);
        w->reader->wake(w->reader);
    }
    return NULL;
}

static uint64_t idle_reap_ns(struct block_reader *reader, uint64_t timeout_ns)
{
    struct block_read *done[4];
    uint64_t start = known_now_ns();
    assert_int_equal(reader->reap(reader, done, 4, timeout_ns), 0);
    return known_now_ns() - start;
}

static void check_wake(struct block_reader *reader)
{
    pthread_t thread;
    struct waker during = {reader, 1, 20000};
    assert_int_equal(pthread_create(&thread, NULL, wake_again_and_again, &during), 0);
    assert_true(idle_reap_ns(reader, KNOWN_LONG_NS) < KNOWN_LONG_NS / 2);
    pthread_join(thread, NULL);
    reader->wake(reader);
    assert_true(idle_reap_ns(reader, KNOWN_LONG_NS) < KNOWN_LONG_NS / 2); /* the next, when there is no present one */
    reader->wake(reader);
    reader->wake(reader);
    assert_true(idle_reap_ns(reader, KNOWN_LONG_NS) < KNOWN_LONG_NS / 2);
    while (idle_reap_ns(reader, 30 * KNOWN_MS) < 30 * KNOWN_MS) /* and no more after the wakes are used up */
        during.n++;
    assert_true(during.n < 4);
}

static void a_wake_ends_the_present_or_the_next_wait(void **state)
{
    (void)state;
    for_every_reader(4, check_wake);
}

static void check_wakes_among_reads(struct block_reader *reader)
{
    enum { N = 400 };
    struct block_read read = {.fd = known_direct_fd, .into = known_memory(READ_BYTES_MAX)}, *done[4];
    struct waker waker = {reader, 500, 20};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wake_again_and_again, &waker), 0);
    for (int i = 0; i < N; i++) {
        choose_read(&read, known_direct_fd);
        assert_int_equal(reader->submit(reader, &read), 0);
        known_reap_all(reader, done, 1, 4);
        assert_int_equal(read.result, read.bytes);
        known_assert_bytes(&read, read.bytes);
    }
    pthread_join(thread, NULL);
    free(read.into);
}

static void a_rain_of_wakes_loses_no_read(void **state)
{
    (void)state;
    for_every_reader(2, check_wakes_among_reads);
}

static void on_signal(int signal_number)
{
    (void)signal_number;
}

static void check_signals(struct block_reader *reader)
{
    struct itimerval often = {{0, 700}, {0, 700}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_signal}, NULL); /* no SA_RESTART */
    setitimer(ITIMER_REAL, &often, NULL);
    read_randomly(reader, known_direct_fd, 200);
    uint64_t waited = idle_reap_ns(reader, 40 * KNOWN_MS);
    setitimer(ITIMER_REAL, &never, NULL);
    assert_true(waited >= 40 * KNOWN_MS);
}

static void signals_neither_fail_a_read_nor_shorten_a_wait(void **state)
{
    (void)state;
    for_every_reader(4, check_signals);
}

/* ---- closing ---- */

static void close_waits_for_reads_in_flight(void **state)
{
    (void)state;
    for (int i = 0; i < N_KINDS; i++) {
        struct block_reader *reader = open_reader(&kinds[i], 16);
        if (!reader)
            continue;
        struct block_read reads[16] = {0};
        uint8_t *memory = known_memory(16 * READ_BYTES_MAX);
        for (int k = 0; k < 16; k++) {
            reads[k].into = memory + k * READ_BYTES_MAX;
            choose_read(&reads[k], known_direct_fd);
            assert_int_equal(reader->submit(reader, &reads[k]), 0);
        }
        assert_int_equal(reader->close(reader, KNOWN_LONG_NS), 1);
        free(memory); /* a read that went on would write here: the address sanitizer's and malloc's business */
    }
}

/* A pipe in which nothing comes is the one read that the kernel is sure to call off. */
static void close_calls_off_what_io_uring_can_call_off(void **state)
{
    (void)state;
    struct block_reader *reader = open_reader(&kinds[0], 4);
    int fds[2];
    if (!reader)
        skip();
    assert_int_equal(pipe(fds), 0);
    struct block_read read = {.fd = fds[0], .bytes = BLOCK_ALIGN_BYTES, .into = known_memory(BLOCK_ALIGN_BYTES)}, *done[1];
    assert_int_equal(reader->submit(reader, &read), 0);
    assert_int_equal(reader->reap(reader, done, 1, 5 * KNOWN_MS), 0);
    assert_int_equal(reader->close(reader, KNOWN_LONG_NS), 1);
    free(read.into);
    close(fds[0]);
    close(fds[1]);
}

/* Memory whose first touch waits for us (userfaultfd) makes a pread that does not end until we say so. */
static void close_gives_up_on_a_read_that_never_ends(void **state)
{
    (void)state;
    int fault_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (fault_fd < 0 || ioctl(fault_fd, UFFDIO_API, &api))
        skip();
    struct block_read read = {.fd = known_plain_fd, .bytes = BLOCK_ALIGN_BYTES}, *done[1];
    read.into = mmap(NULL, BLOCK_ALIGN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(read.into != MAP_FAILED);
    struct uffdio_register range = {.range = {(uintptr_t)read.into, BLOCK_ALIGN_BYTES}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    assert_int_equal(ioctl(fault_fd, UFFDIO_REGISTER, &range), 0);
    struct block_reader *reader;
    struct error err;
    assert_int_equal(pread_reader_open(&reader, 2, &err), STATUS_OK);
    assert_int_equal(reader->submit(reader, &read), 0);
    assert_int_equal(reader->reap(reader, done, 1, 20 * KNOWN_MS), 0);
    uint64_t start = known_now_ns();
    assert_int_equal(reader->close(reader, 30 * KNOWN_MS), 0);
    assert_true(known_now_ns() - start >= 30 * KNOWN_MS);
    close(fault_fd); /* now the read goes on, into memory and a reader that are still there */
    assert_int_equal(reader->close(reader, KNOWN_LONG_NS), 1);
    known_assert_bytes(&read, BLOCK_ALIGN_BYTES);
    munmap(read.into, BLOCK_ALIGN_BYTES);
}

/* ---- without io_uring ---- */

/* From here on this process gets the error for the system call, as in a container. */
static int forbid(int number, int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* In a child: 0 when all is as it should be, else which step was not. */
static int try_without_io_uring(int number, int error)
{
    struct block_reader *reader = NULL;
    struct block_read read = {.fd = known_direct_fd, .bytes = BLOCK_ALIGN_BYTES, .offset = 5 * BLOCK_ALIGN_BYTES}, *done[1];
    struct error err;
    if (!forbid(number, error))
        return 1;
    if (block_reader_open(&reader, "io_uring", 4, &err) != STATUS_UNSUPPORTED || !strstr(err.text, "io_uring: ") ||
        !strstr(err.text, "seccomp"))
        return 2;
    if (block_reader_open(&reader, "auto", 4, &err) || strcmp(reader->name, "pread with 4 threads"))
        return 3;
    if (posix_memalign(&read.into, BLOCK_ALIGN_BYTES, BLOCK_ALIGN_BYTES) || reader->submit(reader, &read))
        return 4;
    if (reader->reap(reader, done, 1, KNOWN_LONG_NS) != 1 || read.result != BLOCK_ALIGN_BYTES)
        return 5;
    if (*(uint64_t *)read.into != splitmix64_mix(read.offset / 8 + 1))
        return 6;
    free(read.into);
    return reader->close(reader, KNOWN_LONG_NS) == 1 ? 0 : 7;
}

static void a_process_without_io_uring_reads_with_threads(void **state)
{
    (void)state;
    static const struct {
        int number, error;
    } ways[] = {{SYS_io_uring_setup, EPERM}, {SYS_io_uring_setup, ENOSYS}, {SYS_io_uring_enter, EPERM}};
    for (int i = 0; i < 3; i++) {
        int status;
        pid_t pid = fork();
        if (!pid)
            _exit(try_without_io_uring(ways[i].number, ways[i].error));
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

static void an_unknown_kind_is_refused_by_name(void **state)
{
    (void)state;
    struct block_reader *reader;
    struct error err;
    assert_int_equal(block_reader_open(&reader, "aio", 4, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "'aio'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_without_io_uring_reads_with_threads), /* first: it forks, and there are no threads yet */
        cmocka_unit_test(random_reads_at_full_depth_bring_the_right_bytes),
        cmocka_unit_test(a_read_across_the_end_of_a_file_says_how_much_there_was),
        cmocka_unit_test(a_bad_descriptor_fails_its_own_read_only),
        cmocka_unit_test(whoever_only_looks_gets_the_read_too),
        cmocka_unit_test(a_bad_descriptor_holds_up_no_read_until_the_next_reap),
        cmocka_unit_test(a_wake_ends_the_present_or_the_next_wait),
        cmocka_unit_test(a_rain_of_wakes_loses_no_read),
        cmocka_unit_test(signals_neither_fail_a_read_nor_shorten_a_wait),
        cmocka_unit_test(close_waits_for_reads_in_flight),
        cmocka_unit_test(close_calls_off_what_io_uring_can_call_off),
        cmocka_unit_test(close_gives_up_on_a_read_that_never_ends),
        cmocka_unit_test(an_unknown_kind_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, known_file_make, known_file_remove);
}
