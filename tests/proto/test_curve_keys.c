/* Goal: secrets are private from the first moment and never lost; lists are read and grown whole; every fault names file and line.
 * Method: real files in a folder of the test's own. What people see is in tests/cli/test_keys.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/curve_keys.h"
#include "proto/wire_rules.h"
#include "proto/zap.h"

static char folder[] = "/tmp/hearth-keys-XXXXXX";
static char pair_path[64], list_path[64];

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(text, f) >= 0 && !fclose(f));
}

static int n_files(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static int clean(void **state)
{
    (void)state;
    unlink(pair_path);
    unlink(list_path);
    assert_int_equal(n_files(), 0); /* no half-written file is left either */
    return 0;
}

static void pairs_come_back_and_are_private(void **state)
{
    (void)state;
    struct key_pair made, read;
    struct error err = {0};
    struct stat st;
    mode_t before = umask(0);
    assert_int_equal(key_pair_create(pair_path, &made, &err), STATUS_OK);
    umask(before);
    assert_true(!stat(pair_path, &st) && (st.st_mode & 0777) == 0600 && n_files() == 1);
    assert_int_equal(key_pair_read(pair_path, &read, &err), STATUS_OK);
    assert_memory_equal(&made, &read, sizeof made);
    assert_true(wire_is_key(made.public_key) && strcmp(made.public_key, made.secret_key));
    struct key_pair second;
    assert_int_equal(key_pair_create(pair_path, &second, &err), STATUS_INVALID);
    assert_int_equal(key_pair_read(pair_path, &read, &err), STATUS_OK);
    assert_memory_equal(&made, &read, sizeof made);
}

static void failures_leave_no_secret_behind(void **state)
{
    (void)state;
    struct key_pair pair;
    struct error err = {0};
    assert_int_equal(key_pair_create(pair_path, &pair, &err), STATUS_OK);
    chmod(pair_path, 0640);
    assert_int_equal(key_pair_read(pair_path, &pair, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "chmod 600"));
    static const struct key_pair nothing;
    assert_memory_equal(&pair, &nothing, sizeof pair);
    assert_int_equal(key_pair_read(list_path, &pair, &err), STATUS_NOT_FOUND);
    assert_int_equal(key_pair_create("/nowhere/key", &pair, &err), STATUS_IO);
}

static void new_public_keys_begin_with_a_letter_or_digit(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct key_pair pair;
        struct error err = {0};
        assert_int_equal(key_pair_create(pair_path, &pair, &err), STATUS_OK);
        char c = pair.public_key[0];
        assert_true((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'));
        unlink(pair_path);
    }
}

#define KEY_A "#aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define KEY_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static void lists_are_read(void **state)
{
    (void)state;
    struct trusted_keys list = {0};
    struct error err = {0};
    assert_int_equal(trusted_keys_read(&list, list_path, &err), STATUS_OK); /* none yet */
    assert_int_equal(list.n, 0);
    const char *hash_key = KEY_A;
    char text[512];
    snprintf(text, sizeof text, "# comment\n\n  %s\tdesktop \r\n#%s\n%s laptop", hash_key, KEY_B, KEY_B); /* a key may begin with '#' */
    write_text(list_path, text);
    assert_int_equal(trusted_keys_read(&list, list_path, &err), STATUS_OK);
    assert_int_equal(list.n, 2);
    assert_string_equal(trusted_keys_find(&list, hash_key)->name, "desktop");
    assert_string_equal(trusted_keys_find(&list, KEY_B)->name, "laptop");
    assert_null(trusted_keys_find(&list, ""));
    assert_int_equal(trusted_keys_read(&list, list_path, &err), STATUS_OK); /* again, into the same list */
    assert_int_equal(list.n, 2);
    trusted_keys_release(&list);
}

static void wrong_lists_are_refused_with_their_line(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {KEY_B "\n", ":1:"},
        {KEY_B " two words\n", ":1:"},
        {"\n" KEY_B "b name\n", ":2:"},
        {KEY_B " name\n" KEY_B " other\n", ":2: the key"},
        {KEY_B " name\nc" KEY_B "\n", ":2:"},
        {KEY_B " n\xc3\xa4me\n", ":1:"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct trusted_keys list = {0};
        struct error err = {0};
        write_text(list_path, cases[i][0]);
        assert_int_equal(trusted_keys_read(&list, list_path, &err), STATUS_INVALID);
        assert_true(list.n == 0 && !list.keys);
        if (!strstr(err.text, cases[i][1]))
            fail_msg("the sentence lacks '%s': %s", cases[i][1], err.text);
    }
    struct error err = {0};
    FILE *f = fopen(list_path, "w");
    for (int i = 0; i <= ZAP_KEYS_MAX; i++)
        fprintf(f, "%040d n%d\n", i, i);
    fclose(f);
    struct trusted_keys list = {0};
    assert_int_equal(trusted_keys_read(&list, list_path, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, ":257: more than 256"));
}

static void lists_grow_whole(void **state)
{
    (void)state;
    struct error err = {0};
    struct stat st;
    write_text(list_path, "# mine\n");
    chmod(list_path, 0640);
    assert_int_equal(trusted_keys_add(list_path, KEY_B, "desktop", &err), STATUS_OK);
    assert_true(!stat(list_path, &st) && (st.st_mode & 0777) == 0640);
    assert_int_equal(trusted_keys_add(list_path, KEY_B, "another-name", &err), STATUS_OK); /* trusted already */
    char key[PEER_KEY_BYTES];
    for (int i = 1; i < ZAP_KEYS_MAX; i++) {
        char name[16];
        snprintf(key, sizeof key, "%040d", i);
        snprintf(name, sizeof name, "n%d", i);
        assert_int_equal(trusted_keys_add(list_path, key, name, &err), STATUS_OK);
    }
    snprintf(key, sizeof key, "%040d", ZAP_KEYS_MAX);
    assert_int_equal(trusted_keys_add(list_path, key, "one-more", &err), STATUS_INVALID);
    struct trusted_keys list = {0};
    assert_int_equal(trusted_keys_read(&list, list_path, &err), STATUS_OK);
    assert_int_equal(list.n, ZAP_KEYS_MAX);
    trusted_keys_release(&list);
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return 1;
    snprintf(pair_path, sizeof pair_path, "%s/pair", folder);
    snprintf(list_path, sizeof list_path, "%s/list", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(pairs_come_back_and_are_private, clean),
        cmocka_unit_test_teardown(failures_leave_no_secret_behind, clean),
        cmocka_unit_test_teardown(new_public_keys_begin_with_a_letter_or_digit, clean),
        cmocka_unit_test_teardown(lists_are_read, clean),
        cmocka_unit_test_teardown(wrong_lists_are_refused_with_their_line, clean),
        cmocka_unit_test_teardown(lists_grow_whole, clean),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
