/* POST /v1/chat/completions: from a checked request to one JSON object or a stream of chunks. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/check.h"
#include "common/log.h"
#include "coordinator/api.h"
#include "coordinator/chat_request.h"
#include "coordinator/completion.h"
#include "coordinator/sse.h"

struct chat_answer {
    struct chat_request request;
    struct completion *completion;
    const char *model_name;
    char id[40];
    int64_t created;
    int is_begun;       /* a stream's head has been sent */
    struct text events; /* a stream's chunks since the last api_stream */
    /* otherwise the message so far */
    struct text content, reasoning;
    json_t *calls;          /* without their arguments */
    struct text *arguments; /* [size of calls] */
};

/* A piece of text is whole characters already; should it not be, the answer goes on with what a reader of UTF-8 would see. */
static json_t *text_json(const char *bytes, size_t length)
{
    json_t *value = json_stringn(bytes ? bytes : "", length);
    return value ? value : json_string("\xef\xbf\xbd");
}

/* ---- streams ---- */

/* delta: a reference is taken over. */
static void add_chunk(struct chat_answer *a, json_t *delta, const char *finish_reason)
{
    json_t *chunk = json_pack("{s:s, s:s, s:I, s:s, s:[{s:i, s:o, s:n, s:s?}]}", "id", a->id, "object", "chat.completion.chunk", "created",
                              (json_int_t)a->created, "model", a->model_name, "choices", "index", 0, "delta", delta, "logprobs",
                              "finish_reason", finish_reason);
    CHECK(chunk);
    if (a->request.include_usage)
        json_object_set_new(chunk, "usage", json_null());
    sse_event(&a->events, chunk);
}

static void add_usage_chunk(struct chat_answer *a)
{
    sse_event(&a->events, json_pack("{s:s, s:s, s:I, s:s, s:[], s:o}", "id", a->id, "object", "chat.completion.chunk", "created",
                                    (json_int_t)a->created, "model", a->model_name, "choices", "usage",
                                    completion_usage(a->completion, (int)a->request.prompt.n)));
}

static void stream_delta(struct chat_answer *a, const struct completion_delta *d)
{
    char id[40];
    switch (d->kind) {
    case DELTA_REASONING:
        add_chunk(a, json_pack("{s:o}", "reasoning_content", text_json(d->text, d->length)), NULL);
        break;
    case DELTA_CONTENT:
        add_chunk(a, json_pack("{s:o}", "content", text_json(d->text, d->length)), NULL);
        break;
    case DELTA_CALL_BEGIN:
        api_random_id(id, "call_");
        add_chunk(a,
                  json_pack("{s:[{s:i, s:s, s:s, s:{s:o, s:s}}]}", "tool_calls", "index", d->call, "id", id, "type", "function", "function",
                            "name", text_json(d->name, strlen(d->name)), "arguments", ""),
                  NULL);
        break;
    case DELTA_CALL_ARGUMENTS:
        add_chunk(a,
                  json_pack("{s:[{s:i, s:{s:o}}]}", "tool_calls", "index", d->call, "function", "arguments", text_json(d->text, d->length)),
                  NULL);
        break;
    }
}

static void send_events(struct api_request *api)
{
    api_stream(api, api->chat->events.bytes, api->chat->events.length);
    text_clear(&api->chat->events);
}

static void end_stream(struct api_request *api)
{
    sse_done(&api->chat->events);
    send_events(api);
    api_stream_end(api);
}

/* ---- whole messages ---- */

static void collect_delta(struct chat_answer *a, const struct completion_delta *d)
{
    char id[40];
    size_t n_calls = json_array_size(a->calls);
    switch (d->kind) {
    case DELTA_REASONING:
        text_append(&a->reasoning, d->text, d->length);
        break;
    case DELTA_CONTENT:
        text_append(&a->content, d->text, d->length);
        break;
    case DELTA_CALL_BEGIN:
        api_random_id(id, "call_");
        CHECK(d->call == (int)n_calls);
        json_array_append_new(a->calls, json_pack("{s:s, s:s, s:{s:o}}", "id", id, "type", "function", "function", "name",
                                                  text_json(d->name, strlen(d->name))));
        a->arguments = xrealloc(a->arguments, (n_calls + 1) * sizeof *a->arguments);
        a->arguments[n_calls] = (struct text){0};
        break;
    case DELTA_CALL_ARGUMENTS:
        text_append(&a->arguments[d->call], d->text, d->length);
        break;
    }
}

static json_t *calls_json(const struct chat_answer *a)
{
    for (size_t i = 0; i < json_array_size(a->calls); i++)
        json_object_set_new(json_object_get(json_array_get(a->calls, i), "function"), "arguments",
                            text_json(a->arguments[i].bytes, a->arguments[i].length));
    return json_incref(a->calls);
}

static json_t *message_json(const struct chat_answer *a)
{
    int has_calls = json_array_size(a->calls) > 0;
    json_t *content = has_calls && !a->content.length ? json_null() : text_json(a->content.bytes, a->content.length);
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content", content);
    if (a->reasoning.length)
        json_object_set_new(message, "reasoning_content", text_json(a->reasoning.bytes, a->reasoning.length));
    if (has_calls)
        json_object_set_new(message, "tool_calls", calls_json(a));
    return message;
}

