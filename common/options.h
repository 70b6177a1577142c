/* Options as data: one row per option drives parsing, defaults, bounds and the help text. The only place that looks at the command line. */
#ifndef HEARTH_COMMON_OPTIONS_H
#define HEARTH_COMMON_OPTIONS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/error.h"

enum option_type {
    OPTION_FLAG,   /* int: 1 when given */
    OPTION_INT,    /* int64_t within [min, max] */
    OPTION_SIZE,   /* int64_t bytes; K, M, G, T are powers of 1024 */
    OPTION_NUMBER, /* double within [min, max] */
    OPTION_TEXT,   /* const char *, borrowed from argv */
    OPTION_SECRET, /* like OPTION_TEXT, and its value never appears in a sentence */
    OPTION_CHOICE, /* const char *, one of `choices` ("a|b|c") */
};

struct option_row {
    const char *name;     /* without the dashes: "threads" */
    enum option_type type;
    size_t offset;        /* of the member in the command's options struct, whose type follows from `type` */
    const char *value;    /* default as text, NULL: 0 or NULL */
    double min, max;      /* OPTION_INT, OPTION_SIZE, OPTION_NUMBER */
    const char *choices;  /* OPTION_CHOICE */
    const char *metavar;  /* what the help calls the value: "N", "DIR" */
    const char *help;     /* one sentence */
};

/* Sets defaults, then reads argv[1..]: --name value, --name=value; "--" ends options. Positional arguments are collected in order.
 * Fails (STATUS_INVALID) naming the option, what was given and what is allowed; also when there are more than n_positional_max of them. */
enum status options_parse(const struct option_row *rows, int n_rows, int argc, char **argv, void *out, const char **positional,
                          int n_positional_max, int *n_positional, struct error *err);

/* The parts of options_parse, for those who read values from elsewhere too (common/config_file.h). options_parse_given sets no defaults. */
void options_set_defaults(const struct option_row *rows, int n_rows, void *out);
enum status options_parse_given(const struct option_row *rows, int n_rows, int argc, char **argv, void *out, const char **positional,
                                int n_positional_max, int *n_positional, struct error *err);

/* One value as text; the sentence of a failure begins with "--name". OPTION_FLAG: yes, no, on, off, true, false, 1 or 0. */
enum status options_set(const struct option_row *row, const char *text, void *out, struct error *err);

/* NULL: no row has that name of length bytes. */
const struct option_row *options_find(const struct option_row *rows, int n_rows, const char *name, size_t length);

/* The options part of a help text, aligned. */
void options_print_help(const struct option_row *rows, int n_rows, FILE *to);

#endif
