/* A subcommand of `hearth` as data: help comes from its rows, main.c dispatches. */
#ifndef HEARTH_CLI_COMMAND_H
#define HEARTH_CLI_COMMAND_H

#include "common/error.h"
#include "common/options.h"

enum { EXIT_USAGE = 2, POSITIONAL_MAX = 8 };

struct command {
    const char *name;      /* "convert", or two words: "bench kernels" */
    const char *arguments; /* "SRC DST" */
    const char *summary;   /* one sentence for the list of commands */
    const char *details;   /* more sentences for its own help, or NULL */
    const struct option_row *options;
    int n_options;
    size_t options_bytes;  /* size of the struct the rows describe, at most COMMAND_OPTIONS_BYTES_MAX */
    int n_arguments_min, n_arguments_max;
    /* options points to the filled struct. Any failure: fill err and return its status; main prints it and exits with 1, or with 2 when the error came
     * from command_usage. */
    enum status (*run)(const void *options, const char **arguments, int n_arguments, struct error *err);
};

enum { COMMAND_OPTIONS_BYTES_MAX = 512 };

/* The table, in the order of the help; ends with a NULL. Every command file defines one `const struct command NAME_command`. */
extern const struct command *const commands[];

/* For run functions: a mistake in how the command was called (exit code 2 instead of 1). */
enum status command_usage(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
