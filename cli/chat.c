/* hearth chat: a conversation in this process or with a coordinator, question after question from standard input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/remote_chat.h"

struct chat_options {
    struct conversation_options conversation; /* first: its rows' offsets count from here */
    const char *api_key_file;
};

/* Either a model in this process or a coordinator. */
struct partner {
    int is_remote;
    struct conversation local;
    struct remote_chat remote;
};

static enum status partner_open(struct partner *p, const char *where, const struct chat_options *o, struct error *err)
{
    p->is_remote = client_is_url(where);
    if (!p->is_remote)
        return conversation_open(&p->local, where, &o->conversation, err);
    enum status status = remote_chat_open(&p->remote, where, o->api_key_file, &o->conversation, err);
    if (status)
        remote_chat_close(&p->remote);
    return status;
}

static enum status partner_ask(struct partner *p, const char *question, struct error *err)
{
    return p->is_remote ? remote_chat_ask(&p->remote, question, err) : conversation_ask(&p->local, question, err);
}

static void partner_close(struct partner *p)
{
    if (p->is_remote)
        remote_chat_close(&p->remote);
    else
        conversation_close(&p->local);
}

static enum status run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)n_arguments;
    struct partner partner;
    enum status status = partner_open(&partner, arguments[0], options, err);
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
            status = partner_ask(&partner, line, err);
    }
    free(line);
    partner_close(&partner);
    return status;
}

static const struct option_row options[] = {
    {"api-key-file", OPTION_TEXT, offsetof(struct chat_options, api_key_file), .metavar = "FILE",
     .help = "with a URL: file whose first line is the API key"},
    CONVERSATION_OPTION_ROWS,
};

const struct command chat_command = {
    .name = "chat",
    .arguments = "MODEL|URL",
    .summary = "Talk with a model in this process, or with a cluster.",
    .details = "One question a line. MODEL is a pack (hearth convert) or a vendor folder; URL is a coordinator's, http://HOST:PORT.",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .options_bytes = sizeof(struct chat_options),
    .n_arguments_min = 1,
    .n_arguments_max = 1,
    .run = run,
};
