#include "node/machine_profile.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "common/json.h"
#include "common/memory.h"
#include "common/paths.h"
#include "kernels/parallel.h"
#include "model/files.h"

enum { FILE_MAX_BYTES = 1 << 20 };

const int profile_depths[PROFILE_DEPTHS] = {1, 2, 4, 8, 16};

/* ---- this machine ---- */

/* ARM's cpuinfo has no model name: the architecture then. */
static void cpu_name(char out[PROFILE_TEXT_BYTES])
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];
    *out = 0;
    while (file && !*out && fgets(line, sizeof line, file))
        if (!strncmp(line, "model name", 10) && strchr(line, ':'))
            snprintf(out, PROFILE_TEXT_BYTES, "%s", strchr(line, ':') + 2);
    if (file)
        fclose(file);
    out[strcspn(out, "\n")] = 0;
    struct utsname system;
    if (!*out && !uname(&system))
        snprintf(out, PROFILE_TEXT_BYTES, "%.64s", system.machine);
}

void machine_profile_init(struct machine_profile *profile)
{
    *profile = (struct machine_profile){.version = HEARTH_VERSION, .n_cores = parallel_cores()};
    profile->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    cpu_name(profile->cpu);
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(profile->date, sizeof profile->date, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

int machine_profile_is_of_this_machine(const struct machine_profile *profile)
{
    struct machine_profile here;
    machine_profile_init(&here);
    return !strcmp(here.cpu, profile->cpu) && here.n_cores == profile->n_cores && here.memory_bytes == profile->memory_bytes;
}

const struct profile_matmul *machine_profile_matmul(const struct machine_profile *profile, const char *format, int n_rows)
{
    for (int i = 0; i < profile->n_matmuls; i++)
        if (!strcmp(profile->matmuls[i].format, format) && profile->matmuls[i].n_rows == n_rows)
            return &profile->matmuls[i];
    return NULL;
}

double machine_profile_drives_rate(const struct machine_profile *profile, int depth)
{
    int at = 0;
    double sum = 0;
    while (at < PROFILE_DEPTHS - 1 && profile_depths[at] < depth)
        at++;
    for (int i = 0; i < profile->n_stores; i++)
        sum += profile->stores[i].bytes_per_second[at];
    return sum;
}

/* ---- writing ---- */

/* Readable, and still above 0 for the slowest disk. */
static json_t *rate(double bytes_per_second)
{
    return json_real(fmax(round(bytes_per_second / 1e5) / 1e4, 1e-4));
}

static json_t *store_json(const struct profile_store *store)
{
    json_t *by_depth = json_array();
    for (int i = 0; i < PROFILE_DEPTHS; i++)
        json_array_append_new(by_depth, json_pack("{s:i, s:o}", "depth", profile_depths[i], "gb_per_s", rate(store->bytes_per_second[i])));
    return json_pack("{s:s, s:b, s:b, s:I, s:o, s:f}", "dir", store->dir, "temporary_file", store->is_temporary, "o_direct",
                     store->is_direct, "piece_bytes", (json_int_t)store->piece_bytes, "read", by_depth, "latency_4k_us_p50",
                     round((double)store->latency_p50_ns / 100) / 10);
}

char *machine_profile_text(const struct machine_profile *p)
{
    json_t *matmuls = json_array(), *stores = json_array();
    for (int i = 0; i < p->n_matmuls; i++)
        json_array_append_new(matmuls, json_pack("{s:s, s:i, s:o}", "format", p->matmuls[i].format, "rows", p->matmuls[i].n_rows,
                                                 "gb_per_s", rate(p->matmuls[i].bytes_per_second)));
    for (int i = 0; i < p->n_stores; i++)
        json_array_append_new(stores, store_json(&p->stores[i]));
    json_t *root = json_pack("{s:i, s:s, s:s, s:s, s:i, s:I, s:b, s:o, s:o, s:s, s:o}", "profile_version", PROFILE_VERSION, "hearth",
                             p->version, "date", p->date, "cpu", p->cpu, "cores", p->n_cores, "memory_bytes", (json_int_t)p->memory_bytes,
                             "disturbed", p->is_disturbed, "memory_gb_per_s", rate(p->memory_bytes_per_second), "matmul", matmuls, "reader",
                             p->reader, "stores", stores);
    /* a folder's name that is not UTF-8 is the only thing jansson may refuse */
    char *json = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    char *text = json ? xasprintf("%s\n", json) : NULL;
    json_decref(root);
    free(json);
    return text;
}

/* path, or the default one; dir: of it. Both malloc'ed; NULL when there is no state directory. */
static char *place(const char *path, char **dir)
{
    if (!path) {
        *dir = paths_state_dir();
        return *dir ? xasprintf("%s/%s", *dir, PROFILE_FILE) : NULL;
    }
    const char *slash = strrchr(path, '/');
    *dir = slash == path ? xstrdup("/") : slash ? xasprintf("%.*s", (int)(slash - path), path) : xstrdup(".");
    return xstrdup(path);
}

static enum status no_place(struct error *err)
{
    return error_set(err, STATUS_NOT_FOUND,
                     "there is no state directory for the machine's profile: set HOME or XDG_STATE_HOME, or name a file");
}

enum status machine_profile_save(const struct machine_profile *profile, const char *path, struct error *err)
{
    char *dir, *full = place(path, &dir), *text = machine_profile_text(profile);
    enum status status = STATUS_OK;
    if (!full)
        status = no_place(err);
    else if (!text)
        status = error_set(err, STATUS_INVALID, "%s: a store's folder has a name that is not UTF-8", full);
    if (!status && !path)
        status = paths_make_dirs(dir, err);
    if (!status) {
        const char *slash = strrchr(full, '/');
        status = file_write_atomic(dir, slash ? slash + 1 : full, text, strlen(text), err);
    }
    free(text);
    free(full);
    free(dir);
    return status;
}

/* ---- reading ---- */

static enum status get_text(const json_t *object, const char *key, char *out, size_t bytes, const char *file, struct error *err)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text || strlen(text) >= bytes)
        return error_set(err, STATUS_INVALID, "%s: %s must be a text below %zu bytes", file, key, bytes);
    memcpy(out, text, strlen(text) + 1);
    return STATUS_OK;
}

