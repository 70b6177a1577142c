#include "cli/remote_chat.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"

enum { LINE_BYTES_MAX = 16 << 20 };

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

static void add_message(json_t *messages, const char *role, const struct text *content, const struct text *reasoning)
{
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", json_stringn(content->bytes ? content->bytes : "", content->length));
    if (reasoning && reasoning->length)
        json_object_set_new(message, "reasoning_content", json_stringn(reasoning->bytes, reasoning->length));
    json_array_append_new(messages, message);
}

enum status remote_chat_open(struct remote_chat *chat, const char *url, const char *key_file, const struct conversation_options *options,
                             struct error *err)
{
    *chat = (struct remote_chat){.options = options, .messages = json_array()};
    enum status status = client_init(&chat->client, url, key_file, err);
    chat->client.interrupted = &interrupted;
    if (!status && options->system) {
        json_t *content = json_string(options->system);
        if (!content)
            return error_set(err, STATUS_INVALID, "--system must be UTF-8");
        json_array_append_new(chat->messages, json_pack("{s:s, s:o}", "role", "system", "content", content));
    }
    return status;
}

void remote_chat_close(struct remote_chat *chat)
{
    client_release(&chat->client);
    json_decref(chat->messages);
    chat->messages = NULL;
}

static json_t *request_body(const struct remote_chat *chat)
{
    const struct conversation_options *o = chat->options;
    json_t *body = json_pack("{s:O, s:b, s:{s:b}, s:I, s:I, s:s}", "messages", chat->messages, "stream", 1, "stream_options",
                             "include_usage", 1, "max_tokens", (json_int_t)o->max_tokens, "seed", (json_int_t)o->seed, "reasoning_effort",
                             o->no_think ? "none" : o->effort);
    if (o->temperature >= 0)
        json_object_set_new(body, "temperature", json_real(o->temperature));
    if (o->top_p >= 0)
        json_object_set_new(body, "top_p", json_real(o->top_p));
    if (o->min_p >= 0)
        json_object_set_new(body, "min_p", json_real(o->min_p));
    if (o->top_k >= 0)
        json_object_set_new(body, "top_k", json_integer(o->top_k));
    return body;
}

/* An answer on its way to the terminal. */
struct answer {
    struct text line, content, reasoning;
    int is_terminal, shows_reasoning, is_done;
    long long n_prompt, n_new;
};

static void show(struct answer *a, const json_t *piece, int is_reasoning)
{
    const char *bytes = json_string_value(piece);
    size_t n = json_string_length(piece);
    if (!n)
        return;
    if (a->shows_reasoning && !is_reasoning)
        fputs(a->is_terminal ? "\033[0m\n" : "\n", stdout);
    if (!a->shows_reasoning && is_reasoning && a->is_terminal)
        fputs("\033[2m", stdout);
    a->shows_reasoning = is_reasoning;
    text_append(is_reasoning ? &a->reasoning : &a->content, bytes, n);
    fwrite(bytes, 1, n, stdout);
    fflush(stdout);
}

static enum status on_data(struct answer *a, const char *data, struct error *err)
{
    if (!strcmp(data, "[DONE]")) {
        a->is_done = 1;
        return STATUS_OK;
    }
    json_error_t where;
    json_t *chunk = json_loads(data, 0, &where);
    if (!chunk)
        return error_set(err, STATUS_INVALID, "the server sent what is no JSON: %s", where.text);
    const json_t *error = json_object_get(chunk, "error"), *usage = json_object_get(chunk, "usage");
    const json_t *delta = json_object_get(json_array_get(json_object_get(chunk, "choices"), 0), "delta");
    const char *message = json_string_value(json_object_get(error, "message"));
    enum status status = error ? error_set(err, STATUS_IO, "%s", message ? message : "the answer failed") : STATUS_OK;
    show(a, json_object_get(delta, "reasoning_content"), 1);
    show(a, json_object_get(delta, "content"), 0);
    if (json_is_object(usage)) {
        a->n_prompt = json_integer_value(json_object_get(usage, "prompt_tokens"));
        a->n_new = json_integer_value(json_object_get(usage, "completion_tokens"));
    }
    json_decref(chunk);
    return status;
}

static enum status on_body(void *context, const char *bytes, size_t length, struct error *err)
{
    struct answer *a = context;
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] != '\n') {
            if (a->line.length >= LINE_BYTES_MAX)
                return error_set(err, STATUS_INVALID, "the server sent a line of more than %d bytes", LINE_BYTES_MAX);
            text_append(&a->line, bytes + i, 1);
            continue;
        }
        enum status status = a->line.length > 6 && !strncmp(a->line.bytes, "data: ", 6) ? on_data(a, a->line.bytes + 6, err) : STATUS_OK;
        text_clear(&a->line);
        if (status)
            return status;
    }
    return STATUS_OK;
}

static void finish(const struct answer *a, double seconds)
{
    if (a->shows_reasoning && a->is_terminal)
        fputs("\033[0m", stdout);
    putchar('\n');
    fflush(stdout);
    if (a->is_done)
        fprintf(stderr, "[%lld prompt tokens, %lld tokens, %.1f s]\n", a->n_prompt, a->n_new, seconds);
}

enum status remote_chat_ask(struct remote_chat *chat, const char *question, struct error *err)
{
    struct answer a = {.is_terminal = isatty(STDOUT_FILENO)};
    struct sigaction action = {.sa_handler = on_interrupt}, before;
    struct text asked = {.bytes = (char *)question, .length = strlen(question)};
    json_t *checked = json_string(question);
    if (!checked)
        return error_set(err, STATUS_INVALID, "the question is not UTF-8");
    json_decref(checked);
    add_message(chat->messages, "user", &asked, NULL);
    interrupted = 0;
    sigaction(SIGINT, &action, &before);
    json_t *body = request_body(chat);
    uint64_t begun = clock_now_ns(clock_monotonic());
    enum status status = client_send(
        &chat->client, &(struct client_request){.path = "/v1/chat/completions", .body = body, .on_body = on_body, .context = &a}, err);
    finish(&a, (double)(clock_now_ns(clock_monotonic()) - begun) / 1e9);
    sigaction(SIGINT, &before, NULL);
    if (status == STATUS_CANCELLED && interrupted)
        status = STATUS_OK;
    else if (!status && !a.is_done)
        status = error_set(err, STATUS_IO, "the answer ended too early");
    if (!status)
        add_message(chat->messages, "assistant", &a.content, &a.reasoning);
    json_decref(body);
    text_free(&a.line);
    text_free(&a.content);
    text_free(&a.reasoning);
    return status;
}
