#include "node/system_checks.h"

#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#include "common/budget.h"
#include "common/clock.h"
#include "common/memory.h"
#include "kernels/cpu_features.h"
#include "kernels/parallel.h"
#include "kernels/registry.h"

static void not_visible(struct finding *finding)
{
    finding_add(finding, FINDING_OK, "not visible here");
}

/* Bytes that /proc/meminfo gives in kB; 0: not visible. */
static uint64_t memory_of(const struct system_view *view, const char *key)
{
    char value[64];
    return view_value(view, "/proc/meminfo", key, value, sizeof value) ? strtoull(value, NULL, 10) * 1024 : 0;
}

/* The soft limit of a line of /proc/self/limits; UINT64_MAX: unlimited. 0: not visible. */
static int limit_of(const struct system_view *view, const char *key, uint64_t *out)
{
    char value[128];
    if (!view_value(view, "/proc/self/limits", key, value, sizeof value))
        return 0;
    *out = strncmp(value, "unlimited", 9) ? strtoull(value, NULL, 10) : UINT64_MAX;
    return 1;
}

/* ---- CPU and memory ---- */

static void check_cpu(const struct system_view *view, struct finding *finding)
{
    struct error err;
    char name[128];
    struct kernels chosen;
    if (view_value(view, "/proc/cpuinfo", "model name", name, sizeof name))
        finding_add(finding, FINDING_OK, "%s", name);
    if (cpu_check_minimum(&err) || kernels_select(&chosen, "auto", &err)) {
        finding_add(finding, FINDING_PROBLEM, "%s", err.text);
        finding_advise(finding, "use a newer machine for this node");
        return;
    }
    unsigned features = cpu_features();
    finding_add(finding, FINDING_OK, "%d cores for this process", parallel_cores());
    finding_add(finding, FINDING_OK, "instructions:%s%s%s%s", features & CPU_AVX2 ? " AVX2" : "",
                features & CPU_AVX_VNNI ? " AVX-VNNI" : "", features & CPU_AVX512 ? " AVX-512 with VNNI" : "",
                features ? "" : " no vectors of ours, scalar kernels");
    for (int i = 0; i < n_kernel_variants; i++)
        if (kernel_variants[i].function == (void (*)(void))chosen.matmul_int4)
            finding_add(finding, FINDING_OK, "int4 runs %s", kernel_variants[i].name);
    if (!features)
        finding_advise(finding, "expect a fraction of the speed of a machine with AVX2");
}

