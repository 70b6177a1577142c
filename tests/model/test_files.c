/* Goal: a file that several processes write at once is always one of theirs in full, and nothing is left of writers that died. Method: real
 * processes, forked. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/json.h"
#include "common/memory.h"
#include "model/files.h"
#include "model/weights_source.h"
#include "tests/lib/golden.h"

enum { WRITERS = 8, ROUNDS = 40, BYTES_MAX = 1 << 18 };

/* Each runs in a process of its own, and never longer than this one; its return value is the exit status. */
static void fork_all(int n, int (*child)(void *, int), void *ctx, pid_t *ids)
{
    for (int i = 0; i < n; i++) {
        ids[i] = fork();
        assert_true(ids[i] >= 0);
        if (!ids[i])
            _exit(prctl(PR_SET_PDEATHSIG, SIGKILL) ? 1 : child(ctx, i));
    }
}

static void join_all(int n, const pid_t *ids)
{
    for (int i = 0; i < n; i++) {
        int status;
        assert_int_equal(waitpid(ids[i], &status, 0), ids[i]);
        if (!WIFEXITED(status) || WEXITSTATUS(status))
            fail_msg("process %d of %d ended with %#x", i, n, (unsigned)status);
    }
}

static int count_partial(const char *folder)
{
    int n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        n += strstr(entry->d_name, "partial") != NULL;
    closedir(dir);
    return n;
}

/* Writer i writes the byte i, and i + 1 times an eighth of the most: of two that mix, the bytes or the length tell. */
static size_t length_of(int i)
{
    return (size_t)(i + 1) * (BYTES_MAX / WRITERS);
}

static int write_often(void *folder, int i)
{
    char *bytes = xcalloc(BYTES_MAX, 1);
    struct error err = {0};
    memset(bytes, i, BYTES_MAX);
    for (int round = 0; round < ROUNDS; round++)
        if (file_write_atomic(folder, "file", bytes, length_of(i), &err)) {
            fprintf(stderr, "writer %d, round %d: %s\n", i, round, err.text);
            return 1;
        }
    free(bytes);
    return 0;
}

static int is_of_one_writer(const char *path)
{
    char *bytes = NULL;
    size_t n;
    struct error err;
    if (file_read_all(&bytes, &n, path, BYTES_MAX, &err))
        return err.status == STATUS_NOT_FOUND;
    int i = n ? bytes[0] : 0, is_whole = i >= 0 && i < WRITERS && n == length_of(i);
    for (size_t at = 0; at < n && is_whole; at++)
        is_whole = bytes[at] == i;
    free(bytes);
    return is_whole;
}

static void who_writes_one_name_at_once_takes_turns(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = xasprintf("%s/file", folder);
    pid_t ids[WRITERS];
    fork_all(WRITERS, write_often, folder, ids);
    for (int i = 0; i < 200; i++)
        assert_true(is_of_one_writer(path));
    join_all(WRITERS, ids);
    assert_true(is_of_one_writer(path));
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(count_partial(folder), 0);
    free(path);
    temporary_remove(&folder);
}

static int write_for_ever(void *folder, int i)
{
    for (;;)
        if (write_often(folder, i))
            return 1;
}

static void nothing_is_left_of_writers_that_were_killed(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = xasprintf("%s/file", folder);
    for (int round = 0; round < 30; round++) {
        pid_t ids[3];
        fork_all(3, write_for_ever, folder, ids);
        usleep((useconds_t)(3000 + 500 * round));
        for (int i = 0; i < 3; i++) {
            kill(ids[i], SIGKILL);
            waitpid(ids[i], NULL, 0);
        }
        assert_true(is_of_one_writer(path));
        assert_in_range(count_partial(folder), 0, 1); /* never more, however many have died */
    }
    assert_int_equal(access(path, F_OK), 0); /* some did write */
    struct error err;
    assert_int_equal(file_write_atomic(folder, "file", "\0", 1, &err), STATUS_OK);
    assert_int_equal(count_partial(folder), 0);
    free(path);
    temporary_remove(&folder);
}

static int open_model(void *folder, int i)
{
    struct weights_source *source;
    struct error err = {0};
    (void)i;
    if (weights_source_open(&source, folder, &err)) {
        fprintf(stderr, "opener %d: %s\n", i, err.text);
        return 1;
    }
    weights_source_close(&source);
    return 0;
}

static void eight_processes_may_be_the_first_to_open_a_vendor_folder(void **state)
{
    (void)state;
    char from[512];
    golden_path(from, "tiny-glm5", "checkpoint");
    for (int round = 0; round < 5; round++) {
        char *folder = temporary_copy(from);
        pid_t ids[WRITERS];
        fork_all(WRITERS, open_model, folder, ids);
        join_all(WRITERS, ids);
        assert_int_equal(count_partial(folder), 0);
        assert_int_equal(open_model(folder, 0), 0);
        temporary_remove(&folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_writes_one_name_at_once_takes_turns),
        cmocka_unit_test(nothing_is_left_of_writers_that_were_killed),
        cmocka_unit_test(eight_processes_may_be_the_first_to_open_a_vendor_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
