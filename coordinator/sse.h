/* Server-sent events as OpenAI's streams use them: `data:` lines with one JSON object, comments, and [DONE]. Never `id:` or `retry:` lines:
 * clients remember them and then take the blank line after a comment for an event. */
#ifndef HEARTH_COORDINATOR_SSE_H
#define HEARTH_COORDINATOR_SSE_H

#include <jansson.h>

#include "common/memory.h"

/* Appends an event; takes over the reference. */
void sse_event(struct text *out, json_t *value);
void sse_done(struct text *out);
void sse_comment(struct text *out, const char *comment);

#endif
