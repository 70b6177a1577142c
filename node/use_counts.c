#include "node/use_counts.h"

#include <dirent.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/json.h"
#include "common/log.h"
#include "common/memory.h"
#include "common/paths.h"
#include "model/files.h"

enum { FILE_VERSION = 1, FILE_MAX_BYTES = 16 << 20 };

/* The file: this header, then n_layers times {i32 layer, f32 uses [n_experts]}; little-endian. */
struct header {
    char magic[8];
    uint32_t version, n_layers, n_experts, zero;
    char identity[32];
    uint64_t checksum; /* XXH3-64 of all that follows, seeded with that of the fields before */
};
_Static_assert(sizeof(struct header) == 64, "no gaps");

static const char MAGIC[8] = "HEARTHUC";

static size_t layer_bytes(int n_experts)
{
    return sizeof(int32_t) + (size_t)n_experts * sizeof(float);
}

static uint64_t checksum_of(const struct header *h, const uint8_t *body, size_t n)
{
    return XXH3_64bits_withSeed(body, n, XXH3_64bits(h, offsetof(struct header, checksum)));
}

void use_counts_init(struct use_counts *c, const char *dir, const char *identity, int layer_begin, int layer_end)
{
    struct error err = {0};
    memset(c, 0, sizeof *c);
    memcpy(c->identity, identity, sizeof c->identity);
    if (dir && !strcmp(dir, "none"))
        return;
    c->dir = dir ? xstrdup(dir) : paths_state_dir();
    if (c->dir && !paths_make_dirs(c->dir, &err)) {
        c->name = xasprintf("uses-%.32s-%d-%d", identity, layer_begin, layer_end);
        return;
    }
    log_line(LOG_WARNING, "use counts of experts are not kept: %s; --use-counts names a folder for them",
             c->dir ? err.text : "there is no state directory (HOME is not set)");
    use_counts_release(c);
}

void use_counts_release(struct use_counts *c)
{
    free(c->dir);
    free(c->name);
    c->dir = c->name = NULL;
}

static int is_sane(const float *uses, int n)
{
    for (int i = 0; i < n; i++)
        if (!isfinite(uses[i]) || uses[i] < 0)
            return 0;
    return 1;
}

/* Adds what the file says about layers that we own. */
static int read_body(const struct header *h, const uint8_t *body, const struct expert_files *files, float *uses)
{
    int found = 0;
    for (uint32_t i = 0; i < h->n_layers; i++, body += layer_bytes(files->n_experts)) {
        int32_t layer;
        memcpy(&layer, body, sizeof layer);
        for (int f = 0; f < files->n_files; f++) {
            float *into = uses + (size_t)f * (size_t)files->n_experts;
            if (files->files[f].layer != layer)
                continue;
            memcpy(into, body + sizeof layer, (size_t)files->n_experts * sizeof(float));
            if (is_sane(into, files->n_experts))
                found++;
            else
                memset(into, 0, (size_t)files->n_experts * sizeof(float));
        }
    }
    return found;
}

static int load_file(const struct use_counts *c, const char *name, const struct expert_files *files, float *uses)
{
    char *path = xasprintf("%s/%s", c->dir, name), *bytes = NULL;
    size_t n = 0;
    struct header h;
    struct error err;
    int found = 0;
    if (file_read_all(&bytes, &n, path, FILE_MAX_BYTES, &err)) {
        log_line(LOG_WARNING, "%s; it is passed over", err.text);
    } else {
        memcpy(&h, bytes, n < sizeof h ? n : sizeof h);
        const uint8_t *body = (const uint8_t *)bytes + sizeof h;
        if (n < sizeof h || memcmp(h.magic, MAGIC, sizeof MAGIC) || h.version != FILE_VERSION ||
            memcmp(h.identity, c->identity, sizeof h.identity) || h.n_experts != (uint32_t)files->n_experts ||
            n - sizeof h != h.n_layers * layer_bytes(files->n_experts) || h.checksum != checksum_of(&h, body, n - sizeof h))
            log_line(LOG_WARNING, "%s: damaged, or of another version; it is passed over and will be written anew", path);
        else
            found = read_body(&h, body, files, uses);
    }
    free(bytes);
    free(path);
    return found;
}

int use_counts_load(const struct use_counts *c, const struct expert_files *files, float *uses)
{
    memset(uses, 0, (size_t)(files->n_files * files->n_experts) * sizeof *uses);
    DIR *dir = c->dir ? opendir(c->dir) : NULL;
    if (!dir)
        return 0;
    int found = 0;
    char *prefix = xasprintf("uses-%.32s-", c->identity);
    /* Our own range last: it knows its layers best. */
    for (struct dirent *entry; (entry = readdir(dir));)
        if (!strncmp(entry->d_name, prefix, strlen(prefix)) && strcmp(entry->d_name, c->name) && !strchr(entry->d_name, '.'))
            found += load_file(c, entry->d_name, files, uses);
    closedir(dir);
    free(prefix);
    char *own = xasprintf("%s/%s", c->dir, c->name);
    if (!access(own, F_OK))
        found += load_file(c, c->name, files, uses);
    free(own);
    return found;
}

enum status use_counts_save(const struct use_counts *c, const struct expert_files *files, const float *uses, struct error *err)
{
    if (!c->dir)
        return STATUS_OK;
    struct header h = {.version = FILE_VERSION, .n_layers = (uint32_t)files->n_files, .n_experts = (uint32_t)files->n_experts};
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    memcpy(h.identity, c->identity, sizeof h.identity);
    size_t body_bytes = h.n_layers * layer_bytes(files->n_experts);
    uint8_t *bytes = xcalloc(sizeof h + body_bytes, 1), *at = bytes + sizeof h;
    for (int f = 0; f < files->n_files; f++) {
        int32_t layer = files->files[f].layer;
        memcpy(at, &layer, sizeof layer);
        memcpy(at + sizeof layer, uses + (size_t)f * (size_t)files->n_experts, (size_t)files->n_experts * sizeof(float));
        at += layer_bytes(files->n_experts);
    }
    h.checksum = checksum_of(&h, bytes + sizeof h, body_bytes);
    memcpy(bytes, &h, sizeof h);
    enum status status = file_write_atomic(c->dir, c->name, bytes, sizeof h + body_bytes, err);
    free(bytes);
    return status;
}
