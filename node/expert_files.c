#include "node/expert_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/check.h"
#include "common/log.h"
#include "common/memory.h"
#include "model/pack.h"

uint64_t expert_record_offset(const struct expert_file *file, int expert)
{
    CHECK(expert >= 0 && expert < file->layout->n_records);
    return PACK_HEADER_BYTES + (uint64_t)expert * file->layout->record_bytes;
}

static enum status split_stores(struct expert_files *files, const char *stores, const char *own, struct error *err)
{
    if (!stores || !*stores) {
        files->store[files->n_stores++] = xstrdup(own);
        return STATUS_OK;
    }
    for (const char *at = stores;; at++) {
        size_t length = strcspn(at, ",");
        if (!length)
            return error_set(err, STATUS_INVALID, "--store %s: an empty folder name", stores);
        if (files->n_stores == BLOCK_STORES_MAX)
            return error_set(err, STATUS_INVALID, "--store %s: more than %d folders", stores, BLOCK_STORES_MAX);
        files->store[files->n_stores++] = xasprintf("%.*s", (int)length, at);
        at += length;
        if (!*at)
            return STATUS_OK;
    }
}

/* The checked file, opened again past the page cache. The two must be the same file. */
static void reopen_direct(struct expert_file *file, int store, const char *path)
{
    struct stat checked, direct;
    int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && !fstat(file->fd[store], &checked) && !fstat(fd, &direct) && checked.st_dev == direct.st_dev &&
        checked.st_ino == direct.st_ino) {
        close(file->fd[store]);
        file->fd[store] = fd;
        return;
    }
    if (fd >= 0)
        close(fd);
    log_line(LOG_WARNING, "%s: this file system does not read past the page cache (O_DIRECT); reads cost more CPU and memory bandwidth",
             path);
}

static enum status open_in_store(struct expert_files *files, struct expert_file *file, const struct pack_part *part, int store,
                                 struct error *err)
{
    char *path = xasprintf("%s/%s", files->store[store], file->name);
    enum status status = pack_part_open(part, path, &file->fd[store], err);
    if (!status)
        reopen_direct(file, store, path);
    free(path);
    return status;
}

static enum status open_file(struct expert_files *files, struct expert_file *file, const struct pack_part *part, struct error *err)
{
    int found = 0;
    for (int store = 0; store < files->n_stores; store++) {
        struct error failure = {0};
        enum status status = open_in_store(files, file, part, store, &failure);
        if (status && status != STATUS_NOT_FOUND)
            return error_set(err, status, "%s", failure.text);
        found += !status;
    }
    if (found)
        return STATUS_OK;
    struct text folders = {0};
    for (int store = 0; store < files->n_stores; store++) {
        text_append_string(&folders, store ? ", " : "");
        text_append_string(&folders, files->store[store]);
    }
    error_set(err, STATUS_NOT_FOUND, "layer %d: %s is in none of the folders %s: copy it there, or name its folder with --store",
              file->layer, file->name, folders.bytes);
    text_free(&folders);
    return STATUS_NOT_FOUND;
}

enum status expert_files_open(struct expert_files *files, const struct weights_source *source, int layer_begin, int layer_end,
                              const char *stores, struct error *err)
{
    const struct pack *pack = weights_source_pack(source);
    const struct model_config *config = weights_source_config(source);
    memset(files, 0, sizeof *files);
    if (!pack)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: experts of a vendor folder cannot be read one by one: make a pack of it (hearth convert), or give enough "
                         "--memory for all of them",
                         weights_source_dir(source));
    files->n_experts = config->n_experts;
    files->files = xcalloc((size_t)(layer_end - layer_begin), sizeof *files->files);
    enum status status = split_stores(files, stores, weights_source_dir(source), err);
    for (int layer = layer_begin; layer < layer_end && !status; layer++) {
        if (!config->is_sparse[layer])
            continue;
        const struct pack_part *part = pack_find(pack, PART_EXPERTS, layer);
        struct expert_file *file = &files->files[files->n_files++];
        *file = (struct expert_file){.layer = layer, .layout = &part->layout, .checksums = part->checksums};
        memcpy(file->name, part->file, sizeof file->name);
        for (int store = 0; store < BLOCK_STORES_MAX; store++)
            file->fd[store] = -1;
        if (part->layout.record_bytes > files->record_bytes_max)
            files->record_bytes_max = part->layout.record_bytes;
        status = open_file(files, file, part, err);
    }
    if (status)
        expert_files_close(files);
    return status;
}

void expert_files_close(struct expert_files *files)
{
    for (int i = 0; i < files->n_files; i++)
        for (int store = 0; store < files->n_stores; store++)
            if (files->files[i].fd[store] >= 0)
                close(files->files[i].fd[store]);
    for (int store = 0; store < files->n_stores; store++)
        free(files->store[store]);
    free(files->files);
    memset(files, 0, sizeof *files);
}
