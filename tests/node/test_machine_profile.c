/* Goal: what was measured comes back as it was kept, and a file that is not whole or not ours is refused by name. Method: a filled profile
 * through a file, then the same file with one thing wrong at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/memory.h"
#include "node/machine_profile.h"
#include "tests/lib/golden.h"

static char *folder, *path;
static struct machine_profile profile;

static int set_up(void **state)
{
    (void)state;
    folder = temporary_folder();
    path = xasprintf("%s/p.json", folder);
    machine_profile_init(&profile);
    profile.memory_bytes_per_second = 48.5e9;
    profile.is_disturbed = 1;
    strcpy(profile.reader, "io_uring");
    profile.n_matmuls = 2;
    profile.matmuls[0] = (struct profile_matmul){"int4", 1, 31.25e9};
    profile.matmuls[1] = (struct profile_matmul){"int8", 8, 40e9};
    profile.n_stores = 2;
    for (int i = 0; i < 2; i++) {
        struct profile_store *s = &profile.stores[i];
        *s = (struct profile_store){.is_direct = i, .is_temporary = !i, .piece_bytes = 1 << 20, .latency_p50_ns = 81300};
        snprintf(s->dir, sizeof s->dir, "/mnt/%d \"quoted\"", i);
        for (int d = 0; d < PROFILE_DEPTHS; d++)
            s->bytes_per_second[d] = (i ? 1e9 : 1e6) * (d + 1); /* a very slow one is still above 0 */
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(path);
    temporary_remove(&folder);
    return 0;
}

static void what_was_measured_comes_back(void **state)
{
    (void)state;
    struct error err;
    struct machine_profile back;
    assert_int_equal(machine_profile_save(&profile, path, &err), STATUS_OK);
    assert_int_equal(machine_profile_load(&back, path, &err), STATUS_OK);
    char *a = machine_profile_text(&profile), *b = machine_profile_text(&back);
    assert_string_equal(a, b);
    free(a);
    free(b);
    assert_true(back.memory_bytes_per_second == 48.5e9 && back.is_disturbed == 1 && back.n_stores == 2);
    assert_string_equal(back.stores[1].dir, "/mnt/1 \"quoted\"");
    assert_true(back.stores[1].bytes_per_second[3] == 4e9 && back.stores[0].bytes_per_second[0] == 1e6);
    assert_int_equal(back.stores[0].latency_p50_ns, 81300);
    for (int d = 0; d < PROFILE_DEPTHS; d++)
        assert_true(machine_profile_drives_rate(&back, profile_depths[d]) == (1e9 + 1e6) * (d + 1));
    assert_true(machine_profile_drives_rate(&back, 5) == 4 * (1e9 + 1e6) && machine_profile_drives_rate(&back, 32) == 5 * (1e9 + 1e6));
    assert_true(machine_profile_matmul(&back, "int4", 1)->bytes_per_second == 31.25e9);
    assert_null(machine_profile_matmul(&back, "int4", 8));
    assert_int_equal(machine_profile_is_of_this_machine(&back), 1);
    back.n_cores++;
    assert_int_equal(machine_profile_is_of_this_machine(&back), 0);
}

/* The saved file with the first `from` replaced. */
static void damage(const char *from, const char *to)
{
    char *text = machine_profile_text(&profile), *at = strstr(text, from);
    assert_non_null(at);
    FILE *file = fopen(path, "w");
    fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    assert_int_equal(fclose(file), 0);
    free(text);
}

static void what_is_wrong_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *word;
    } cases[] = {
        {"\"profile_version\": 1", "\"profile_version\": 2", "profile_version"},
        {"\"cores\": ", "\"cores\": -", "cores"},
        {"\"cpu\": \"", "\"cpu\": 3, \"x\": \"", "cpu"},
        {"48.5", "0", "memory_gb_per_s"},
        {"48.5", "1e300", "memory_gb_per_s"},
        {"48.5", "\"fast\"", "memory_gb_per_s"},
        {"\"depth\": 2", "\"depth\": 3", "depth"},
        {"\"rows\": 1", "\"rows\": 0", "rows"},
        {"\"matmul\": [", "\"matmul\": 1, \"y\": [", "matmul"},
        {"\"stores\": [", "\"stores\": [1, ", "dir"},
        {"\"int4\"", "\"a format with a long name\"", "format"},
        {"]", "", "line"}, /* no JSON any more */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error err;
        struct machine_profile back;
        damage(cases[i].from, cases[i].to);
        enum status status = machine_profile_load(&back, path, &err);
        if (!status || !strstr(err.text, cases[i].word) || !strstr(err.text, path))
            fail_msg("%s -> %s: status %d, '%s'", cases[i].from, cases[i].to, status, status ? err.text : "");
    }
}

static void a_machine_that_was_not_measured_is_told_how(void **state)
{
    (void)state;
    struct error err;
    struct machine_profile back;
    assert_int_equal(machine_profile_load(&back, path, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "hearth probe"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_measured_comes_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_wrong_is_refused_by_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_machine_that_was_not_measured_is_told_how, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
