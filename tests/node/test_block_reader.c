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
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "node/block_reader.h"
#include "tests/lib/fault_reader.h"

enum { FILE_BYTES = 16 << 20, BLOCKS_MAX = 64, READ_BYTES_MAX = BLOCKS_MAX * BLOCK_ALIGN_BYTES, SEED = 20240611 };
static const uint64_t MS = 1000000, LONG_NS = 30000000000;

/* ---- the file ---- */

static char path[] = "block_reader_XXXXXX";
static int direct_fd, plain_fd;

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t random_state = SEED;

static uint64_t random_below(uint64_t n)
{
    return mix(random_state += 0x9e3779b97f4a7c15u) % n;
}

static void assert_bytes(const struct block_read *read, size_t n)
{
    const uint64_t *words = read->into;
    for (size_t i = 0; i < n / 8; i++)
        if (words[i] != mix(read->offset / 8 + i + 1))
            fail_msg("offset %llu, byte %zu: wrong (seed %d)", (unsigned long long)read->offset, i * 8, SEED);
}

/* O_DIRECT where the file system has it; its place in the tests is then taken by a plain descriptor. */
static int open_direct(const char *name)
{
    int fd = open(name, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0 && errno == EINVAL) {
        print_message("no O_DIRECT in this folder: tested with the page cache\n");
        fd = open(name, O_RDONLY | O_CLOEXEC);
    }
    assert_true(fd >= 0);
    return fd;
}

static int make_file(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    uint64_t *words = malloc(FILE_BYTES);
    if (fd < 0 || !words)
        return -1;
    for (size_t i = 0; i < FILE_BYTES / 8; i++)
        words[i] = mix(i + 1);
    int is_written = write(fd, words, FILE_BYTES) == FILE_BYTES && !fsync(fd);
    free(words);
    close(fd);
    direct_fd = open_direct(path);
    plain_fd = open(path, O_RDONLY | O_CLOEXEC);
    return is_written && plain_fd >= 0 ? 0 : -1;
}

static int remove_file(void **state)
{
    (void)state;
    close(direct_fd);
    close(plain_fd);
    return unlink(path);
}

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
        reader = emulated_reader_new(&reader, &(struct emulated_drive){20e9, 30000, 50000}, SEED);
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
        assert_int_equal(reader->close(reader, LONG_NS), 1);
    }
}

static void *memory_of(size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, BLOCK_ALIGN_BYTES, bytes), 0);
    memset(memory, 0xee, bytes);
    return memory;
}

static uint64_t now_ns(void)
{
    return clock_now_ns(clock_monotonic());
}

/* Until n have ended, at most max at a time. */
static void reap_all(struct block_reader *reader, struct block_read **done, int n, int max)
{
    uint64_t start = now_ns();
    for (int have = 0; have < n;) {
        have += reader->reap(reader, done + have, n - have < max ? n - have : max, LONG_NS);
        if (now_ns() - start > LONG_NS)
            fail_msg("%d of %d reads did not end", n - have, n);
    }
}

/* ---- reading ---- */

static void choose_read(struct block_read *read, int fd)
{
    read->fd = fd;
    read->bytes = (uint32_t)(1 + random_below(BLOCKS_MAX)) * BLOCK_ALIGN_BYTES;
    read->offset = random_below((FILE_BYTES - read->bytes) / BLOCK_ALIGN_BYTES + 1) * BLOCK_ALIGN_BYTES;
    read->store = (int)random_below(2);
    memset(read->into, 0xee, read->bytes);
}

