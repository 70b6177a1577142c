/* From tokens to what people get: text through the detokenizer, apart into reasoning, content and tool calls (model/chat_parse), stop
 * strings, usage and the reason for the end. The deltas joined are the same however the tokens arrive. */
#ifndef HEARTH_COORDINATOR_COMPLETION_H
#define HEARTH_COORDINATOR_COMPLETION_H

#include <jansson.h>
#include <stddef.h>

#include "common/error.h"
#include "model/tokenizer.h"

struct completion;

enum completion_delta_kind { DELTA_REASONING, DELTA_CONTENT, DELTA_CALL_BEGIN, DELTA_CALL_ARGUMENTS };

struct completion_delta {
    enum completion_delta_kind kind;
    const char *text; /* whole characters, valid during the callback; NULL for DELTA_CALL_BEGIN */
    size_t length;
    int call;         /* 0, 1, ... */
    const char *name; /* DELTA_CALL_BEGIN */
};

typedef void completion_function(void *context, const struct completion_delta *delta);

struct completion_options {
    const struct tokenizer *tokenizer;
    const json_t *tools;      /* NULL: none were offered; a call in the answer is then text like any other */
    int opens_reasoning;      /* the prompt ends inside reasoning */
    int one_call;             /* the answer ends with its first call */
    const char *const *stops; /* [n_stops] copied, none empty; searched in content only, never shown */
    size_t n_stops;
};

struct completion *completion_new(const struct completion_options *options, completion_function *on_delta, void *context);
void completion_free(struct completion **completion);

/* A sampled token. is_stop: it ends the answer and has no text. Fails when the tokenizer has no such id or a call grows beyond its limit.
 */
enum status completion_feed(struct completion *completion, int token, int is_stop, struct error *err);

/* 1 after a stop string or the only call: no more tokens are wanted, feeding has no effect. */
int completion_is_over(const struct completion *completion);

/* The tokens have ended; what was held back comes out. is_length: they were cut off. */
enum status completion_finish(struct completion *completion, int is_length, struct error *err);

/* "stop", "length" or "tool_calls"; after completion_finish or when over. */
const char *completion_finish_reason(const struct completion *completion);

/* OpenAI's usage object; new reference. Every sampled token counts, the end token and reasoning included. */
json_t *completion_usage(const struct completion *completion, int n_prompt);

#endif
