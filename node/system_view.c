/* What checks are made of: sentences in a finding, and looking into /proc and /sys. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "node/system_checks.h"

static void append(char *text, size_t bytes, const char *format, va_list args)
{
    size_t used = strlen(text);
    if (used && used + 3 < bytes)
        used += (size_t)snprintf(text + used, bytes - used, "; ");
    vsnprintf(text + used, bytes - used, format, args);
}

void finding_add(struct finding *finding, enum finding_level level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    append(finding->found, sizeof finding->found, format, args);
    va_end(args);
    finding->level = level > finding->level ? level : finding->level;
}

/* Several stores may have one and the same remedy. */
void finding_advise(struct finding *finding, const char *format, ...)
{
    char text[sizeof finding->remedy];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t used = strlen(finding->remedy);
    if (!strstr(finding->remedy, text))
        snprintf(finding->remedy + used, sizeof finding->remedy - used, "%s%s", used ? "; " : "", text);
}

FILE *view_open(const struct system_view *view, const char *path)
{
    char *full = xasprintf("%s%s", view->root, path);
    FILE *file = fopen(full, "re");
    free(full);
    return file;
}

int view_line(const struct system_view *view, const char *path, char *out, int out_bytes)
{
    FILE *file = view_open(view, path);
    int found = file && fgets(out, out_bytes, file);
    if (file)
        fclose(file);
    if (found)
        out[strcspn(out, "\n")] = 0;
    return found;
}

int view_value(const struct system_view *view, const char *path, const char *key, char *out, int out_bytes)
{
    FILE *file = view_open(view, path);
    char line[512];
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file))
        if (!strncmp(line, key, strlen(key))) {
            const char *value = line + strlen(key) + strspn(line + strlen(key), " \t:");
            snprintf(out, (size_t)out_bytes, "%.*s", (int)strcspn(value, "\n"), value);
            found = 1;
        }
    if (file)
        fclose(file);
    return found;
}
