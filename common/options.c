#include "common/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

static enum status parse_whole(const struct option_row *row, const char *text, int64_t *out, struct error *err)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    int shift = 0;
    if (row->type == OPTION_SIZE && *end) {
        static const char units[] = "KMGT";
        const char *unit = strchr(units, *end & ~0x20);
        if (unit && *unit) {
            shift = 10 * (int)(unit - units + 1);
            end++;
        }
    }
    if (end == text || *end || errno)
        return error_set(err, STATUS_INVALID, "--%s: '%s' is not a %s", row->name, text,
                         row->type == OPTION_SIZE ? "size (a number, then K, M, G or T)" : "whole number");
    double scaled = ldexp((double)value, shift);
    if (scaled < row->min || scaled > row->max)
        return error_set(err, STATUS_INVALID, "--%s: %s is outside %.0f to %.0f", row->name, text, row->min, row->max);
    *out = (int64_t)value * ((int64_t)1 << shift);
    return STATUS_OK;
}

static enum status parse_number(const struct option_row *row, const char *text, double *out, struct error *err)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value))
        return error_set(err, STATUS_INVALID, "--%s: '%s' is not a number", row->name, text);
    if (value < row->min || value > row->max)
        return error_set(err, STATUS_INVALID, "--%s: %s is outside %g to %g", row->name, text, row->min, row->max);
    *out = value;
    return STATUS_OK;
}

static int is_choice(const char *choices, const char *text)
{
    size_t length = strcspn(text, "|");
    if (text[length])
        return 0;
    for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (length && !strncmp(at, text, length) && (at[length] == '|' || !at[length]))
            return 1;
    return 0;
}

static enum status parse_flag(const struct option_row *row, const char *text, int *out, struct error *err)
{
    static const char *const words[] = {"no", "yes", "off", "on", "false", "true", "0", "1"};
    for (int i = 0; i < 8; i++)
        if (!strcmp(text, words[i])) {
            *out = i % 2;
            return STATUS_OK;
        }
    return error_set(err, STATUS_INVALID, "--%s: '%s' is neither yes nor no", row->name, text);
}

enum status options_set(const struct option_row *row, const char *text, void *out, struct error *err)
{
    void *member = (char *)out + row->offset;
    switch (row->type) {
    case OPTION_FLAG:
        return parse_flag(row, text, member, err);
    case OPTION_INT:
    case OPTION_SIZE:
        return parse_whole(row, text, member, err);
    case OPTION_NUMBER:
        return parse_number(row, text, member, err);
    case OPTION_CHOICE:
        if (!is_choice(row->choices, text))
            return error_set(err, STATUS_INVALID, "--%s: '%s' is not one of %s", row->name, text, row->choices);
        /* fall through */
    case OPTION_TEXT:
    case OPTION_SECRET:
        *(const char **)member = text;
        return STATUS_OK;
    }
    CHECK(0);
}

static void set_default(const struct option_row *row, void *out)
{
    void *member = (char *)out + row->offset;
    struct error err;
    if (row->type == OPTION_FLAG)
        *(int *)member = 0;
    else if (row->value)
        CHECK(options_set(row, row->value, out, &err) == STATUS_OK);
    else if (row->type == OPTION_TEXT || row->type == OPTION_SECRET || row->type == OPTION_CHOICE)
        *(const char **)member = NULL;
    else
        *(int64_t *)member = 0; /* the bits of 0.0 too */
}

const struct option_row *options_find(const struct option_row *rows, int n_rows, const char *name, size_t length)
{
    for (int i = 0; i < n_rows; i++)
        if (strlen(rows[i].name) == length && !strncmp(rows[i].name, name, length))
            return &rows[i];
    return NULL;
}

void options_set_defaults(const struct option_row *rows, int n_rows, void *out)
{
    for (int i = 0; i < n_rows; i++)
        set_default(&rows[i], out);
}

enum status options_parse(const struct option_row *rows, int n_rows, int argc, char **argv, void *out, const char **positional,
                          int n_positional_max, int *n_positional, struct error *err)
{
    options_set_defaults(rows, n_rows, out);
    return options_parse_given(rows, n_rows, argc, argv, out, positional, n_positional_max, n_positional, err);
}

enum status options_parse_given(const struct option_row *rows, int n_rows, int argc, char **argv, void *out, const char **positional,
                                int n_positional_max, int *n_positional, struct error *err)
{
    *n_positional = 0;
    int only_positional = 0;
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];
        if (only_positional || argument[0] != '-' || !argument[1]) {
            if (*n_positional == n_positional_max)
                return error_set(err, STATUS_INVALID, "unexpected argument '%s'", argument);
            positional[(*n_positional)++] = argument;
            continue;
        }
        if (!strcmp(argument, "--")) {
            only_positional = 1;
            continue;
        }
        const char *name = argument + 1 + (argument[1] == '-'), *equals = strchr(name, '=');
        const struct option_row *row = argument[1] == '-' ? options_find(rows, n_rows, name, equals ? (size_t)(equals - name) : strlen(name)) : NULL;
        if (!row)
            return error_set(err, STATUS_INVALID, "unknown option '%s'", argument);
        if (row->type == OPTION_FLAG && equals)
            return error_set(err, STATUS_INVALID, "--%s takes no value", row->name);
        const char *value = equals ? equals + 1 : row->type == OPTION_FLAG ? "yes" : NULL;
        if (!value) {
            if (i + 1 == argc)
                return error_set(err, STATUS_INVALID, "--%s needs a value (%s)", row->name, row->metavar);
            value = argv[++i];
        }
        enum status status = options_set(row, value, out, err);
        if (status)
            return status;
    }
    return STATUS_OK;
}

void options_print_help(const struct option_row *rows, int n_rows, FILE *to)
{
    size_t width = 0;
    for (int i = 0; i < n_rows; i++) {
        size_t w = strlen(rows[i].name) + (rows[i].metavar ? strlen(rows[i].metavar) + 1 : 0);
        width = w > width ? w : width;
    }
    for (int i = 0; i < n_rows; i++) {
        const struct option_row *row = &rows[i];
        int used = fprintf(to, "  --%s%s%s", row->name, row->metavar ? " " : "", row->metavar ? row->metavar : "");
        fprintf(to, "%*s%s", (int)width + 6 - used, "", row->help);
        if (row->choices)
            fprintf(to, " (%s)", row->choices);
        if (row->value)
            fprintf(to, " [%s]", row->value);
        fputc('\n', to);
    }
}
