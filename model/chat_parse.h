/* What the model writes, taken apart while it streams: reasoning, content, tool calls (docs/MODEL.md, "Chat form"; spec section 8.4). Feed
 * it the text from the detokenizer, in any pieces: the joined events are the same however the text was cut.
 *
 * - Reasoning ends at </think>, or at a <tool_call> before it. White space is kept as the model wrote it, everywhere but between the tags
 * of a call and right after a call, where it means nothing.
 * - A call is <tool_call>name, then <arg_key>k</arg_key><arg_value>v</arg_value> any number of times, then </tool_call>. Anything else
 * between the tags is skipped, a second value for a key too. A <tool_call> where a key could stand ends the call before it as unterminated.
 * - A value is typed by the tools' JSON schema. Where the schema allows a string, the text is taken verbatim, unless it is JSON of another
 * type that the schema also allows; where it does not, or says nothing, JSON is taken as JSON and anything else as a string.
 * - Text that may be the beginning of a tag is held back (at most 11 bytes outside calls). */
#ifndef HEARTH_MODEL_CHAT_PARSE_H
#define HEARTH_MODEL_CHAT_PARSE_H

#include <jansson.h>
#include <stddef.h>

#include "common/error.h"

struct chat_parser;

enum chat_event_kind {
    CHAT_REASONING,      /* a piece of reasoning: text */
    CHAT_CONTENT,        /* a piece of the answer: text */
    CHAT_CALL_BEGIN,     /* a call whose name is complete: call, name */
    CHAT_CALL_ARGUMENTS, /* a piece of its arguments: call, text; the pieces of a complete call join to one JSON object */
    CHAT_CALL_END,       /* the call is over: call, name, arguments (all pieces joined), is_complete */
};

struct chat_event {
    enum chat_event_kind kind;
    const char *text; /* zero-terminated beyond length; valid during the callback */
    size_t length;
    int call; /* 0, 1, ... in the order of the calls */
    const char *name;
    const char *arguments;
    /* 0: the output ended inside the call. `arguments` then holds the pairs that were whole, without the closing brace: half a call does
     * not parse by accident. A call that was cut inside its name has no BEGIN, and its name is what there was of it. */
    int is_complete;
};

/* Called for every event, in order. Text events are never empty. */
typedef void chat_event_function(void *context, const struct chat_event *event);

/* The bytes that one call (or the unfinished value in it) may hold in memory. Beyond that feeding fails. */
enum { CHAT_CALL_BYTES_MAX = 16 << 20 };

/* tools: the array given to chat_render, or NULL; borrowed, must outlive the parser. in_reasoning: the prompt ended in an open <think>
 * (chat_prompt.opens_reasoning). The caller frees the parser. */
struct chat_parser *chat_parser_new(const json_t *tools, int in_reasoning, chat_event_function *on_event, void *context);
void chat_parser_free(struct chat_parser **parser);

/* Fails (STATUS_NO_MEMORY) when a call grows beyond CHAT_CALL_BYTES_MAX; the parser must not be fed further then. */
enum status chat_parser_feed(struct chat_parser *parser, const char *bytes, size_t length, struct error *err);

/* The output has ended: what was held back comes out, an open call ends as unterminated. Returns 1 when there was one. */
int chat_parser_finish(struct chat_parser *parser);

#endif
