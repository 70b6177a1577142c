#include "common/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static enum log_level level_max = LOG_WARNING;

void log_set_level(enum log_level level)
{
    level_max = level;
}

static const char *const names[] = {"error", "warning", "info", "debug"};

void log_set_level_by_name(const char *name)
{
    for (int i = LOG_ERROR; i <= LOG_DEBUG; i++)
        if (!strcmp(name, names[i]))
            level_max = (enum log_level)i;
}

void log_line(enum log_level level, const char *format, ...)
{
    if (level > level_max)
        return;
    char line[2048]; /* one write, so that lines of two threads do not mix */
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "%s: %s\n", names[level], line);
}