static json_t *completion_json(const struct chat_answer *a)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:[{s:i, s:o, s:n, s:s}], s:o}", "id", a->id, "object", "chat.completion", "created",
                     (json_int_t)a->created, "model", a->model_name, "choices", "index", 0, "message", message_json(a), "logprobs",
                     "finish_reason", completion_finish_reason(a->completion), "usage",
                     completion_usage(a->completion, (int)a->request.prompt.n));
}

/* ---- the life of an answer ---- */

static void on_delta(void *context, const struct completion_delta *delta)
{
    struct chat_answer *a = context;
    if (a->request.is_stream)
        stream_delta(a, delta);
    else
        collect_delta(a, delta);
}

static void finish(struct api_request *api)
{
    struct chat_answer *a = api->chat;
    if (!a->request.is_stream) {
        api_reply_json(api, 200, completion_json(a));
        return;
    }
    add_chunk(a, json_object(), completion_finish_reason(a->completion));
    if (a->request.include_usage)
        add_usage_chunk(a);
    end_stream(api);
}

void api_chat_fail(struct api_request *api, const struct api_error *error)
{
    struct chat_answer *a = api->chat;
    if (!a->is_begun) {
        api_reply_error(api, error);
        return;
    }
    sse_event(&a->events, api_error_json(error));
    end_stream(api);
}

/* The tokens cannot be made into text: an error of ours. */
static void fail_here(struct api_request *api, const struct error *err)
{
    struct api_error error;
    log_line(LOG_ERROR, "api: %s: %s", api->chat->id, err->text);
    api_refuse(&error, 500, "internal_error", NULL, "%s", err->text);
    api_chat_fail(api, &error);
}

static void on_token(struct api_request *api, const struct cluster_event *event)
{
    struct chat_answer *a = api->chat;
    struct error err;
    if (completion_feed(a->completion, event->token, event->is_stop, &err)) {
        api_work_cancel(api);
        fail_here(api, &err);
    } else if (completion_is_over(a->completion)) {
        api_work_cancel(api);
        finish(api);
    } else if (a->is_begun) {
        send_events(api);
    }
}

static void on_done(struct api_request *api, const struct cluster_event *event)
{
    struct error err;
    api_work_is_over(api);
    if (completion_finish(api->chat->completion, event->is_length, &err))
        fail_here(api, &err);
    else
        finish(api);
}

void api_chat_on_event(struct api_request *api, const struct cluster_event *event)
{
    struct chat_answer *a = api->chat;
    struct api_error error;
    switch (event->kind) {
    case EVENT_ADMITTED:
        if (!a->request.is_stream || a->is_begun)
            return;
        a->is_begun = 1;
        api_stream_begin(api, "text/event-stream; charset=utf-8");
        add_chunk(a, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), NULL);
        send_events(api);
        return;
    case EVENT_TOKEN:
        on_token(api, event);
        return;
    case EVENT_DONE:
        on_done(api, event);
        return;
    case EVENT_FAILED:
        api_work_is_over(api);
        api_error_of_event(&error, event);
        api_chat_fail(api, &error);
        return;
    case EVENT_LOGITS:
        return;
    }
}

void api_chat_keep_alive(struct api_request *api)
{
    sse_comment(&api->chat->events, "keep-alive");
    send_events(api);
}

static void add_stop_ids(struct cluster_request *work, const int *ids, int n)
{
    for (int i = 0; i < n; i++) {
        int is_there = 0;
        for (int k = 0; k < work->n_stop_ids; k++)
            is_there |= work->stop_ids[k] == ids[i];
        if (!is_there && work->n_stop_ids < CLUSTER_STOP_IDS_MAX)
            work->stop_ids[work->n_stop_ids++] = ids[i];
    }
}

static int submit(struct api_request *api)
{
    const struct chat_request *r = &api->chat->request;
    struct cluster_request work = {.prompt = r->prompt.ids, .n_prompt = (int)r->prompt.n, .max_new = r->max_new, .sampling = r->sampling};
    add_stop_ids(&work, api->config->model->eos_ids, api->config->model->n_eos_ids);
    add_stop_ids(&work, api->config->generation->eos_ids, api->config->generation->n_eos_ids);
    return api_submit(api, &work, WORK_CHAT);
}

void api_chat_post(struct api_request *api)
{
    struct chat_answer *a = api->chat = xcalloc(1, sizeof *a);
    struct api_error error;
    if (api->is_draining) {
        api_refuse(&error, 503, "shutting_down", NULL, "the coordinator is shutting down");
        error.retry_after_s = 10;
        api_reply_error(api, &error);
        return;
    }
    if (chat_request_read(&a->request, api->config, api->body, api->body_bytes, &error)) {
        api_reply_error(api, &error);
        return;
    }
    const struct chat_request *r = &a->request;
    a->completion = completion_new(
        &(struct completion_options){api->config->tokenizer, r->tools, r->opens_reasoning, r->one_call, r->stops, r->n_stops}, on_delta, a);
    a->model_name = api->config->model_name;
    a->created = (int64_t)time(NULL);
    a->calls = json_array();
    api_random_id(a->id, "chatcmpl-");
    submit(api);
}

void api_chat_free(struct chat_answer **slot)
{
    struct chat_answer *a = *slot;
    if (!a)
        return;
    completion_free(&a->completion); /* before the request: it borrows the tools */
    chat_request_release(&a->request);
    text_free(&a->events);
    text_free(&a->content);
    text_free(&a->reasoning);
    for (size_t i = 0; i < json_array_size(a->calls); i++)
        text_free(&a->arguments[i]);
    free(a->arguments);
    json_decref(a->calls);
    free(a);
    *slot = NULL;
}
