/* hearth-coordinator: gives nodes their layers and answers people. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config_file.h"
#include "common/log.h"
#include "coordinator/coordinator_loop.h"

enum { EXIT_USAGE = 2 };

int main(int argc, char **argv)
{
    struct coordinator_options options;
    struct error err = {0};
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            puts("usage: hearth-coordinator --model DIR [options]\n\nGives the nodes of a cluster their layers and serves the OpenAI "
                 "API.\n\noptions:");
            options_print_help(coordinator_option_rows, n_coordinator_option_rows, stdout);
            return EXIT_SUCCESS;
        }
    if (config_options_parse(coordinator_option_rows, n_coordinator_option_rows, "coordinator", argc, argv, &options, &err)) {
        fprintf(stderr, "hearth-coordinator: %s\n", err.text);
        return EXIT_USAGE;
    }
    log_set_level_by_name(options.log_level);
    if (coordinator_run(&options, &err)) {
        fprintf(stderr, "hearth-coordinator: %s\n", err.text);
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
