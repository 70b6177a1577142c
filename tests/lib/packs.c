#include "tests/lib/packs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/lib/golden.h"
#include "tests/lib/raw_checkpoint.h"

const char *const checkpoint_names[] = {"kindling", "tiny-share", "tiny-fp8", "tiny-glm5", "tiny-groups", "tiny-pattern", NULL};

char *checkpoint_path(char path[512], const char *name)
{
    if (strcmp(name, "kindling"))
        return golden_path(path, name, "checkpoint");
    snprintf(path, 512, "%s", kindling_dir());
    return path;
}

enum status try_convert(const char *source, const char *target, enum precision precision, struct error *err)
{
    struct convert_options options = {.precision = precision};
    struct convert_result result;
    return convert_model(source, target, &options, &result, err);
}

char *make_pack(const char *source, enum precision precision, char identity[33])
{
    char *folder = temporary_folder();
    struct convert_options options = {.precision = precision};
    struct convert_result result;
    struct error err = {0};
    if (convert_model(source, folder, &options, &result, &err))
        fail_msg("%s", err.text);
    if (identity)
        memcpy(identity, result.identity, 33);
    return folder;
}

static int count_files(const char *folder)
{
    DIR *d = opendir(folder);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));)
        n += entry->d_name[0] != '.';
    closedir(d);
    return n;
}

void assert_same_folders(const char *a, const char *b)
{
    assert_int_equal(count_files(a), count_files(b));
    DIR *d = opendir(a);
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));) {
        uint64_t n, m;
        if (entry->d_name[0] == '.')
            continue;
        uint8_t *x = read_file(a, entry->d_name, &n), *y = read_file(b, entry->d_name, &m);
        if (n != m || memcmp(x, y, n))
            fail_msg("%s differs between %s and %s", entry->d_name, a, b);
        free(x);
        free(y);
    }
    closedir(d);
}
