/* hearth-node: one machine's stage of the pipeline. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/config_file.h"
#include "common/log.h"
#include "node/stage_loop.h"

enum { EXIT_USAGE = 2 };

int main(int argc, char **argv)
{
    struct node_options options;
    struct error err = {0};
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            puts("usage: hearth-node --model DIR --name NAME --coordinator ENDPOINT [options]\n\nOwns a range of layers and runs rows "
                 "through them.\n\noptions:");
            options_print_help(node_option_rows, n_node_option_rows, stdout);
            return EXIT_SUCCESS;
        }
    if (config_options_parse(node_option_rows, n_node_option_rows, "node", argc, argv, &options, &err)) {
        fprintf(stderr, "hearth-node: %s\n", err.text);
        return EXIT_USAGE;
    }
    log_set_level_by_name(options.log_level);
    if (node_run(&options, &err)) {
        fprintf(stderr, "hearth-node: %s\n", err.text);
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
