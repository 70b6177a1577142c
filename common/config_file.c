#include "common/config_file.h"

#include <errno.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"

enum { ROWS_MAX = 64, FILE_LINES_MAX = 10000 };

struct reading {
    const struct option_row *rows;
    int n_rows;
    const char *section, *path;
    FILE *file;
    void *out;
    int line;
    uint64_t seen; /* a bit for each row */
    enum status status;
    struct error *err;
};

/* Texts of files, reachable for ever: options borrow them. */
static struct kept {
    struct kept *next;
    char text[];
} * kept_texts;

static const char *keep(const char *text)
{
    struct kept *kept = xcalloc(1, sizeof *kept + strlen(text) + 1);
    memcpy(kept->text, text, strlen(text) + 1);
    kept->next = kept_texts;
    kept_texts = kept;
    return kept->text;
}

static int fail(struct reading *r, const char *what, const char *name)
{
    r->status = error_set(r->err, STATUS_INVALID, "%s:%d: %s%s%.80s%s", r->path, r->line, what, *name ? " '" : "", name, *name ? "'" : "");
    return 0;
}

static int is_own_section(const struct reading *r, const char *line)
{
    size_t length = strlen(r->section);
    return !strncmp(line, r->section, length) && line[length] == ']';
}

/* fgets for inih, which knows no line numbers, cuts long lines silently and does not tell of sections without names. */
static char *read_line(char *to, int bytes, void *reading)
{
    struct reading *r = reading;
    if (r->status || !fgets(to, bytes, r->file))
        return NULL;
    r->line++;
    size_t length = strlen(to);
    if (r->line > FILE_LINES_MAX || (length && to[length - 1] != '\n' && !feof(r->file))) {
        fail(r, r->line > FILE_LINES_MAX ? "too many lines" : "a line that is too long, or a zero byte", "");
        return NULL;
    }
    const char *begin = to + strspn(to, " \t\r\n");
    if (*begin == '[' && !is_own_section(r, begin + 1)) {
        to[strcspn(to, "\r\n")] = 0;
        fail(r, "unknown section", begin);
        return NULL;
    }
    if (begin > to && *begin && !strchr("#;[", *begin)) {
        fail(r, "a line that begins with a space: values do not go on over lines", "");
        return NULL;
    }
    return to;
}

static int on_value(void *reading, const char *section, const char *name, const char *value)
{
    struct reading *r = reading;
    (void)section;
    if (r->status)
        return 0;
    char flag[64];
    size_t length = strlen(name);
    const struct option_row *row = NULL;
    if (length < sizeof flag) {
        for (size_t i = 0; i <= length; i++)
            flag[i] = name[i] == '_' ? '-' : name[i];
        row = options_find(r->rows, r->n_rows, flag, length);
    }
    if (!row)
        return fail(r, "unknown option", name);
    if (!strcmp(row->name, "config"))
        return fail(r, "one file cannot name another:", name);
    uint64_t bit = UINT64_C(1) << (row - r->rows);
    if (r->seen & bit)
        return fail(r, "given twice:", name);
    r->seen |= bit;
    r->status = options_set(row, keep(value), r->out, r->err);
    if (r->status)
        error_wrap(r->err, "%s:%d", r->path, r->line);
    return !r->status;
}

static enum status read_file(struct reading *r)
{
    r->file = fopen(r->path, "re");
    if (!r->file)
        return error_errno(r->err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%s: cannot open", r->path);
    int line = ini_parse_stream(read_line, r, on_value, r);
    if (!r->status && ferror(r->file))
        r->status = error_errno(r->err, STATUS_IO, "%s: cannot read", r->path);
    if (!r->status && line) {
        r->line = line > 0 ? line : r->line;
        fail(r, "expected name = value", "");
    }
    fclose(r->file);
    return r->status;
}

static enum status parse_flags(const struct option_row *rows, int n_rows, int argc, char **argv, void *out, struct error *err)
{
    int n_positional;
    return options_parse_given(rows, n_rows, argc, argv, out, NULL, 0, &n_positional, err);
}

enum status config_options_parse(const struct option_row *rows, int n_rows, const char *section, int argc, char **argv, void *out,
                                 struct error *err)
{
    CHECK(n_rows <= ROWS_MAX);
    options_set_defaults(rows, n_rows, out);
    enum status status = parse_flags(rows, n_rows, argc, argv, out, err);
    const struct option_row *config = options_find(rows, n_rows, "config", strlen("config"));
    CHECK(config && config->type == OPTION_TEXT);
    const char *path = *(const char **)((char *)out + config->offset);
    if (status || !path)
        return status;
    struct reading r = {.rows = rows, .n_rows = n_rows, .section = section, .path = path, .out = out, .err = err};
    options_set_defaults(rows, n_rows, out);
    status = read_file(&r);
    return status ? status : parse_flags(rows, n_rows, argc, argv, out, err);
}
