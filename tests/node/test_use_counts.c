/* Goal: use counts are kept whole or not at all, and nothing that is damaged, foreign or in their place is ever believed or stops the
 * store. Method: files that a store wrote, then damaged byte by byte, cut, replaced; folders that cannot be written; a writer that is
 * killed at random. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "node/use_counts.h"
#include "tests/node/expert_rig.h"

static struct rig rig;
static struct expert_files files;
static int n_counts; /* of all layers */

static int set_up(void **state)
{
    (void)state;
    char path[512];
    struct error err = {0};
    rig_init(&rig, make_pack(checkpoint_path(path, "tiny-groups"), PRECISION_INT4, NULL));
    if (expert_files_open(&files, rig.source, rig.layer_begin, rig.layer_end, NULL, &err))
        fail_msg("%s", err.text);
    n_counts = files.n_files * files.n_experts;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    expert_files_close(&files);
    rig_release(&rig);
    return 0;
}

static struct use_counts counts_in(const char *folder)
{
    struct use_counts c;
    use_counts_init(&c, folder, weights_source_identity(rig.source), rig.layer_begin, rig.layer_end);
    return c;
}

/* As told from `round`, so that a mixture of two shows. */
static void fill(float *uses, int round)
{
    for (int i = 0; i < n_counts; i++)
        uses[i] = (float)(round + i) / 65536;
}

static void save(const struct use_counts *c, int round)
{
    float uses[1024];
    struct error err = {0};
    fill(uses, round);
    if (use_counts_save(c, &files, uses, &err))
        fail_msg("%s", err.text);
}

/* How many layers were believed; what is not believed leaves zeros. */
static int load(const struct use_counts *c, float *uses)
{
    memset(uses, 0xff, (size_t)n_counts * sizeof *uses);
    int found = use_counts_load(c, &files, uses);
    for (int i = 0; i < n_counts && !found; i++)
        assert_true(uses[i] == 0);
    return found;
}

static void what_was_saved_is_loaded(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *deep = xasprintf("%s/a/b", folder);
    struct use_counts c = counts_in(deep);
    float expected[1024], uses[1024];
    assert_true(n_counts <= 1024);
    assert_int_equal(load(&c, uses), 0);
    for (int round = 0; round < 3; round++) {
        save(&c, round);
        fill(expected, round);
        assert_int_equal(load(&c, uses), files.n_files);
        assert_memory_equal(uses, expected, (size_t)n_counts * sizeof *uses);
    }
    use_counts_release(&c);
    free(deep);
    temporary_remove(&folder);
}

static void another_cut_of_the_layers_starts_warm_too(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    struct use_counts whole = counts_in(folder), part;
    struct expert_files own = files;
    float expected[1024], uses[1024];
    save(&whole, 7);
    fill(expected, 7);
    own.files = files.files + 1; /* from the second layer on */
    own.n_files = files.n_files - 1;
    use_counts_init(&part, folder, weights_source_identity(rig.source), rig.layer_begin + 1, rig.layer_end);
    assert_int_equal(use_counts_load(&part, &own, uses), own.n_files);
    assert_memory_equal(uses, expected + files.n_experts, (size_t)(own.n_files * files.n_experts) * sizeof *uses);
    use_counts_release(&part);
    use_counts_release(&whole);
    temporary_remove(&folder);
}

static void counts_of_another_model_are_not_believed(void **state)
{
    (void)state;
    char *folder = temporary_folder(), other[33];
    struct use_counts own = counts_in(folder), foreign = counts_in(folder);
    float uses[1024];
    snprintf(other, sizeof other, "%s", foreign.identity);
    other[31] = other[31] == '0' ? '1' : '0';
    use_counts_release(&foreign);
    use_counts_init(&foreign, folder, other, rig.layer_begin, rig.layer_end);
    save(&foreign, 1);
    assert_int_equal(load(&own, uses), 0);
    /* not even under our own name */
    char *from = xasprintf("%s/%s", folder, foreign.name), *to = xasprintf("%s/%s", folder, own.name);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(load(&own, uses), 0);
    free(from);
    free(to);
    use_counts_release(&own);
    use_counts_release(&foreign);
    temporary_remove(&folder);
}

static void no_damaged_byte_and_no_missing_one_is_believed(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *log = xasprintf("%s/log.txt", folder);
    struct use_counts c = counts_in(folder);
    float uses[1024];
    uint64_t n;
    save(&c, 5);
    uint8_t *bytes = read_file(folder, c.name, &n);
    rig_log_begin(log); /* a line for each */
    for (uint64_t at = 0; at < n; at++) {
        uint8_t was = bytes[at];
        bytes[at] ^= (uint8_t)(1 << at % 8);
        write_file(folder, c.name, bytes, n);
        assert_int_equal(load(&c, uses), 0);
        bytes[at] = was;
        write_file(folder, c.name, bytes, at); /* cut before it; 0: an empty file */
        assert_int_equal(load(&c, uses), 0);
    }
    uint8_t *longer = xcalloc(n + 1, 1);
    memcpy(longer, bytes, n);
    write_file(folder, c.name, longer, n + 1);
    assert_int_equal(load(&c, uses), 0);
    assert_true(rig_log_end(log, "passed over"));
    write_file(folder, c.name, bytes, n);
    assert_int_equal(load(&c, uses), files.n_files);
    free(longer);
    free(bytes);
    free(log);
    use_counts_release(&c);
    temporary_remove(&folder);
}

/* ---- the store in such surroundings ---- */

