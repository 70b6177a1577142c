#include "common/paths.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/memory.h"

char *paths_state_dir(void)
{
    /* the only getenv of the house: these two variables are the platform's, not ours */
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state && *state == '/')
        return xasprintf("%s/hearth", state);
    return home && *home == '/' ? xasprintf("%s/.local/state/hearth", home) : NULL;
}

enum status paths_make_dirs(const char *path, struct error *err)
{
    char *copy = xstrdup(path);
    enum status status = STATUS_OK;
    for (char *at = copy + !!*copy;; at++) {
        char c = *at;
        if (c && c != '/')
            continue;
        *at = 0;
        if (mkdir(copy, 0755) && errno != EEXIST)
            status = error_errno(err, STATUS_IO, "%s: cannot create the directory", copy);
        *at = c;
        if (!c || status)
            break;
    }
    free(copy);
    return status;
}
