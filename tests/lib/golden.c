#include "tests/lib/golden.h"

#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <jansson.h>

#include "common/json.h"
#include "common/memory.h"
#include "common/paths.h"

const char *const tiny_names[] = {"tiny-share", "tiny-fp8", "tiny-glm5", "tiny-groups", "tiny-pattern", NULL};

static void stop(const char *what, const char *why)
{
    fprintf(stderr, "test set-up failed: %s: %s\n", what, why);
    exit(1);
}

char *golden_path(char path[512], const char *folder, const char *file)
{
    snprintf(path, 512, "%s/tests/golden/%s%s%s", SOURCE_DIR, folder, *file ? "/" : "", file);
    return path;
}

const char *kindling_dir(void)
{
    return SOURCE_DIR "/models/kindling";
}

struct arrays {
    char *bytes;
    size_t length, data;
    json_t *header;
};

struct arrays *arrays_open(const char *path)
{
    struct arrays *a = xcalloc(1, sizeof *a);
    struct error err;
    if (file_read_all(&a->bytes, &a->length, path, (size_t)1 << 30, &err))
        stop(path, err.text);
    uint64_t header;
    memcpy(&header, a->bytes, 8);
    a->data = 8 + (size_t)header;
    a->header = json_loadb(a->bytes + 8, (size_t)header, 0, NULL);
    if (!a->header)
        stop(path, "bad header");
    return a;
}

void arrays_close(struct arrays **arrays)
{
    json_decref((*arrays)->header);
    free((*arrays)->bytes);
    free(*arrays);
    *arrays = NULL;
}

const void *arrays_find(struct arrays *a, size_t shape[2], const char *format, ...)
{
    char name[256];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    const json_t *entry = json_object_get(a->header, name), *dims = json_object_get(entry, "shape");
    if (!entry)
        return NULL;
    shape[0] = json_array_size(dims) > 0 ? (size_t)json_integer_value(json_array_get(dims, 0)) : 1;
    shape[1] = json_array_size(dims) > 1 ? (size_t)json_integer_value(json_array_get(dims, 1)) : 1;
    return a->bytes + a->data + json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 0));
}

char *temporary_folder(void)
{
    char *dir = xstrdup("/tmp/hearth-test-XXXXXX");
    if (!mkdtemp(dir))
        stop(dir, "mkdtemp");
    return dir;
}

char *temporary_copy(const char *folder)
{
    char *dir = temporary_folder(), command[2048];
    snprintf(command, sizeof command, "cp -r '%s'/. '%s' && chmod -R u+w '%s'", folder, dir, dir);
    if (system(command))
        stop(folder, "cp");
    return dir;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

void temporary_remove(char **folder)
{
    nftw(*folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(*folder);
    *folder = NULL;
}

void temporary_write(const char *folder, const char *path, const char *text)
{
    char full[512];
    struct error err;
    snprintf(full, sizeof full, "%s/%s", folder, path);
    *strrchr(full, '/') = 0;
    if (paths_make_dirs(full, &err))
        stop(full, err.text);
    full[strlen(full)] = '/';
    FILE *file = fopen(full, "w");
    if (!file || fputs(text, file) < 0 || fclose(file))
        stop(full, "cannot be written");
}

struct model *open_or_fail(const char *dir, const struct model_options *options)
{
    struct model *model;
    struct error err;
    if (model_open(&model, dir, options, &err))
        stop(dir, err.text);
    return model;
}