static void check_governor(const struct system_view *view, struct finding *finding)
{
    char governor[64], driver[64] = "";
    if (!view_line(view, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor, sizeof governor)) {
        not_visible(finding);
        return;
    }
    view_line(view, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", driver, sizeof driver);
    /* These two drivers call their dynamic policy "powersave"; elsewhere it means the lowest frequency, always. */
    int is_dynamic = !strcmp(driver, "intel_pstate") || !strcmp(driver, "amd-pstate-epp");
    int is_slow = !strcmp(governor, "powersave") && !is_dynamic;
    finding_add(finding, is_slow ? FINDING_WARNING : FINDING_OK, "%s%s%s", governor, *driver ? " with " : "", driver);
    if (is_slow)
        finding_advise(finding, "cpupower frequency-set -g schedutil (or performance)");
}

static void check_memory(const struct system_view *view, struct finding *finding)
{
    uint64_t total = memory_of(view, "MemTotal:"), available = memory_of(view, "MemAvailable:");
    char a[32], b[32];
    if (!total) {
        not_visible(finding);
        return;
    }
    int is_taken = available < total / 2;
    finding_add(finding, is_taken ? FINDING_WARNING : FINDING_OK, "%s, %s available", bytes_text(total, a), bytes_text(available, b));
    if (is_taken)
        finding_advise(finding, "more than half is in use by other programs: every GiB they give back holds experts");
}

static void check_memory_cgroup(const struct system_view *view, struct finding *finding)
{
    uint64_t limit = memory_cgroup_limit_bytes(view->root), room = memory_cgroup_room_bytes(view->root);
    uint64_t total = memory_of(view, "MemTotal:");
    char a[32], b[32];
    /* version 1 writes "no limit" as a number near 2^63 */
    if (limit == UINT64_MAX || (total && limit >= total)) {
        finding_add(finding, FINDING_OK, "no limit below the machine's memory");
        return;
    }
    int is_full = room < limit / 4;
    finding_add(finding, is_full ? FINDING_WARNING : FINDING_OK, "limit %s, room %s", bytes_text(limit, a), bytes_text(room, b));
    if (is_full)
        finding_advise(
            finding,
            "other processes fill this group: raise MemoryMax= (systemd) or --memory (containers), or start the node in its own group");
}

/* CAP_IPC_LOCK is bit 14 of the effective capabilities: who has it may lock anything. */
static int may_lock_all(const struct system_view *view)
{
    char value[64];
    return view_value(view, "/proc/self/status", "CapEff:", value, sizeof value) && (strtoull(value, NULL, 16) >> 14 & 1);
}

static void check_memlock(const struct system_view *view, struct finding *finding)
{
    uint64_t limit;
    char text[32];
    if (may_lock_all(view)) {
        finding_add(finding, FINDING_OK, "no limit for this user (CAP_IPC_LOCK)");
        return;
    }
    if (!limit_of(view, "Max locked memory", &limit)) {
        not_visible(finding);
        return;
    }
    if (limit == UINT64_MAX) {
        finding_add(finding, FINDING_OK, "unlimited");
        return;
    }
    int is_small = limit < memory_of(view, "MemTotal:") / 2;
    finding_add(finding, is_small ? FINDING_WARNING : FINDING_OK, "--pin may lock %s", bytes_text(limit, text));
    if (is_small)
        finding_advise(finding, "only for --pin: LimitMEMLOCK=infinity in the unit, or memlock in /etc/security/limits.conf");
}

static void check_huge_pages(const struct system_view *view, struct finding *finding)
{
    char line[128];
    if (!view_line(view, "/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line)) {
        not_visible(finding);
        return;
    }
    char *chosen = strchr(line, '['), *end = chosen ? strchr(chosen, ']') : NULL;
    if (!end) {
        finding_add(finding, FINDING_OK, "not understood: %s", line);
        return;
    }
    *end = 0;
    int is_off = !strcmp(chosen + 1, "never");
    finding_add(finding, is_off ? FINDING_WARNING : FINDING_OK, "transparent huge pages: %s", chosen + 1);
    if (is_off)
        finding_advise(finding, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (weights are read faster)");
}

static void check_swap(const struct system_view *view, struct finding *finding)
{
    FILE *file = view_open(view, "/proc/swaps");
    char line[256];
    int n = 0;
    if (!file) {
        not_visible(finding);
        return;
    }
    while (fgets(line, sizeof line, file))
        if (*line == '/') {
            n++;
            finding_add(finding, FINDING_WARNING, "on: %.*s", (int)strcspn(line, " \t"), line);
        }
    fclose(file);
    if (n)
        finding_advise(finding,
                       "an expert that was swapped out is slower than one on the drive: --pin, or swapoff, or MemorySwapMax=0 in the unit");
    else
        finding_add(finding, FINDING_OK, "off");
}

/* ---- kernel and system ---- */

static int try_io_uring(void)
{
    struct io_uring ring;
    int result = io_uring_queue_init(8, &ring, 0);
    if (!result)
        io_uring_queue_exit(&ring);
    return result;
}

/* Why the kernel says no: only a sysctl can be told from a filter by looking. */
static void explain_io_uring(const struct system_view *view, int error, struct finding *finding)
{
    char disabled[16] = "", seccomp[16] = "";
    view_line(view, "/proc/sys/kernel/io_uring_disabled", disabled, sizeof disabled);
    view_value(view, "/proc/self/status", "Seccomp:", seccomp, sizeof seccomp);
    if (*disabled && strcmp(disabled, "0")) {
        finding_add(finding, FINDING_WARNING, "forbidden by kernel.io_uring_disabled = %s", disabled);
        finding_advise(finding, "sysctl kernel.io_uring_disabled=0");
    } else if ((error == EPERM || error == EACCES || error == ENOSYS) && atoi(seccomp) == 2) {
        finding_add(finding, FINDING_WARNING, "forbidden by a seccomp filter (%s)", strerror(error));
        finding_advise(
            finding,
            "allow io_uring_setup, io_uring_enter and io_uring_register in the container's profile or the unit's SystemCallFilter=");
    } else if (error == ENOSYS) {
        finding_add(finding, FINDING_WARNING, "this kernel has none");
        finding_advise(finding, "Linux 5.6 or newer, built with CONFIG_IO_URING");
    } else if (error == ENOMEM) {
        finding_add(finding, FINDING_WARNING, "not enough lockable memory for a ring");
        finding_advise(finding, "LimitMEMLOCK=infinity in the unit, or a kernel from 5.12 on");
    } else {
        finding_add(finding, FINDING_WARNING, "not allowed: %s", strerror(error));
    }
    finding_add(finding, FINDING_WARNING, "files are read by threads instead");
}

static void check_io_uring(const struct system_view *view, struct finding *finding)
{
    int result = view->try_io_uring();
    if (result)
        explain_io_uring(view, -result, finding);
    else
        finding_add(finding, FINDING_OK, "allowed");
}

static int clock_state(void)
{
    struct timex state = {0};
    int result = adjtimex(&state); /* modes 0: only asks */
    return result < 0 ? -errno : result != TIME_ERROR && !(state.status & STA_UNSYNC);
}

static void check_clock(const struct system_view *view, struct finding *finding)
{
    char source[64];
    struct timespec pause = {.tv_nsec = 2000000};
    uint64_t before = clock_now_ns(clock_monotonic());
    nanosleep(&pause, NULL);
    if (clock_now_ns(clock_monotonic()) <= before) {
        finding_add(finding, FINDING_PROBLEM, "the monotonic clock stands still");
        finding_advise(finding, "every deadline needs it: look at the machine's clock source (dmesg)");
    }
    if (view_line(view, "/sys/devices/system/clocksource/clocksource0/current_clocksource", source, sizeof source)) {
        int is_slow = !strcmp(source, "hpet") || !strcmp(source, "acpi_pm");
        finding_add(finding, is_slow ? FINDING_WARNING : FINDING_OK, "source %s", source);
        if (is_slow)
            finding_advise(finding, "reading this clock takes a microsecond: the kernel gave up the tsc, dmesg says why");
    }
    int state = view->clock_state();
    if (state < 0)
        finding_add(finding, FINDING_OK, "whether it is synchronised is not visible here");
    else
        finding_add(finding, state ? FINDING_OK : FINDING_WARNING, state ? "synchronised" : "the time of day is not synchronised");
    if (!state)
        finding_advise(finding, "timedatectl set-ntp true; only the times in logs of several machines depend on it");
}

static void check_open_files(const struct system_view *view, struct finding *finding)
{
    /* Sockets, keys and logs; a model's experts lie in one file per layer. */
    enum { FILES_OF_A_NODE = 64, FILES_WITHOUT_MODEL = 256 };
    uint64_t limit, need = view->files ? (uint64_t)view->files->n_files + FILES_OF_A_NODE : FILES_WITHOUT_MODEL;
    if (!limit_of(view, "Max open files", &limit)) {
        not_visible(finding);
        return;
    }
    int is_small = limit < need;
    if (limit == UINT64_MAX)
        finding_add(finding, FINDING_OK, "unlimited");
    else
        finding_add(finding, is_small ? FINDING_PROBLEM : FINDING_OK, "at most %llu, at least %llu are needed", (unsigned long long)limit,
                    (unsigned long long)need);
    if (is_small)
        finding_advise(finding, "LimitNOFILE=4096 in the unit, or ulimit -n 4096");
}

/* The nearest folder of the path that exists. malloc'ed. */
static char *existing(const char *path)
{
    char *copy = xstrdup(path);
    while (access(copy, F_OK)) {
        char *slash = strrchr(copy, '/');
        if (!slash)
            break;
        slash[slash == copy] = 0;
        if (slash == copy)
            break;
    }
    return copy;
}

static void check_state_directory(const struct system_view *view, struct finding *finding)
{
    if (!view->state_dir) {
        finding_add(finding, FINDING_WARNING, "none: neither HOME nor XDG_STATE_HOME is set");
        finding_advise(finding, "set one: the machine's profile, checksums of foreign folders and counts of uses are kept there");
        return;
    }
    enum { NEEDED_BYTES = 64 << 20 }; /* counts of uses and checksums of the largest model are a few MB, written beside the old ones */
    char *dir = existing(view->state_dir), free_text[32];
    struct statvfs room;
    if (access(dir, W_OK)) {
        finding_add(finding, FINDING_WARNING, "%s: not writable: %s", view->state_dir, strerror(errno));
        finding_advise(finding, "make it writable for this user, or set XDG_STATE_HOME (StateDirectory= in a unit)");
    } else if (statvfs(dir, &room)) {
        finding_add(finding, FINDING_OK, "%s: free space is not visible here", view->state_dir);
    } else {
        uint64_t bytes = (uint64_t)room.f_bavail * room.f_frsize;
        int is_full = bytes < NEEDED_BYTES;
        finding_add(finding, is_full ? FINDING_WARNING : FINDING_OK, "%s: %s free", view->state_dir, bytes_text(bytes, free_text));
        if (is_full)
            finding_advise(finding, "free some space: counts of uses cannot be kept on a full drive");
    }
    free(dir);
}

/* ---- the table ---- */

const struct system_check system_checks[] = {
    {"cpu", check_cpu, 0},
    {"cpu governor", check_governor, 0},
    {"memory", check_memory, 0},
    {"memory cgroup", check_memory_cgroup, 0},
    {"locked memory", check_memlock, 0},
    {"huge pages", check_huge_pages, 0},
    {"swap", check_swap, 0},
    {"io_uring", check_io_uring, 0},
    {"open files", check_open_files, 0},
    {"clock", check_clock, 0},
    {"state directory", check_state_directory, 0},
    {"O_DIRECT", check_direct_reads, 1},
    {"file system", check_file_system, 1},
    {"drive", check_drive_kind, 1},
    {"drive rate", check_drive_rate, 1},
};
const int n_system_checks = sizeof system_checks / sizeof *system_checks;

void system_view_init(struct system_view *view, const char *state_dir)
{
    *view = (struct system_view){
        .root = "",
        .try_io_uring = try_io_uring,
        .clock_state = clock_state,
        .state_dir = state_dir,
        .reader = "auto",
        .drive_time_ns = 2000000000,
    };
}
