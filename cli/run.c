/* hearth run: one question, one answer, in this process. */
#include "cli/commands.h"
#include "cli/conversation.h"

static enum status run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)n_arguments;
    struct conversation conversation;
    enum status status = conversation_open(&conversation, arguments[0], options, err);
    if (status)
        return status;
    status = conversation_ask(&conversation, arguments[1], err);
    if (!status)
        status = routing_recorder_close(&conversation.recorder, err);
    conversation_close(&conversation);
    return status;
}

static const struct option_row options[] = {
    CONVERSATION_OPTION_ROWS,
    {"trace", OPTION_TEXT, offsetof(struct conversation_options, trace), .metavar = "FILE",
     .help = "record which experts the rows choose, for hearth bench cache"},
};

const struct command run_command = {
    .name = "run",
    .arguments = "MODEL \"question\"",
    .summary = "Ask a model one question, with everything in this process.",
    .details = "MODEL is a pack (hearth convert) or a vendor folder. The answer goes to standard output, reasoning dimmed on a terminal.",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .options_bytes = sizeof(struct conversation_options),
    .n_arguments_min = 2,
    .n_arguments_max = 2,
    .run = run,
};
