/* A conversation with a coordinator's API instead of a model in this process. */
#ifndef HEARTH_CLI_REMOTE_CHAT_H
#define HEARTH_CLI_REMOTE_CHAT_H

#include <jansson.h>

#include "cli/client.h"
#include "cli/conversation.h"

struct remote_chat {
    struct client client;
    const struct conversation_options *options;
    json_t *messages;
};

/* The caller closes it in either case. */
enum status remote_chat_open(struct remote_chat *chat, const char *url, const char *key_file, const struct conversation_options *options,
                             struct error *err);
void remote_chat_close(struct remote_chat *chat);

/* As conversation_ask: streams the answer to stdout, adds question and answer to the conversation. Ctrl-C ends the answer early. */
enum status remote_chat_ask(struct remote_chat *chat, const char *question, struct error *err);

#endif
