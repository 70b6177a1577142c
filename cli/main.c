/* hearth: the person's command. Finds the subcommand, reads its options, runs it, turns an error into an exit code. */
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/command.h"
#include "common/check.h"
#include "common/clock.h"
#include "kernels/cpu_features.h"
#include "model/checksums.h"

static int error_is_usage;

enum status command_usage(struct error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    error_is_usage = 1;
    return err->status = STATUS_INVALID;
}

static void print_commands(FILE *to)
{
    fputs("hearth: run a GLM-5.x model on the machines you own.\n\nusage: hearth COMMAND [arguments] [options]\n\ncommands:\n", to);
    for (const struct command *const *c = commands; *c; c++)
        fprintf(to, "  %-14s %s\n", (*c)->name, (*c)->summary);
    fputs("\nhearth COMMAND --help tells more; hearth --version prints the version.\n", to);
}

static void print_help(const struct command *c, FILE *to)
{
    fprintf(to, "usage: hearth %s%s%s%s\n\n%s\n", c->name, *c->arguments ? " " : "", c->arguments, c->n_options ? " [options]" : "", c->summary);
    if (c->details)
        fprintf(to, "%s\n", c->details);
    if (c->n_options) {
        fputs("\noptions:\n", to);
        options_print_help(c->options, c->n_options, to);
    }
}

/* Words of the command's name that argv starts with, 0 when it is another command. */
static int match(const struct command *c, int argc, char **argv)
{
    const char *space = strchr(c->name, ' ');
    size_t first = space ? (size_t)(space - c->name) : strlen(c->name);
    if (strlen(argv[1]) != first || strncmp(argv[1], c->name, first))
        return 0;
    if (!space)
        return 1;
    return argc > 2 && !strcmp(argv[2], space + 1) ? 2 : 0;
}

static int run(const struct command *c, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            print_help(c, stdout);
            return EXIT_SUCCESS;
        } else if (!strcmp(argv[i], "--")) {
            break;
        }
    CHECK(c->options_bytes <= COMMAND_OPTIONS_BYTES_MAX);
    _Alignas(max_align_t) char options[COMMAND_OPTIONS_BYTES_MAX] = {0};
    const char *arguments[POSITIONAL_MAX];
    int n_arguments;
    struct error err = {0};
    enum status status = options_parse(c->options, c->n_options, argc, argv, options, arguments, c->n_arguments_max, &n_arguments, &err);
    if (status)
        error_is_usage = 1;
    else if (n_arguments < c->n_arguments_min)
        status = command_usage(&err, "missing argument: %s", c->arguments);
    if (!status)
        status = cpu_check_minimum(&err);
    if (!status)
        status = c->run(options, arguments, n_arguments, &err);
    if (!status && (fflush(stdout) || ferror(stdout)))
        status = error_errno(&err, STATUS_IO, "cannot write to standard output");
    if (!status)
        return EXIT_SUCCESS;
    fprintf(stderr, "hearth %s: %s\n", c->name, err.text);
    if (error_is_usage)
        fprintf(stderr, "hearth %s --help tells how to call it.\n", c->name);
    return error_is_usage ? EXIT_USAGE : EXIT_FAILURE;
}

/* A line that is rewritten five times a second: the first opening of a large vendor folder takes minutes. */
static void show_checksums(uint64_t done_bytes, uint64_t total_bytes)
{
    static uint64_t shown_ns;
    uint64_t now_ns = clock_now_ns(clock_monotonic());
    if (done_bytes < total_bytes && now_ns - shown_ns < 200000000)
        return;
    shown_ns = now_ns;
    if (done_bytes < total_bytes)
        fprintf(stderr, "\r\033[K%5.1f%%  reading %.1f GB of weights once for their checksums", 100.0 * (double)done_bytes / (double)total_bytes,
                (double)total_bytes / 1e9);
    else
        fputs("\r\033[K", stderr);
    fflush(stderr);
}

int main(int argc, char **argv)
{
    if (isatty(STDERR_FILENO))
        checksums_set_report(show_checksums);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error on stdout, with a sentence */
    if (argc < 2) {
        print_commands(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_commands(stdout);
        return EXIT_SUCCESS;
    }
    if (!strcmp(argv[1], "--version")) {
        puts("hearth " HEARTH_VERSION);
        return EXIT_SUCCESS;
    }
    for (const struct command *const *c = commands; *c; c++) {
        int words = match(*c, argc, argv);
        if (words)
            return run(*c, argc - words, argv + words);
    }
    fprintf(stderr, "hearth: unknown command '%s'; hearth --help lists them.\n", argv[1]);
    return EXIT_USAGE;
}