static void use_the_store(void)
{
    static const int experts[] = {1, 4, 9, 12};
    struct error err = {0};
    rig_open(&rig, "pread", 8);
    for (int i = 0; i < 5; i++)
        for (int layer = rig.layer_begin; layer < rig.layer_end; layer++)
            assert_int_equal(rig_take(&rig, layer, experts, 4, 1, &err), STATUS_OK);
    rig_close(&rig);
}

/* With that folder for its counts the store works and the log has the words. */
static void assert_works_and_says(const char *folder, const char *words)
{
    char *own = temporary_folder(), *log = xasprintf("%s/log.txt", own);
    rig.options.use_counts = folder;
    rig_log_begin(log);
    use_the_store();
    assert_true(rig_log_end(log, words));
    rig.options.use_counts = "none";
    free(log);
    temporary_remove(&own);
}

static void a_store_works_whatever_is_in_the_place_of_its_counts(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    struct use_counts c = counts_in(folder);
    char *path = xasprintf("%s/%s", folder, c.name), *partial = xasprintf("%s.partial", path), *below = xasprintf("%s/deeper", path);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_works_and_says(folder, "could not be written");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0644), 0);
    assert_works_and_says(folder, "not a regular file");
    write_file(folder, c.name, "", 0);
    assert_works_and_says(folder, "passed over");
    float uses[1024];
    assert_int_equal(load(&c, uses), files.n_files);     /* written anew */
    assert_works_and_says(path, "could not be written"); /* a file in the folder's place */
    assert_works_and_says(below, "not kept");
    assert_int_equal(mkdir(partial, 0755), 0);
    assert_works_and_says(folder, "could not be written");
    assert_int_equal(load(&c, uses), files.n_files); /* that of before */
    free(below);
    free(partial);
    free(path);
    use_counts_release(&c);
    temporary_remove(&folder);
}

static char *small_disk; /* where it is mounted */

/* Whatever became of the test. */
static int unmount_small_disk(void **state)
{
    (void)state;
    if (!small_disk)
        return 0;
    int failed = umount2(small_disk, MNT_DETACH);
    temporary_remove(&small_disk);
    return failed;
}

static void a_full_disk_leaves_the_counts_of_before(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        puts("needs root for a small file system: skipped");
        skip();
    }
    char *folder = temporary_folder();
    if (mount("none", folder, "tmpfs", 0, "size=16k")) {
        puts("may not mount a small file system: skipped");
        temporary_remove(&folder);
        skip();
    }
    small_disk = folder;
    struct use_counts c = counts_in(folder);
    float uses[1024];
    save(&c, 3);
    char *rubbish = xcalloc(1, 8192), *path = xasprintf("%s/fill", folder);
    FILE *file = fopen(path, "w");
    for (int i = 0; i < 4 && fwrite(rubbish, 8192, 1, file) == 1 && !fflush(file); i++)
        ;
    fclose(file);
    assert_works_and_says(folder, "No space left");
    assert_int_equal(load(&c, uses), files.n_files);
    assert_true(uses[1] == 4.0f / 65536);
    unlink(path);
    use_the_store();
    free(rubbish);
    free(path);
    use_counts_release(&c);
    assert_int_equal(umount(small_disk), 0); /* nobody has left a file open */
    temporary_remove(&small_disk);
}

/* In a child that is not root. */
static void a_folder_that_may_not_be_written_is_said_so(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    assert_int_equal(chmod(folder, 0555), 0);
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        float uses[1024];
        struct error err = {0};
        if (geteuid() == 0 && (setgid(65534) || setuid(65534)))
            _exit(2);
        struct use_counts c = counts_in(folder);
        fill(uses, 1);
        _exit(use_counts_save(&c, &files, uses, &err) == STATUS_IO && strstr(err.text, "Permission denied") ? 0 : 3);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    temporary_remove(&folder);
}

/* ---- kill -9 ---- */

/* Saves one round after the other until it is killed, or the test ends. */
static void save_for_ever(const char *folder)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL))
        _exit(1);
    struct use_counts c = counts_in(folder);
    for (int round = 1;; round = round % 30000 + 1)
        save(&c, round);
}

/* All of one round. */
static void assert_is_whole(const struct use_counts *c)
{
    float uses[1024], expected[1024];
    assert_int_equal(load(c, uses), files.n_files);
    fill(expected, (int)(uses[0] * 65536));
    assert_memory_equal(uses, expected, (size_t)n_counts * sizeof *uses);
}

static void a_writer_killed_at_any_moment_leaves_a_valid_file(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    struct use_counts c = counts_in(folder);
    uint64_t seed = 99;
    save(&c, 0);
    for (int i = 0; i < 200; i++) {
        fflush(stdout);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child)
            save_for_ever(folder);
        nanosleep(&(struct timespec){0, (long)(noise(&seed) % 8000000)}, NULL);
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_is_whole(&c);
    }
    float uses[1024];
    load(&c, uses);
    assert_true(uses[0] > 0); /* some child did save */
    save(&c, 4242);           /* what they left behind is in nobody's way */
    assert_is_whole(&c);
    use_counts_release(&c);
    temporary_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_saved_is_loaded),
        cmocka_unit_test(another_cut_of_the_layers_starts_warm_too),
        cmocka_unit_test(counts_of_another_model_are_not_believed),
        cmocka_unit_test(no_damaged_byte_and_no_missing_one_is_believed),
        cmocka_unit_test(a_store_works_whatever_is_in_the_place_of_its_counts),
        cmocka_unit_test_teardown(a_full_disk_leaves_the_counts_of_before, unmount_small_disk),
        cmocka_unit_test(a_folder_that_may_not_be_written_is_said_so),
        cmocka_unit_test(a_writer_killed_at_any_moment_leaves_a_valid_file),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