/* A number above 0 times unit; nothing measured is 0. */
static enum status get_positive(const json_t *object, const char *key, double unit, double *out, const char *file, struct error *err)
{
    enum status status = json_get_number(object, key, -1, out, file, err);
    if (!status && (*out <= 0 || *out > 1e9))
        status = error_set(err, STATUS_INVALID, "%s: %s must be above 0 and at most 1e9", file, key);
    *out *= unit;
    return status;
}

static enum status get_array(const json_t *object, const char *key, int n_max, const json_t **out, const char *file, struct error *err)
{
    *out = json_object_get(object, key);
    if (!json_is_array(*out) || json_array_size(*out) > (size_t)n_max)
        return error_set(err, STATUS_INVALID, "%s: %s must be a list of at most %d", file, key, n_max);
    return STATUS_OK;
}

static enum status read_matmul(struct profile_matmul *out, const json_t *json, const char *file, struct error *err)
{
    int64_t rows = 0;
    enum status status = get_text(json, "format", out->format, sizeof out->format, file, err);
    if (!status)
        status = json_get_int(json, "rows", 1, 4096, 0, &rows, file, err);
    out->n_rows = (int)rows;
    return status ? status : get_positive(json, "gb_per_s", 1e9, &out->bytes_per_second, file, err);
}