static void read_randomly(struct block_reader *reader, int fd, int n)
{
    struct block_read reads[BLOCK_READS_MAX] = {0}, *done[BLOCK_READS_MAX];
    uint8_t *memory = memory_of((size_t)reader->depth * READ_BYTES_MAX);
    int started = 0, ended = 0;
    for (; started < reader->depth && started < n; started++) {
        reads[started].into = memory + (size_t)started * READ_BYTES_MAX;
        choose_read(&reads[started], fd);
        assert_int_equal(reader->submit(reader, &reads[started]), 0);
    }
    while (ended < n) {
        int got = reader->reap(reader, done, BLOCK_READS_MAX, LONG_NS);
        assert_true(got > 0);
        for (int i = 0; i < got; i++, ended++) {
            assert_int_equal(done[i]->result, done[i]->bytes);
            assert_true(done[i]->done_ns >= done[i]->submitted_ns);
            assert_bytes(done[i], done[i]->bytes);
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
    read_randomly(reader, direct_fd, 600);
    read_randomly(reader, plain_fd, 300);
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
    uint8_t *memory = memory_of(2 * READ_BYTES_MAX);
    struct block_read *done[2];
    assert_int_equal(ftruncate(fd, at_end), 0);
    close(fd);
    fd = open_direct(name);
    struct block_read across = {.fd = fd, .offset = BLOCK_ALIGN_BYTES, .bytes = READ_BYTES_MAX, .into = memory};
    struct block_read beyond = {.fd = fd, .offset = 8 * BLOCK_ALIGN_BYTES, .bytes = READ_BYTES_MAX, .into = memory + READ_BYTES_MAX};
    assert_int_equal(reader->submit(reader, &across), 0);
    assert_int_equal(reader->submit(reader, &beyond), 0);
    reap_all(reader, done, 2, 2);
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

/* The kernel stops a batch at a bad descriptor: those behind it must come all the same. */
static void check_bad_fd(struct block_reader *reader)
{
    enum { N = 8 };
    struct block_read reads[N], *done[N];
    uint8_t *memory = memory_of(N * BLOCK_ALIGN_BYTES);
    for (int i = 0; i < N; i++) {
        uint8_t *into = memory + i * BLOCK_ALIGN_BYTES;
        reads[i] =
            (struct block_read){.fd = i % 3 ? direct_fd : 9999, .offset = (uint64_t)i << 16, .bytes = BLOCK_ALIGN_BYTES, .into = into};
        assert_int_equal(reader->submit(reader, &reads[i]), 0);
    }
    reap_all(reader, done, N, 1);
    for (int i = 0; i < N; i++) {
        assert_int_equal(reads[i].result, i % 3 ? BLOCK_ALIGN_BYTES : -EBADF);
        if (i % 3)
            assert_bytes(&reads[i], BLOCK_ALIGN_BYTES);
    }
    free(memory);
}

static void a_bad_descriptor_fails_its_own_read_only(void **state)
{
    (void)state;
    for_every_reader(8, check_bad_fd);
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
    uint64_t start = now_ns();
    assert_int_equal(reader->reap(reader, done, 4, timeout_ns), 0);
    return now_ns() - start;
}

static void check_wake(struct block_reader *reader)
{
    pthread_t thread;
    struct waker during = {reader, 1, 20000};
    assert_int_equal(pthread_create(&thread, NULL, wake_again_and_again, &during), 0);
    assert_true(idle_reap_ns(reader, LONG_NS) < LONG_NS / 2);
    pthread_join(thread, NULL);
    reader->wake(reader);
    assert_true(idle_reap_ns(reader, LONG_NS) < LONG_NS / 2); /* the next, when there is no present one */
    reader->wake(reader);
    reader->wake(reader);
    assert_true(idle_reap_ns(reader, LONG_NS) < LONG_NS / 2);
    while (idle_reap_ns(reader, 30 * MS) < 30 * MS) /* and no more after the wakes are used up */
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
    struct block_read read = {.fd = direct_fd, .into = memory_of(READ_BYTES_MAX)}, *done[4];
    struct waker waker = {reader, 500, 20};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wake_again_and_again, &waker), 0);
    for (int i = 0; i < N; i++) {
        choose_read(&read, direct_fd);
        assert_int_equal(reader->submit(reader, &read), 0);
        reap_all(reader, done, 1, 4);
        assert_int_equal(read.result, read.bytes);
        assert_bytes(&read, read.bytes);
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
    read_randomly(reader, direct_fd, 200);
    uint64_t waited = idle_reap_ns(reader, 40 * MS);
    setitimer(ITIMER_REAL, &never, NULL);
    assert_true(waited >= 40 * MS);
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
        uint8_t *memory = memory_of(16 * READ_BYTES_MAX);
        for (int k = 0; k < 16; k++) {
            reads[k].into = memory + k * READ_BYTES_MAX;
            choose_read(&reads[k], direct_fd);
            assert_int_equal(reader->submit(reader, &reads[k]), 0);
        }
        assert_int_equal(reader->close(reader, LONG_NS), 1);
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
    struct block_read read = {.fd = fds[0], .bytes = BLOCK_ALIGN_BYTES, .into = memory_of(BLOCK_ALIGN_BYTES)}, *done[1];
    assert_int_equal(reader->submit(reader, &read), 0);
    assert_int_equal(reader->reap(reader, done, 1, 5 * MS), 0);
    assert_int_equal(reader->close(reader, LONG_NS), 1);
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
    struct block_read read = {.fd = plain_fd, .bytes = BLOCK_ALIGN_BYTES}, *done[1];
    read.into = mmap(NULL, BLOCK_ALIGN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(read.into != MAP_FAILED);
    struct uffdio_register range = {.range = {(uintptr_t)read.into, BLOCK_ALIGN_BYTES}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    assert_int_equal(ioctl(fault_fd, UFFDIO_REGISTER, &range), 0);
    struct block_reader *reader;
    struct error err;
    assert_int_equal(pread_reader_open(&reader, 2, &err), STATUS_OK);
    assert_int_equal(reader->submit(reader, &read), 0);
    assert_int_equal(reader->reap(reader, done, 1, 20 * MS), 0);
    uint64_t start = now_ns();
    assert_int_equal(reader->close(reader, 30 * MS), 0);
    assert_true(now_ns() - start >= 30 * MS);
    close(fault_fd); /* now the read goes on, into memory and a reader that are still there */
    assert_int_equal(reader->close(reader, LONG_NS), 1);
    assert_bytes(&read, BLOCK_ALIGN_BYTES);
    munmap(read.into, BLOCK_ALIGN_BYTES);
}

/* ---- the emulated drive ---- */

enum { PIECE = 64 << 10 };
static const struct emulated_drive slow = {100e6, 2000000, 0}, jittery = {100e6, 2000000, 4000000};

/* n reads of PIECE at once, over n_stores in turn; each must end no earlier than its store's clock allows. Returns the time of all,
 * *late_ns: the most that one was later than the clock. */
static uint64_t read_pieces(struct block_reader *reader, const struct emulated_drive *drive, int n, int n_stores, uint64_t *late_ns)
{
    struct block_read reads[BLOCK_READS_MAX], *done[BLOCK_READS_MAX];
    uint8_t *memory = memory_of((size_t)n * PIECE);
    uint64_t last = 0;
    *late_ns = 0;
    for (int i = 0; i < n; i++) {
        reads[i] = (struct block_read){.fd = plain_fd, .store = i % n_stores, .bytes = PIECE, .into = memory + (size_t)i * PIECE};
        reads[i].offset = (uint64_t)i * PIECE;
        assert_int_equal(reader->submit(reader, &reads[i]), 0);
    }
    reap_all(reader, done, n, 3);
    for (int i = 0; i < n; i++) {
        assert_int_equal(reads[i].result, PIECE);
        assert_bytes(&reads[i], PIECE);
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
    return emulated_reader_new(&reader, drive, SEED);
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
    assert_int_equal(reader->close(reader, LONG_NS), 1);
}

static void jitter_delays_and_never_hastens(void **state)
{
    (void)state;
    uint64_t late;
    struct block_reader *reader = open_drive("pread", &jittery);
    read_pieces(reader, &jittery, 32, 1, &late);
    assert_true(late > jittery.jitter_ns / 2); /* of 32 equally likely delays */
    assert_int_equal(reader->close(reader, LONG_NS), 1);
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
    assert_int_equal(reader->close(reader, LONG_NS), 1);
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
    reader = emulated_reader_new(&reader, &drive, SEED);
    assert_ptr_equal(reader, same);
    assert_int_equal(reader->close(reader, LONG_NS), 1);
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
    struct block_read read = {.fd = direct_fd, .bytes = BLOCK_ALIGN_BYTES, .offset = 5 * BLOCK_ALIGN_BYTES}, *done[1];
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
    if (reader->reap(reader, done, 1, LONG_NS) != 1 || read.result != BLOCK_ALIGN_BYTES)
        return 5;
    if (*(uint64_t *)read.into != mix(read.offset / 8 + 1))
        return 6;
    free(read.into);
    return reader->close(reader, LONG_NS) == 1 ? 0 : 7;
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
        cmocka_unit_test(a_wake_ends_the_present_or_the_next_wait),
        cmocka_unit_test(a_rain_of_wakes_loses_no_read),
        cmocka_unit_test(signals_neither_fail_a_read_nor_shorten_a_wait),
        cmocka_unit_test(close_waits_for_reads_in_flight),
        cmocka_unit_test(close_calls_off_what_io_uring_can_call_off),
        cmocka_unit_test(close_gives_up_on_a_read_that_never_ends),
        cmocka_unit_test(an_emulated_drive_is_never_faster_than_it_says),
        cmocka_unit_test(jitter_delays_and_never_hastens),
        cmocka_unit_test(two_stores_are_read_side_by_side),
        cmocka_unit_test(a_drive_is_read_from_its_text),
        cmocka_unit_test(an_unknown_kind_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
