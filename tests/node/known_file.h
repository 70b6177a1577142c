/* For tests of readers: a file whose every byte follows from its place, so that any read can be judged alone. Include it after cmocka.h. */
#ifndef HEARTH_TESTS_KNOWN_FILE_H
#define HEARTH_TESTS_KNOWN_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/splitmix64.h"
#include "node/block_reader.h"

enum { KNOWN_BYTES = 16 << 20, KNOWN_SEED = 20240611 };
static const uint64_t KNOWN_MS = 1000000, KNOWN_LONG_NS = 30000000000;

static char known_path[] = "known_file_XXXXXX";
static int known_direct_fd, known_plain_fd; /* direct: a plain one too where the file system has no O_DIRECT */

static inline void known_assert_bytes(const struct block_read *read, size_t n)
{
    const uint64_t *words = read->into;
    for (size_t i = 0; i < n / 8; i++)
        if (words[i] != splitmix64_mix(read->offset / 8 + i + 1))
            fail_msg("offset %llu, byte %zu: wrong (seed %d)", (unsigned long long)read->offset, i * 8, KNOWN_SEED);
}

/* O_DIRECT where the file system has it; its place in the tests is then taken by a plain descriptor. */
static inline int known_open_direct(const char *name)
{
    int fd = open(name, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0 && errno == EINVAL) {
        print_message("no O_DIRECT in this folder: tested with the page cache\n");
        fd = open(name, O_RDONLY | O_CLOEXEC);
    }
    assert_true(fd >= 0);
    return fd;
}

static inline int known_file_make(void **state)
{
    (void)state;
    int fd = mkstemp(known_path);
    uint64_t *words = malloc(KNOWN_BYTES);
    if (fd < 0 || !words)
        return -1;
    for (size_t i = 0; i < KNOWN_BYTES / 8; i++)
        words[i] = splitmix64_mix(i + 1);
    int is_written = write(fd, words, KNOWN_BYTES) == KNOWN_BYTES && !fsync(fd);
    free(words);
    close(fd);
    known_direct_fd = known_open_direct(known_path);
    known_plain_fd = open(known_path, O_RDONLY | O_CLOEXEC);
    return is_written && known_plain_fd >= 0 ? 0 : -1;
}

static inline int known_file_remove(void **state)
{
    (void)state;
    close(known_direct_fd);
    close(known_plain_fd);
    return unlink(known_path);
}

static inline void *known_memory(size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, BLOCK_ALIGN_BYTES, bytes), 0);
    memset(memory, 0xee, bytes);
    return memory;
}

static inline uint64_t known_now_ns(void)
{
    return clock_now_ns(clock_monotonic());
}

/* Until n have ended, at most max at a time. */
static inline void known_reap_all(struct block_reader *reader, struct block_read **done, int n, int max)
{
    uint64_t start = known_now_ns();
    for (int have = 0; have < n;) {
        have += reader->reap(reader, done + have, n - have < max ? n - have : max, KNOWN_LONG_NS);
        if (known_now_ns() - start > KNOWN_LONG_NS)
            fail_msg("%d of %d reads did not end", n - have, n);
    }
}

#endif
