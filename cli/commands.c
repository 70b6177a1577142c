/* The table of subcommands. */
#include "cli/commands.h"

const struct command *const commands[] = {
    NULL,
};
