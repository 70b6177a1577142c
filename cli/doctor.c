/* hearth doctor: is this machine ready? Asks every check of node/system_checks.h and says what was found and what helps. */
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "common/paths.h"
#include "node/system_checks.h"

struct doctor_options {
    const char *model, *stores, *reader;
    int json;
};

static const struct option_row rows[] = {
    {"model", OPTION_TEXT, offsetof(struct doctor_options, model), .metavar = "DIR",
     .help = "a pack or a vendor folder: look at its files and the drive under them too (reads for about 2 s)"},
    {"store", OPTION_TEXT, offsetof(struct doctor_options, stores), .metavar = "DIR,...",
     .help = "folders, on several drives, with the pack's experts-NN files; default: the model's own folder"},
    {"reader", OPTION_CHOICE, offsetof(struct doctor_options, reader), "auto", .choices = "auto|io_uring|pread", .metavar = "KIND",
     .help = "how files are read"},
    {"json", OPTION_FLAG, offsetof(struct doctor_options, json), .help = "print one JSON object"},
};

static const char *const level_names[] = {[FINDING_OK] = "OK", [FINDING_WARNING] = "warning", [FINDING_PROBLEM] = "problem"};

/* What was found so far, in either form. */
struct report {
    json_t *checks; /* NULL: lines */
    int counts[3];  /* by level */
    char problems[256];
};

static void add_line(const char *name, const struct finding *finding)
{
    printf("%-8s %-16s %s\n", level_names[finding->level], name, finding->found);
    if (*finding->remedy)
        printf("%-25s -> %s\n", "", finding->remedy);
    fflush(stdout);
}

/* Names of folders need not be UTF-8, JSON must be. */
static json_t *any_text(const char *text)
{
    json_t *json = json_string(text);
    if (json)
        return json;
    char ascii[sizeof(struct finding)];
    snprintf(ascii, sizeof ascii, "%s", text);
    for (char *c = ascii; *c; c++)
        *c = *c & 0x80 ? '?' : *c;
    return json_string(ascii);
}

static void add(struct report *report, const char *name, const struct finding *finding)
{
    size_t used = strlen(report->problems);
    report->counts[finding->level]++;
    if (finding->level == FINDING_PROBLEM)
        snprintf(report->problems + used, sizeof report->problems - used, "%s%s", used ? ", " : "", name);
    if (!report->checks)
        add_line(name, finding);
    else
        json_array_append_new(report->checks, json_pack("{s:s, s:s, s:o, s:o}", "name", name, "level", level_names[finding->level], "found",
                                                        any_text(finding->found), "remedy", any_text(finding->remedy)));
}

static void print_end(struct report *report)
{
    if (!report->checks) {
        int warnings = report->counts[FINDING_WARNING], problems = report->counts[FINDING_PROBLEM];
        printf("\n%d OK, %d warning%s, %d problem%s\n", report->counts[FINDING_OK], warnings, warnings == 1 ? "" : "s", problems,
               problems == 1 ? "" : "s");
        return;
    }
    json_t *root = json_pack("{s:s, s:i, s:i, s:o}", "hearth", HEARTH_VERSION, "warnings", report->counts[FINDING_WARNING], "problems",
                             report->counts[FINDING_PROBLEM], "checks", report->checks);
    char *text = json_dumps(root, JSON_INDENT(2));
    puts(text);
    free(text);
    json_decref(root);
}

static enum status run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)arguments, (void)n_arguments;
    const struct doctor_options *o = options;
    struct drive_files files = {0};
    if (o->stores && !o->model)
        return command_usage(err, "--store needs --model: the pack says which files a store has");
    enum status status = o->model ? drive_files_open(&files, o->model, o->stores, err) : STATUS_OK;
    if (status)
        return status;
    struct system_view view;
    char *state_dir = paths_state_dir();
    system_view_init(&view, state_dir);
    view.files = o->model ? &files : NULL;
    view.reader = o->reader;
    struct report report = {.checks = o->json ? json_array() : NULL};
    for (int i = 0; i < n_system_checks; i++) {
        if (system_checks[i].is_of_drive && !view.files)
            continue;
        struct finding finding = {0};
        system_checks[i].look(&view, &finding);
        add(&report, system_checks[i].name, &finding);
    }
    print_end(&report);
    drive_files_close(&files);
    free(state_dir);
    return report.counts[FINDING_PROBLEM] ? error_set(err, STATUS_UNSUPPORTED, "this machine has a problem: %s", report.problems)
                                          : STATUS_OK;
}

const struct command doctor_command = {
    .name = "doctor",
    .arguments = "",
    .summary = "Check whether this machine is ready, and say what helps where it is not.",
    .details = "Exit code 1 when something cannot work; warnings alone give 0.",
    .options = rows,
    .n_options = sizeof rows / sizeof *rows,
    .options_bytes = sizeof(struct doctor_options),
    .run = run,
};
