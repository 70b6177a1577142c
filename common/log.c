#include "common/log.h"

#include <stdarg.h>
#include <stdio.h>

static enum log_level level_max = LOG_WARNING;

void log_set_level(enum log_level level)
{
    level_max = level;
}

void log_line(enum log_level level, const char *format, ...)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    if (level > level_max)
        return;
    char line[2048]; /* one write, so that lines of two threads do not mix */
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(stderr, "%s: %s\n", names[level], line);
}
