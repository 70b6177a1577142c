/* Goal: every check of `hearth doctor` sees what it is there for, advises what helps, and takes what it cannot see for no fault. Method: a
 * made-up root with the files of /proc and /sys, and made-up answers of io_uring and the clock. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/memory.h"
#include "common/paths.h"
#include "node/system_checks.h"
#include "tests/lib/golden.h"
#include "tests/lib/packs.h"

static char *root;
static struct system_view view;
static int io_uring_result, clock_result;

static int fake_io_uring(void)
{
    return io_uring_result;
}

static int fake_clock(void)
{
    return clock_result;
}

static void put(const char *path, const char *text)
{
    temporary_write(root, path, text);
}

static int set_up(void **state)
{
    (void)state;
    root = temporary_folder();
    io_uring_result = 0;
    clock_result = 1;
    view =
        (struct system_view){.root = root, .try_io_uring = fake_io_uring, .clock_state = fake_clock, .state_dir = root, .reader = "pread"};
    view.drive_time_ns = 20000000;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    temporary_remove(&root);
    return 0;
}

static struct finding look(const char *name)
{
    struct finding finding = {0};
    for (int i = 0; i < n_system_checks; i++)
        if (!strcmp(system_checks[i].name, name)) {
            system_checks[i].look(&view, &finding);
            return finding;
        }
    fail_msg("no check is called %s", name);
    return finding;
}

static void expect(const char *name, enum finding_level level, const char *found, const char *remedy)
{
    struct finding finding = look(name);
    if (finding.level != level || !strstr(finding.found, found) || (remedy ? !strstr(finding.remedy, remedy) : *finding.remedy != 0))
        fail_msg("%s: level %d, '%s' -> '%s'; expected level %d, '%s' -> '%s'", name, finding.level, finding.found, finding.remedy, level,
                 found, remedy ? remedy : "");
}

static void names_are_unique_and_findings_say_something(void **state)
{
    (void)state;
    for (int i = 0; i < n_system_checks; i++) {
        for (int j = 0; j < i; j++)
            assert_string_not_equal(system_checks[i].name, system_checks[j].name);
        if (system_checks[i].is_of_drive)
            continue;
        struct finding finding = look(system_checks[i].name);
        assert_true(strlen(finding.found) > 0);
    }
}

static void an_empty_root_is_no_fault(void **state)
{
    (void)state;
    for (int i = 0; i < n_system_checks; i++)
        if (!system_checks[i].is_of_drive)
            assert_int_equal(look(system_checks[i].name).level, FINDING_OK);
    expect("memory", FINDING_OK, "not visible here", NULL);
    expect("huge pages", FINDING_OK, "not visible here", NULL);
    expect("swap", FINDING_OK, "not visible here", NULL);
    expect("open files", FINDING_OK, "not visible here", NULL);
    expect("locked memory", FINDING_OK, "not visible here", NULL);
    expect("cpu governor", FINDING_OK, "not visible here", NULL);
}

static void memory_in_use_by_others_is_a_warning(void **state)
{
    (void)state;
    put("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:   12582912 kB\n");
    expect("memory", FINDING_OK, "16.0 GiB, 12.0 GiB available", NULL);
    put("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:   2097152 kB\n");
    expect("memory", FINDING_WARNING, "2.0 GiB available", "other programs");
}

static void limits_of_both_cgroup_versions_are_found(void **state)
{
    (void)state;
    put("proc/meminfo", "MemTotal:       16777216 kB\n");
    expect("memory cgroup", FINDING_OK, "no limit", NULL);
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/memory.max", "4294967296\n"); /* around ours */
    put("sys/fs/cgroup/a/memory.current", "1073741824\n");
    expect("memory cgroup", FINDING_OK, "limit 4.0 GiB, room 3.0 GiB", NULL);
    put("sys/fs/cgroup/a/memory.current", "4000000000\n");
    expect("memory cgroup", FINDING_WARNING, "limit 4.0 GiB", "MemoryMax=");
    put("proc/self/cgroup", "4:memory:/c\n");
    put("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "9223372036854771712\n"); /* version 1's way to say none */
    expect("memory cgroup", FINDING_OK, "no limit", NULL);
    put("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "1073741824\n");
    put("sys/fs/cgroup/memory/c/memory.usage_in_bytes", "0\n");
    expect("memory cgroup", FINDING_OK, "limit 1.0 GiB, room 1.0 GiB", NULL);
}

static void what_pin_may_lock_is_told(void **state)
{
    (void)state;
    const char *line = "Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         %s       "
                       "       %s             bytes\n";
    char text[256];
    put("proc/meminfo", "MemTotal:       16777216 kB\n");
    snprintf(text, sizeof text, line, "8388608", "unlimited"); /* the soft limit counts */
    put("proc/self/limits", text);
    put("proc/self/status", "Name:\tx\nCapEff:\t0000000000000000\n");
    expect("locked memory", FINDING_WARNING, "8.0 MiB", "LimitMEMLOCK=infinity");
    put("proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n");
    expect("locked memory", FINDING_OK, "CAP_IPC_LOCK", NULL);
    put("proc/self/status", "Name:\tx\nCapEff:\t0000000000002000\n"); /* the bit beside it */
    expect("locked memory", FINDING_WARNING, "8.0 MiB", "LimitMEMLOCK=infinity");
    snprintf(text, sizeof text, line, "unlimited", "unlimited");
    put("proc/self/limits", text);
    expect("locked memory", FINDING_OK, "unlimited", NULL);
}

static void huge_pages_never_is_a_warning(void **state)
{
    (void)state;
    const char *path = "sys/kernel/mm/transparent_hugepage/enabled";
    put(path, "always [madvise] never\n");
    expect("huge pages", FINDING_OK, "madvise", NULL);
    put(path, "[always] madvise never\n");
    expect("huge pages", FINDING_OK, "always", NULL);
    put(path, "always madvise [never]\n");
    expect("huge pages", FINDING_WARNING, "never", "madvise");
    put(path, "nonsense\n");
    expect("huge pages", FINDING_OK, "nonsense", NULL);
}

static void swap_is_a_warning_that_names_it(void **state)
{
    (void)state;
    put("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n");
    expect("swap", FINDING_OK, "off", NULL);
    put("proc/swaps", "Filename\t\t\t\tType\n/dev/sda2 partition\t1\t0\t-2\n/swapfile                               file\t1\t0\t-3\n");
    expect("swap", FINDING_WARNING, "/dev/sda2; on: /swapfile", "--pin");
}

static void io_uring_says_who_forbids_it(void **state)
{
    (void)state;
    expect("io_uring", FINDING_OK, "allowed", NULL);
    io_uring_result = -EPERM;
    put("proc/self/status", "Seccomp:\t2\n");
    put("proc/sys/kernel/io_uring_disabled", "2\n");
    expect("io_uring", FINDING_WARNING, "io_uring_disabled = 2", "sysctl kernel.io_uring_disabled=0");
    put("proc/sys/kernel/io_uring_disabled", "0\n");
    expect("io_uring", FINDING_WARNING, "seccomp", "SystemCallFilter=");
    io_uring_result = -ENOSYS;
    expect("io_uring", FINDING_WARNING, "seccomp", "io_uring_setup");
    put("proc/self/status", "Seccomp:\t0\n");
    expect("io_uring", FINDING_WARNING, "this kernel has none", "5.6");
    io_uring_result = -ENOMEM;
    expect("io_uring", FINDING_WARNING, "lockable", "LimitMEMLOCK");
    io_uring_result = -EIO;
    expect("io_uring", FINDING_WARNING, "not allowed", NULL);
    assert_non_null(strstr(look("io_uring").found, "read by threads"));
}

static void too_few_files_is_a_problem(void **state)
{
    (void)state;
    put("proc/self/limits", "Max processes             1                    1                    processes \nMax open files            100 "
                            "                 4096                 files     \n");
    expect("open files", FINDING_PROBLEM, "at most 100", "LimitNOFILE");
    put("proc/self/limits", "Max open files            1024                 4096                 files     \n");
    expect("open files", FINDING_OK, "at most 1024", NULL);
    struct drive_files many = {.n_files = 2000};
    view.files = &many;
    expect("open files", FINDING_PROBLEM, "at least 2064", "LimitNOFILE");
}

static void clocks_that_are_slow_or_alone_are_warnings(void **state)
{
    (void)state;
    put("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    expect("clock", FINDING_OK, "tsc; synchronised", NULL);
    clock_result = 0;
    expect("clock", FINDING_WARNING, "not synchronised", "set-ntp");
    clock_result = -EPERM;
    expect("clock", FINDING_OK, "not visible here", NULL);
    put("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
    expect("clock", FINDING_WARNING, "hpet", "dmesg");
}

static void the_slow_governor_is_a_warning_but_not_with_drivers_that_mean_another(void **state)
{
    (void)state;
    put("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    expect("cpu governor", FINDING_WARNING, "powersave", "frequency-set");
    put("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n");
    expect("cpu governor", FINDING_OK, "powersave with intel_pstate", NULL);
    put("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
    expect("cpu governor", FINDING_WARNING, "acpi-cpufreq", "schedutil");
    put("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "schedutil\n");
    expect("cpu governor", FINDING_OK, "schedutil", NULL);
}

static void a_state_directory_that_is_not_there_yet_is_looked_for_above(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/not/yet", root);
    view.state_dir = path;
    expect("state directory", FINDING_OK, "free", NULL);
    view.state_dir = NULL;
    expect("state directory", FINDING_WARNING, "HOME", "set one");
    view.state_dir = "/proc/self/nowhere"; /* no user can write here */
    struct finding finding = look("state directory");
    assert_int_equal(finding.level, FINDING_WARNING);
}

static void file_systems_are_known_by_their_number(void **state)
{
    (void)state;
    static const struct {
        long magic;
        const char *name;
        int is_plain;
    } wanted[] = {{0xef53, "ext4", 1},          {0x58465342, "xfs", 1},       {0x6969, "nfs", 0},       {0xff534d42, "cifs", 0},
                  {(int)0xff534d42, "cifs", 0}, /* f_type sign-extended, as some C libraries give it */
                  {0x65735546, "fuse", 0},      {0x794c7630, "overlayfs", 0}, {0x9123683e, "btrfs", 0}, {0x2fc12fc1, "zfs", 0}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const struct file_system_kind *kind = file_system_kind(wanted[i].magic);
        assert_non_null(kind);
        assert_string_equal(kind->name, wanted[i].name);
        assert_int_equal(!kind->remark, wanted[i].is_plain);
        assert_int_equal(!kind->remedy, wanted[i].is_plain);
    }
    assert_null(file_system_kind(0x12345));
}

static void rotating_drives_are_told_from_virtual_ones(void **state)
{
    (void)state;
    struct error err;
    struct drive_files files;
    struct stat st;
    char *pack = make_pack(kindling_dir(), PRECISION_INT4, NULL), path[128];
    assert_int_equal(drive_files_open(&files, pack, NULL, &err), STATUS_OK);
    view.files = &files;
    assert_int_equal(fstat(files.files[0].fd, &st), 0);
    expect("drive", FINDING_OK, "not visible here", NULL);
    snprintf(path, sizeof path, "sys/dev/block/%u:%u/queue/rotational", major(st.st_dev), minor(st.st_dev));
    put(path, "1\n");
    expect("drive", FINDING_WARNING, "rotates", "NVMe");
    put(path, "0\n");
    expect("drive", FINDING_OK, "does not rotate", NULL);
    put(path, "1\n");
    snprintf(path, sizeof path, "sys/dev/block/%u:%u/uevent", major(st.st_dev), minor(st.st_dev));
    put(path, "MAJOR=254\nDEVNAME=vda1\n");
    expect("drive", FINDING_OK, "virtual", NULL);
    put(path, "MAJOR=254\nDEVNAME=sda\n");
    expect("drive", FINDING_WARNING, "rotates", "NVMe");
    files.files[0].direct_errno = EINVAL;
    expect("O_DIRECT", FINDING_WARNING, "on 1 of 8 files (Invalid argument)", "ext4 or xfs");
    drive_files_close(&files);
    temporary_remove(&pack);
}

static void a_folder_that_is_no_model_and_a_store_without_files_are_named(void **state)
{
    (void)state;
    struct error err;
    struct drive_files files;
    char *pack = make_pack(kindling_dir(), PRECISION_INT4, NULL), text[1024];
    assert_int_not_equal(drive_files_open(&files, root, NULL, &err), STATUS_OK);
    assert_non_null(strstr(err.text, root));
    assert_int_not_equal(drive_files_open(&files, root, pack, &err), STATUS_OK);
    assert_int_equal(drive_files_open(&files, pack, root, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, root));
    snprintf(text, sizeof text, "%s/experts-03", root); /* there, but cut short */
    put("experts-03", "short");
    assert_int_equal(drive_files_open(&files, pack, root, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, text));
    snprintf(text, sizeof text, "%s,%s", pack, pack);
    assert_int_equal(drive_files_open(&files, pack, text, &err), STATUS_OK);
    assert_int_equal(files.n_stores, 2);
    int n[2];
    const struct drive_extent *first = drive_files_store(&files, 0, &n[0]), *second = drive_files_store(&files, 1, &n[1]);
    assert_true(n[0] > 0 && n[0] == n[1] && second == first + n[0]);
    view.files = &files;
    struct finding finding = look("drive rate"); /* a sentence for each */
    assert_int_not_equal(finding.level, FINDING_PROBLEM);
    assert_non_null(strstr(strstr(finding.found, "GB/s") + 1, "GB/s"));
    drive_files_close(&files);
    temporary_remove(&pack);
}

static void a_damaged_drive_is_a_problem(void **state)
{
    (void)state;
    struct error err;
    struct drive_files files;
    char *pack = make_pack(kindling_dir(), PRECISION_INT4, NULL);
    assert_int_equal(drive_files_open(&files, pack, NULL, &err), STATUS_OK);
    for (int i = 0; i < files.n_files; i++)
        assert_int_equal(truncate(files.files[i].path, 4096), 0);
    view.files = &files;
    expect("drive rate", FINDING_PROBLEM, "experts-", "smartctl");
    drive_files_close(&files);
    temporary_remove(&pack);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names_are_unique_and_findings_say_something, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_empty_root_is_no_fault, set_up, tear_down),
        cmocka_unit_test_setup_teardown(memory_in_use_by_others_is_a_warning, set_up, tear_down),
        cmocka_unit_test_setup_teardown(limits_of_both_cgroup_versions_are_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_pin_may_lock_is_told, set_up, tear_down),
        cmocka_unit_test_setup_teardown(huge_pages_never_is_a_warning, set_up, tear_down),
        cmocka_unit_test_setup_teardown(swap_is_a_warning_that_names_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(io_uring_says_who_forbids_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(too_few_files_is_a_problem, set_up, tear_down),
        cmocka_unit_test_setup_teardown(clocks_that_are_slow_or_alone_are_warnings, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_slow_governor_is_a_warning_but_not_with_drivers_that_mean_another, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_state_directory_that_is_not_there_yet_is_looked_for_above, set_up, tear_down),
        cmocka_unit_test_setup_teardown(file_systems_are_known_by_their_number, set_up, tear_down),
        cmocka_unit_test_setup_teardown(rotating_drives_are_told_from_virtual_ones, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_folder_that_is_no_model_and_a_store_without_files_are_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_damaged_drive_is_a_problem, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
