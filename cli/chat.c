/* hearth chat: a conversation in this process, question after question from standard input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/conversation.h"

static enum status run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)n_arguments;
    struct conversation conversation;
    enum status status = conversation_open(&conversation, arguments[0], options, err);
    if (status)
        return status;
    int is_terminal = isatty(STDIN_FILENO);
    if (is_terminal)
        fputs("Ask something. Ctrl-C ends an answer, Ctrl-D the conversation.\n", stderr);
    char *line = NULL;
    size_t capacity = 0;
    while (!status) {
        if (is_terminal) {
            fputs("> ", stderr);
            fflush(stderr);
        }
        if (getline(&line, &capacity, stdin) < 0)
            break;
        line[strcspn(line, "\r\n")] = 0;
        if (*line)
            status = conversation_ask(&conversation, line, err);
    }
    free(line);
    conversation_close(&conversation);
    return status;
}

static const struct option_row options[] = {CONVERSATION_OPTION_ROWS};

const struct command chat_command = {
    .name = "chat",
    .arguments = "MODEL",
    .summary = "Talk with a model, with everything in this process.",
    .details = "One question a line. MODEL is a pack (hearth convert) or a vendor folder.",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .options_bytes = sizeof(struct conversation_options),
    .n_arguments_min = 1,
    .n_arguments_max = 1,
    .run = run,
};
