#include "coordinator/completion.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "coordinator/text_search.h"
#include "model/chat_parse.h"
#include "model/detokenizer.h"

struct completion {
    const struct tokenizer *tokenizer;
    completion_function *on_delta;
    void *context;
    struct detokenizer detokenizer;
    struct chat_parser *parser;          /* with tools */
    struct text_search end_of_reasoning; /* without */
    struct text_search stops;
    struct text piece, shown;
    int in_reasoning, one_call;
    int n_calls, n_open_calls;
    int is_over, is_length;
    int n_tokens, n_reasoning;
};

static void emit(struct completion *c, enum completion_delta_kind kind, const char *text, size_t length)
{
    if (length)
        c->on_delta(c->context, &(struct completion_delta){.kind = kind, .text = text, .length = length});
}

static void on_content(struct completion *c, const char *bytes, size_t length)
{
    size_t rest;
    text_clear(&c->shown);
    c->is_over = text_search_feed(&c->stops, bytes, length, &c->shown, &rest);
    emit(c, DELTA_CONTENT, c->shown.bytes, c->shown.length);
}

static void flush_content(struct completion *c)
{
    text_clear(&c->shown);
    text_search_flush(&c->stops, &c->shown);
    emit(c, DELTA_CONTENT, c->shown.bytes, c->shown.length);
}

static void on_event(void *context, const struct chat_event *event)
{
    struct completion *c = context;
    if (c->is_over)
        return;
    c->in_reasoning = event->kind == CHAT_REASONING;
    switch (event->kind) {
    case CHAT_REASONING:
        emit(c, DELTA_REASONING, event->text, event->length);
        break;
    case CHAT_CONTENT:
        on_content(c, event->text, event->length);
        break;
    case CHAT_CALL_BEGIN:
        flush_content(c); /* a stop string does not reach over a call */
        c->n_calls++;
        c->n_open_calls++;
        c->on_delta(c->context, &(struct completion_delta){.kind = DELTA_CALL_BEGIN, .call = event->call, .name = event->name});
        break;
    case CHAT_CALL_ARGUMENTS:
        c->on_delta(c->context, &(struct completion_delta){DELTA_CALL_ARGUMENTS, event->text, event->length, event->call, NULL});
        break;
    case CHAT_CALL_END:
        c->n_open_calls -= event->is_complete;
        c->is_over = c->one_call && event->is_complete;
        break;
    }
}

struct completion *completion_new(const struct completion_options *options, completion_function *on_delta, void *context)
{
    struct completion *c = xcalloc(1, sizeof *c);
    c->tokenizer = options->tokenizer;
    c->on_delta = on_delta;
    c->context = context;
    c->in_reasoning = options->opens_reasoning;
    c->one_call = options->one_call;
    text_search_init(&c->stops, options->stops, options->n_stops);
    text_search_init(&c->end_of_reasoning, (const char *const[]){"</think>"}, 1);
    if (options->tools)
        c->parser = chat_parser_new(options->tools, options->opens_reasoning, on_event, c);
    return c;
}

void completion_free(struct completion **slot)
{
    struct completion *c = *slot;
    if (!c)
        return;
    chat_parser_free(&c->parser);
    text_search_release(&c->stops);
    text_search_release(&c->end_of_reasoning);
    text_free(&c->piece);
    text_free(&c->shown);
    free(c);
    *slot = NULL;
}

/* Without tools nothing but the end of reasoning has a meaning: text that looks like a call stays text. */
static void feed_plain(struct completion *c, const char *bytes, size_t length)
{
    size_t rest = length;
    if (c->in_reasoning) {
        text_clear(&c->shown);
        c->in_reasoning = !text_search_feed(&c->end_of_reasoning, bytes, length, &c->shown, &rest);
        emit(c, DELTA_REASONING, c->shown.bytes, c->shown.length);
    }
    if (!c->in_reasoning && rest)
        on_content(c, bytes + length - rest, rest);
}

static enum status feed_piece(struct completion *c, struct error *err)
{
    if (!c->piece.length || c->is_over)
        return STATUS_OK;
    if (c->parser)
        return chat_parser_feed(c->parser, c->piece.bytes, c->piece.length, err);
    feed_plain(c, c->piece.bytes, c->piece.length);
    return STATUS_OK;
}

enum status completion_feed(struct completion *c, int token, int is_stop, struct error *err)
{
    if (c->is_over)
        return STATUS_OK;
    c->n_tokens++;
    c->n_reasoning += c->in_reasoning;
    if (is_stop)
        return STATUS_OK;
    text_clear(&c->piece);
    enum status status = detokenizer_feed(&c->detokenizer, c->tokenizer, token, &c->piece, err);
    return status ? status : feed_piece(c, err);
}

int completion_is_over(const struct completion *c)
{
    return c->is_over;
}

enum status completion_finish(struct completion *c, int is_length, struct error *err)
{
    if (c->is_over)
        return STATUS_OK;
    c->is_length = is_length;
    text_clear(&c->piece);
    detokenizer_finish(&c->detokenizer, &c->piece);
    enum status status = feed_piece(c, err);
    if (status || c->is_over)
        return status;
    if (c->parser) {
        chat_parser_finish(c->parser);
    } else {
        text_clear(&c->shown);
        text_search_flush(&c->end_of_reasoning, &c->shown);
        emit(c, DELTA_REASONING, c->shown.bytes, c->shown.length);
    }
    if (!c->is_over)
        flush_content(c);
    c->is_over = 1;
    return STATUS_OK;
}

const char *completion_finish_reason(const struct completion *c)
{
    if (c->is_length)
        return "length";
    return c->n_calls && !c->n_open_calls ? "tool_calls" : "stop";
}

json_t *completion_usage(const struct completion *c, int n_prompt)
{
    return json_pack("{s:i, s:i, s:i, s:{s:i}, s:{s:i}}", "prompt_tokens", n_prompt, "completion_tokens", c->n_tokens, "total_tokens",
                     n_prompt + c->n_tokens, "prompt_tokens_details", "cached_tokens", 0, "completion_tokens_details", "reasoning_tokens",
                     c->n_reasoning);
}
