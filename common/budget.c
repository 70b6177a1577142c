#include "common/budget.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

void budget_add(struct budget *budget, const char *name, uint64_t bytes, const char *way_out)
{
    CHECK(budget->n_accounts < BUDGET_ACCOUNTS_MAX);
    budget->accounts[budget->n_accounts].name = name;
    budget->accounts[budget->n_accounts].way_out = way_out;
    budget->accounts[budget->n_accounts++].bytes = bytes;
}

uint64_t budget_sum(const struct budget *budget)
{
    uint64_t sum = 0;
    for (int i = 0; i < budget->n_accounts; i++)
        sum += budget->accounts[i].bytes;
    return sum;
}

enum status budget_check(const struct budget *budget, struct error *err)
{
    if (budget_sum(budget) <= budget->limit)
        return STATUS_OK;
    char text[ERROR_TEXT_BYTES], size[32], limit[32];
    int used = 0;
    for (int i = 0; i < budget->n_accounts && used < (int)sizeof text - 1; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%s %s%s%s%s", i ? ", " : "", budget->accounts[i].name,
                         bytes_text(budget->accounts[i].bytes, size), budget->accounts[i].way_out ? " (" : "",
                         budget->accounts[i].way_out ? budget->accounts[i].way_out : "", budget->accounts[i].way_out ? ")" : "");
    return error_set(err, STATUS_NO_MEMORY, "%s of memory needed, %s allowed: %s", bytes_text(budget_sum(budget), size),
                     bytes_text(budget->limit, limit), text);
}

char *bytes_text(uint64_t bytes, char text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(text, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

/* A number in a file, or `fallback` when there is none ("max"). */
static uint64_t number_in(const char *path, uint64_t fallback)
{
    FILE *file = fopen(path, "re");
    unsigned long long value;
    if (!file)
        return fallback;
    if (fscanf(file, "%llu", &value) != 1)
        value = fallback;
    fclose(file);
    return value;
}

/* The number behind a key in a file of "KEY NUMBER" lines, or 0. */
static uint64_t number_of_key(const char *path, const char *key)
{
    FILE *file = fopen(path, "re");
    char line[128];
    unsigned long long value = 0;
    size_t length = strlen(key);
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && sscanf(line + length, " %llu", &value) == 1)
            break;
    if (file)
        fclose(file);
    return value;
}

/* Names of a memory cgroup's files, and of the page cache (descendants included) that the kernel drops before it refuses memory: what was read
 * once, as our weights files are, counts as used. */
struct cgroup_names {
    const char *mount, *limit, *used, *cache_key;
};
static const struct cgroup_names v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};
static const struct cgroup_names v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};

static uint64_t limit_of(const char *root, const struct cgroup_names *names, const char *group)
{
    char path[900];
    snprintf(path, sizeof path, "%s%s%s/%s", root, names->mount, group, names->limit);
    return number_in(path, UINT64_MAX);
}

static uint64_t room(const char *root, const struct cgroup_names *names, const char *group)
{
    uint64_t limit = limit_of(root, names, group);
    if (limit == UINT64_MAX)
        return UINT64_MAX;
    char path[900];
    snprintf(path, sizeof path, "%s%s%s/%s", root, names->mount, group, names->used);
    uint64_t used = number_in(path, 0);
    snprintf(path, sizeof path, "%s%s%s/memory.stat", root, names->mount, group);
    uint64_t cache = number_of_key(path, names->cache_key);
    used = used > cache ? used - cache : 0;
    return limit > used ? limit - used : 0;
}

static uint64_t machine_available(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib ? (uint64_t)kib * 1024 : UINT64_MAX;
}

typedef uint64_t group_bytes_fn(const char *root, const struct cgroup_names *names, const char *group);

/* The least of the group and of all groups around it: a limit may stand at any level. Inside a container the process's own group can be the
 * mount's root, whatever its path says: the way up ends there. path is destroyed. */
static uint64_t least_up_from(char *path, const char *root, const struct cgroup_names *names, group_bytes_fn *bytes_of)
{
    uint64_t least = UINT64_MAX;
    for (char *end = path + strlen(path); end; end = strrchr(path, '/')) {
        *end = 0;
        uint64_t here = bytes_of(root, names, path);
        least = here < least ? here : least;
    }
    return least;
}

/* Lines of /proc/self/cgroup are "0::PATH" (v2) and "N:memory:PATH" (v1); a path may have colons. */
static uint64_t least_of_groups(const char *root, group_bytes_fn *bytes_of)
{
    uint64_t least = UINT64_MAX;
    char line[512];
    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *file = fopen(line, "re");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *memory = strstr(line, ":memory:");
        uint64_t here = UINT64_MAX;
        if (!strncmp(line, "0::", 3))
            here = least_up_from(line + 3, root, &v2, bytes_of);
        else if (memory)
            here = least_up_from(memory + 8, root, &v1, bytes_of);
        least = here < least ? here : least;
    }
    if (file)
        fclose(file);
    return least;
}

uint64_t memory_cgroup_room_bytes(const char *root)
{
    return least_of_groups(root, room);
}

uint64_t memory_cgroup_limit_bytes(const char *root)
{
    return least_of_groups(root, limit_of);
}

uint64_t memory_available_bytes(void)
{
    uint64_t machine = machine_available(), cgroup = memory_cgroup_room_bytes("");
    return machine < cgroup ? machine : cgroup;
}