static enum status read_store(struct profile_store *out, const json_t *json, const char *file, struct error *err)
{
    const json_t *read = NULL;
    int64_t number = 0;
    double latency_us = 0;
    enum status status = get_text(json, "dir", out->dir, sizeof out->dir, file, err);
    if (!status)
        status = json_get_bool(json, "temporary_file", 0, &out->is_temporary, file, err);
    if (!status)
        status = json_get_bool(json, "o_direct", 0, &out->is_direct, file, err);
    if (!status)
        status = json_get_int(json, "piece_bytes", 4096, 1 << 30, 0, &number, file, err);
    out->piece_bytes = (uint32_t)number;
    if (!status)
        status = get_positive(json, "latency_4k_us_p50", 1, &latency_us, file, err);
    out->latency_p50_ns = (uint64_t)(latency_us * 1e3);
    if (!status)
        status = get_array(json, "read", PROFILE_DEPTHS, &read, file, err);
    if (!status && json_array_size(read) != PROFILE_DEPTHS)
        status = error_set(err, STATUS_INVALID, "%s: read has %zu depths, expected %d", file, json_array_size(read), PROFILE_DEPTHS);
    for (int i = 0; i < PROFILE_DEPTHS && !status; i++) {
        const json_t *item = json_array_get(read, (size_t)i);
        status = json_get_int(item, "depth", profile_depths[i], profile_depths[i], 0, &number, file, err);
        if (!status)
            status = get_positive(item, "gb_per_s", 1e9, &out->bytes_per_second[i], file, err);
    }
    return status;
}

static enum status read_machine(struct machine_profile *p, const json_t *root, const char *file, struct error *err)
{
    static const struct {
        const char *key;
        size_t offset, bytes;
    } texts[] = {
        {"hearth", offsetof(struct machine_profile, version), sizeof p->version},
        {"date", offsetof(struct machine_profile, date), sizeof p->date},
        {"cpu", offsetof(struct machine_profile, cpu), sizeof p->cpu},
        {"reader", offsetof(struct machine_profile, reader), sizeof p->reader},
    };
    int64_t number = 0;
    enum status status = json_get_int(root, "profile_version", PROFILE_VERSION, PROFILE_VERSION, 0, &number, file, err);
    for (size_t i = 0; i < sizeof texts / sizeof *texts && !status; i++)
        status = get_text(root, texts[i].key, (char *)p + texts[i].offset, texts[i].bytes, file, err);
    if (!status)
        status = json_get_int(root, "cores", 1, 1 << 20, 0, &number, file, err);
    p->n_cores = (int)number;
    if (!status)
        status = json_get_int(root, "memory_bytes", 1, INT64_MAX, 0, &number, file, err);
    p->memory_bytes = (uint64_t)number;
    if (!status)
        status = json_get_bool(root, "disturbed", 0, &p->is_disturbed, file, err);
    return status ? status : get_positive(root, "memory_gb_per_s", 1e9, &p->memory_bytes_per_second, file, err);
}

static enum status read_lists(struct machine_profile *p, const json_t *root, const char *file, struct error *err)
{
    const json_t *matmuls = NULL, *stores = NULL;
    enum status status = get_array(root, "matmul", PROFILE_MATMULS_MAX, &matmuls, file, err);
    if (!status)
        status = get_array(root, "stores", BLOCK_STORES_MAX, &stores, file, err);
    p->n_matmuls = (int)json_array_size(matmuls);
    p->n_stores = (int)json_array_size(stores);
    for (int i = 0; !status && i < p->n_matmuls; i++)
        status = read_matmul(&p->matmuls[i], json_array_get(matmuls, (size_t)i), file, err);
    for (int i = 0; !status && i < p->n_stores; i++)
        status = read_store(&p->stores[i], json_array_get(stores, (size_t)i), file, err);
    return status;
}

enum status machine_profile_load(struct machine_profile *profile, const char *path, struct error *err)
{
    char *dir, *full = place(path, &dir);
    json_t *root = NULL;
    *profile = (struct machine_profile){0};
    enum status status = full ? json_read_file(&root, full, FILE_MAX_BYTES, err) : no_place(err);
    if (status == STATUS_NOT_FOUND && full)
        status = error_set(err, STATUS_NOT_FOUND, "%s: this machine was not measured yet: run hearth probe", full);
    if (!status)
        status = read_machine(profile, root, full, err);
    if (!status)
        status = read_lists(profile, root, full, err);
    json_decref(root);
    free(full);
    free(dir);
    return status;
}
