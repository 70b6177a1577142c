/* Where a person's machine keeps our own small files. */
#ifndef HEARTH_COMMON_PATHS_H
#define HEARTH_COMMON_PATHS_H

#include "common/error.h"

/* ${XDG_STATE_HOME:-~/.local/state}/hearth, malloc'ed; NULL when neither variable is set. Nothing is created. */
char *paths_state_dir(void);

/* mkdir -p. */
enum status paths_make_dirs(const char *path, struct error *err);

#endif
