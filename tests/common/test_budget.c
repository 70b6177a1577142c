/* Goal: the room in a memory cgroup is what the process can really get. Method: a made-up root folder with the files of both versions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/budget.h"
#include "common/paths.h"
#include "tests/lib/golden.h"

static char *root;

static void put(const char *path, const char *text)
{
    temporary_write(root, path, text);
}

static int set_up(void **state)
{
    (void)state;
    root = temporary_folder();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    temporary_remove(&root);
    return 0;
}

static void no_limit_is_no_limit(void **state)
{
    (void)state;
    assert_true(memory_cgroup_room_bytes(root) == UINT64_MAX);
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/memory.max", "max\n");
    put("sys/fs/cgroup/a/memory.current", "5000\n");
    assert_true(memory_cgroup_room_bytes(root) == UINT64_MAX);
}

static void page_cache_is_room_in_version_2(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/memory.max", "10000\n");
    put("sys/fs/cgroup/a/memory.current", "9000\n");
    assert_int_equal(memory_cgroup_room_bytes(root), 1000);
    put("sys/fs/cgroup/a/memory.stat", "anon 2000\nfile 7000\nactive_file 800\ninactive_file 6200\nunevictable 0\n");
    assert_int_equal(memory_cgroup_room_bytes(root), 7200);
    put("sys/fs/cgroup/a/b/memory.max", "3000\n"); /* the least of all levels */
    put("sys/fs/cgroup/a/b/memory.current", "3500\n");
    put("sys/fs/cgroup/a/b/memory.stat", "inactive_file 600\n");
    assert_int_equal(memory_cgroup_room_bytes(root), 100);
    put("sys/fs/cgroup/a/b/memory.stat", "inactive_file 99999\n"); /* read a moment later: never more than the limit */
    assert_int_equal(memory_cgroup_room_bytes(root), 3000);
}

static void page_cache_is_room_in_version_1(void **state)
{
    (void)state;
    put("proc/self/cgroup", "7:cpu,cpuacct:/x\n4:memory:/c:d\n");
    put("sys/fs/cgroup/memory/c:d/memory.limit_in_bytes", "10000\n");
    put("sys/fs/cgroup/memory/c:d/memory.usage_in_bytes", "9500\n");
    put("sys/fs/cgroup/memory/c:d/memory.stat", "inactive_file 1\ntotal_inactive_file 4000\n"); /* total: with the groups inside */
    assert_int_equal(memory_cgroup_room_bytes(root), 4500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_limit_is_no_limit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(page_cache_is_room_in_version_2, set_up, tear_down),
        cmocka_unit_test_setup_teardown(page_cache_is_room_in_version_1, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
