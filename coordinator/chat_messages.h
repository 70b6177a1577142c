/* The messages of a chat request, checked and in the form that model/chat_render takes. */
#ifndef HEARTH_COORDINATOR_CHAT_MESSAGES_H
#define HEARTH_COORDINATOR_CHAT_MESSAGES_H

#include <jansson.h>

#include "coordinator/http_checks.h"

/* Builds a new list (*out, the caller's) from the client's: roles known, content one string, tool results in the order of the calls they
 * answer, since the model's form has no ids. Returns 1 with *error naming the field when something is wrong; *out is NULL then. */
int chat_messages_read(json_t **out, const json_t *messages, struct api_error *error);

#endif
