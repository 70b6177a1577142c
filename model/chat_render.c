#include "model/chat_render.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "model/python_json.h"
#include "model/utf8.h"

const struct chat_form chat_form_glm52 = {
    .name = "glm-5.2",
    .start = "[gMASK]<sop>",
    .effort_high = "<|system|>Reasoning Effort: High",
    .effort_max = "<|system|>Reasoning Effort: Max",
    .dropped_reasoning = "<think></think>",
    .open_reasoning = "<think>",
    .no_reasoning = "<think></think>",
};

static const char TOOLS_HEAD[] = "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                                 "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n";
static const char TOOLS_TAIL[] =
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
    "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>";

/* A stretch of somebody's text. */
struct slice {
    const char *bytes;
    size_t length;
};

struct renderer {
    const struct chat_form *form;
    const json_t *messages, *tools;
    int keeps_all_reasoning;
    size_t last_user; /* index + 1 of the last user message, 0: none */
    struct chat_prompt *prompt;
    struct text scratch;
    size_t message; /* the one being rendered, for errors */
    struct error *err;
};

/* ---- output ---- */

/* Spans hold offsets until the text stops moving (bytes stays NULL); neighbours of a kind grow together. */
static void append(struct renderer *r, const char *bytes, size_t length, int is_template)
{
    struct chat_prompt *p = r->prompt;
    if (!length)
        return;
    text_append(&p->text, bytes, length);
    if (p->n_spans && p->spans[p->n_spans - 1].is_template == is_template) {
        p->spans[p->n_spans - 1].length += length;
        return;
    }
    if (p->n_spans == p->spans_capacity) {
        p->spans_capacity = p->spans_capacity ? p->spans_capacity * 2 : 32;
        p->spans = xrealloc(p->spans, p->spans_capacity * sizeof *p->spans);
    }
    p->spans[p->n_spans++] = (struct text_span){NULL, length, is_template};
}

static void append_literal(struct renderer *r, const char *literal)
{
    append(r, literal, strlen(literal), 1);
}

static void append_people(struct renderer *r, struct slice text)
{
    append(r, text.bytes, text.length, 0);
}

static void append_json(struct renderer *r, const json_t *value)
{
    struct text printed = {0};
    python_json_append(&printed, value);
    append(r, printed.bytes, printed.length, 0);
    text_free(&printed);
}

static void set_span_bytes(struct chat_prompt *p)
{
    size_t at = 0;
    for (size_t i = 0; i < p->n_spans; at += p->spans[i++].length)
        p->spans[i].bytes = p->text.bytes + at;
    CHECK(at == p->text.length);
}

/* ---- input ---- */

static enum status wrong(struct renderer *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static enum status wrong(struct renderer *r, const char *format, ...)
{
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return error_set(r->err, STATUS_INVALID, "messages[%zu].%s", r->message, sentence);
}

/* Truth as Python and the template see it; an absent value is false. */
static int is_truthy(const json_t *value)
{
    if (!value)
        return 0;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return json_object_size(value) > 0;
    case JSON_ARRAY:
        return json_array_size(value) > 0;
    case JSON_STRING:
        return json_string_length(value) > 0;
    case JSON_INTEGER:
    case JSON_REAL:
        return json_number_value(value) != 0;
    default:
        return json_is_true(value);
    }
}

static int is_string(const json_t *value, const char *wanted)
{
    return json_is_string(value) && !strcmp(json_string_value(value), wanted);
}

static struct slice slice_of(const json_t *string)
{
    return (struct slice){json_string_value(string), json_string_length(string)};
}

static int is_absent(const json_t *value)
{
    return !value || json_is_null(value);
}

/* ---- contents ---- */

/* Other media than text leave a sentence in their place. */
static void append_reminder(struct text *out, const char *type)
{
    const char *kind = strstr(type, "image") ? "image" : strstr(type, "video") ? "video" : "audio";
    text_append_string(out, "<reminder>You are unable to process this ");
    text_append_string(out, kind);
    text_append_string(out, " because you don't have multi-modal input ability. Try different methods.</reminder>");
}

static enum status append_part(struct renderer *r, const json_t *part, size_t index, struct text *out)
{
    if (json_is_string(part)) {
        text_append(out, json_string_value(part), json_string_length(part));
        return STATUS_OK;
    }
    const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
    if (!json_is_string(type))
        return wrong(r, "content[%zu] must be a string or an object with a type", index);
    if (!is_string(type, "text")) {
        append_reminder(out, json_string_value(type));
        return STATUS_OK;
    }
    if (!json_is_string(text))
        return wrong(r, "content[%zu].text must be a string", index);
    text_append(out, json_string_value(text), json_string_length(text));
    return STATUS_OK;
}

/* The visible text of a content: a string, a list of parts, or nothing. *out points into content or into r->scratch, until the next call.
 */
static enum status text_of(struct renderer *r, const json_t *content, struct slice *out)
{
    *out = (struct slice){"", 0};
    if (is_absent(content))
        return STATUS_OK;
    if (json_is_string(content)) {
        *out = slice_of(content);
        return STATUS_OK;
    }
    if (!json_is_array(content))
        return wrong(r, "content must be a string, a list of parts or null");
    text_clear(&r->scratch);
    for (size_t i = 0; i < json_array_size(content); i++) {
        enum status status = append_part(r, json_array_get(content, i), i, &r->scratch);
        if (status)
            return status;
    }
    if (r->scratch.length)
        *out = (struct slice){r->scratch.bytes, r->scratch.length};
    return STATUS_OK;
}

/* Python's str.strip(). */
static struct slice strip(struct slice s)
{
    size_t begin = 0, end = 0, at = 0;
    for (int is_leading = 1; at < s.length;) {
        struct utf8_piece piece = utf8_next(s.bytes + at, s.length - at);
        at += piece.length;
        if (piece.kind == UTF8_CHARACTER && utf8_is_python_space(piece.codepoint)) {
            begin = is_leading ? at : begin;
        } else {
            is_leading = 0;
            end = at;
        }
    }
    return (struct slice){s.bytes + begin, end > begin ? end - begin : 0};
}

/* ---- tools ---- */

/* OpenAI wraps a function in {type, function}; both forms are taken. */
static const json_t *body_of(const json_t *wrapped)
{
    const json_t *function = json_object_get(wrapped, "function");
    return function ? function : wrapped;
}

/* One line of the tool block: the object without the two keys that are about the API, not about the function. Keys of the first level are
 * printed as they are, values as JSON: that is what the template does. */
static void append_tool(struct renderer *r, const json_t *body)
{
    const char *key, *separator = "{\"";
    json_t *value;
    int is_empty = 1;
    json_object_foreach((json_t *)body, key, value)
    {
        if (!strcmp(key, "defer_loading") || !strcmp(key, "strict"))
            continue;
        append_literal(r, separator);
        append_people(r, (struct slice){key, strlen(key)});
        append_literal(r, "\": ");
        append_json(r, value);
        separator = ", \"";
        is_empty = 0;
    }
    append_literal(r, is_empty ? "{}\n" : "}\n");
}

static enum status check_tools(struct renderer *r)
{
    if (!is_absent(r->tools) && !json_is_array(r->tools))
        return error_set(r->err, STATUS_INVALID, "tools must be a list or null");
    for (size_t i = 0; i < json_array_size(r->tools); i++)
        if (!json_is_object(body_of(json_array_get(r->tools, i))))
            return error_set(r->err, STATUS_INVALID, "tools[%zu] must be an object, and so must its function", i);
    return STATUS_OK;
}

static void append_tool_block(struct renderer *r)
{
    if (!json_array_size(r->tools))
        return;
    append_literal(r, TOOLS_HEAD);
    for (size_t i = 0; i < json_array_size(r->tools); i++) {
        const json_t *body = body_of(json_array_get(r->tools, i));
        if (!is_truthy(json_object_get(body, "defer_loading")))
            append_tool(r, body);
    }
    append_literal(r, TOOLS_TAIL);
}

/* ---- assistant turns ---- */

/* The text between the last <think> before the first </think> and it; the content is what follows the last </think>. 0: there is no
 * </think>. */
static int split_reasoning(struct slice *content, struct slice *reasoning)
{
    static const char open[] = "<think>", close[] = "</think>";
    const char *end = content->bytes + content->length;
    const char *first = memmem(content->bytes, content->length, close, strlen(close));
    if (!first)
        return 0;
    *reasoning = (struct slice){content->bytes, (size_t)(first - content->bytes)};
    for (const char *at; (at = memmem(reasoning->bytes, reasoning->length, open, strlen(open)));)
        *reasoning = (struct slice){at + strlen(open), (size_t)(first - at) - strlen(open)};
    for (const char *at = first; at; at = memmem(content->bytes, content->length, close, strlen(close)))
        *content = (struct slice){at + strlen(close), (size_t)(end - at) - strlen(close)};
    return 1;
}

static void append_argument(struct renderer *r, const char *key, const json_t *value)
{
    append_literal(r, "<arg_key>");
    append_people(r, (struct slice){key, strlen(key)});
    append_literal(r, "</arg_key><arg_value>");
    if (json_is_string(value))
        append_people(r, slice_of(value));
    else
        append_json(r, value);
    append_literal(r, "</arg_value>");
}

/* Arguments as an object; *owned is what must be released (they came as a JSON string) or NULL. */
static enum status arguments_of(struct renderer *r, const json_t *body, size_t call, const json_t **out, json_t **owned)
{
    const json_t *arguments = json_object_get(body, "arguments");
    *owned = NULL;
    if (json_is_string(arguments)) {
        json_error_t where;
        *owned = json_loadb(json_string_value(arguments), json_string_length(arguments),
                            JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &where);
        if (!*owned)
            return wrong(r, "tool_calls[%zu].function.arguments is not JSON: %s", call, where.text);
        arguments = *owned;
    }
    *out = arguments;
    if (!json_is_object(arguments))
        return wrong(r, "tool_calls[%zu].function.arguments must be an object, or one as a JSON string", call);
    return STATUS_OK;
}

static enum status append_call(struct renderer *r, const json_t *call, size_t index)
{
    const json_t *body = body_of(call), *name = json_object_get(body, "name"), *arguments;
    if (!json_is_string(name))
        return wrong(r, "tool_calls[%zu].function.name must be a string", index);
    json_t *owned;
    enum status status = arguments_of(r, body, index, &arguments, &owned);
    if (!status) {
        append_literal(r, "<tool_call>");
        append_people(r, slice_of(name));
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)arguments, key, value) append_argument(r, key, value);
        append_literal(r, "</tool_call>");
    }
    json_decref(owned);
    return status;
}

static enum status render_assistant(struct renderer *r, const json_t *message)
{
    struct slice content, reasoning = {"", 0};
    enum status status = text_of(r, json_object_get(message, "content"), &content);
    if (status)
        return status;
    const json_t *given = json_object_get(message, "reasoning_content"), *calls = json_object_get(message, "tool_calls");
    if (!is_absent(given) && !json_is_string(given))
        return wrong(r, "reasoning_content must be a string or null");
    if (!is_absent(calls) && !json_is_array(calls))
        return wrong(r, "tool_calls must be a list or null");
    int has_reasoning = json_is_string(given);
    if (has_reasoning)
        reasoning = slice_of(given);
    else
        has_reasoning = split_reasoning(&content, &reasoning);
    append_literal(r, "<|assistant|>");
    if (has_reasoning && (r->keeps_all_reasoning || r->message + 1 > r->last_user)) {
        append_literal(r, "<think>");
        append_people(r, reasoning);
        append_literal(r, "</think>");
    } else {
        append_literal(r, r->form->dropped_reasoning);
    }
    append_people(r, strip(content));
    for (size_t i = 0; i < json_array_size(calls) && !status; i++)
        status = append_call(r, json_array_get(calls, i), i);
    return status;
}

/* ---- tool turns ---- */

static void append_response(struct renderer *r, struct slice text)
{
    append_literal(r, "<tool_response>");
    append_people(r, text);
    append_literal(r, "</tool_response>");
}

/* Tools that were deferred, now shown: a line for each referenced tool. */
static enum status render_references(struct renderer *r, const json_t *content)
{
    append_literal(r, "<tool_response><tools>\n");
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *name = json_object_get(json_array_get(content, i), "name");
        if (!json_is_string(name))
            return wrong(r, "content[%zu].name must be a string", i);
        for (size_t t = 0; t < json_array_size(r->tools); t++) {
            const json_t *body = body_of(json_array_get(r->tools, t));
            if (is_string(json_object_get(body, "name"), json_string_value(name)))
                append_tool(r, body);
        }
    }
    append_literal(r, "</tools></tool_response>");
    return STATUS_OK;
}

static enum status render_outputs(struct renderer *r, const json_t *content)
{
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *output = json_object_get(json_array_get(content, i), "output");
        if (!json_is_string(output))
            return wrong(r, "content[%zu].output must be a string", i);
        append_response(r, slice_of(output));
    }
    return STATUS_OK;
}

static enum status render_tool(struct renderer *r, const json_t *message)
{
    const json_t *content = json_object_get(message, "content"), *first = json_array_get(content, 0);
    const json_t *before = r->message ? json_array_get(r->messages, r->message - 1) : NULL;
    if (!is_string(json_object_get(before, "role"), "tool"))
        append_literal(r, "<|observation|>");
    if (is_string(json_object_get(first, "type"), "tool_reference"))
        return render_references(r, content);
    if (json_object_get(first, "output"))
        return render_outputs(r, content);
    struct slice text;
    enum status status = text_of(r, content, &text);
    if (!status)
        append_response(r, text);
    return status;
}

/* ---- the whole ---- */

static enum status render_text_turn(struct renderer *r, const json_t *message, const char *literal)
{
    struct slice text;
    enum status status = text_of(r, json_object_get(message, "content"), &text);
    if (!status) {
        append_literal(r, literal);
        append_people(r, text);
    }
    return status;
}

static enum status render_message(struct renderer *r, const json_t *message)
{
    if (!json_is_object(message))
        return error_set(r->err, STATUS_INVALID, "messages[%zu] must be an object", r->message);
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role)
        return wrong(r, "role must be a string");
    if (!strcmp(role, "system") || !strcmp(role, "developer"))
        return render_text_turn(r, message, "<|system|>");
    if (!strcmp(role, "user"))
        return render_text_turn(r, message, "<|user|>");
    if (!strcmp(role, "assistant"))
        return render_assistant(r, message);
    if (!strcmp(role, "tool"))
        return render_tool(r, message);
    return wrong(r, "role is \"%.40s\"; known are system, developer, user, assistant and tool", role);
}

static size_t find_last_user(const json_t *messages)
{
    for (size_t i = json_array_size(messages); i > 0; i--)
        if (is_string(json_object_get(json_array_get(messages, i - 1), "role"), "user"))
            return i;
    return 0;
}

static enum status render_all(struct renderer *r, const json_t *options)
{
    if (!json_is_array(r->messages))
        return error_set(r->err, STATUS_INVALID, "messages must be a list");
    if (!is_absent(options) && !json_is_object(options))
        return error_set(r->err, STATUS_INVALID, "options must be an object or null");
    enum status status = check_tools(r);
    if (status)
        return status;
    const json_t *thinking = json_object_get(options, "enable_thinking"), *clear = json_object_get(options, "clear_thinking");
    int thinks = !thinking || is_truthy(thinking);
    r->keeps_all_reasoning = clear && !is_truthy(clear);
    r->last_user = find_last_user(r->messages);
    append_literal(r, r->form->start);
    if (thinks)
        append_literal(r, is_string(json_object_get(options, "reasoning_effort"), "high") ? r->form->effort_high : r->form->effort_max);
    append_tool_block(r);
    for (r->message = 0; r->message < json_array_size(r->messages) && !status; r->message++)
        status = render_message(r, json_array_get(r->messages, r->message));
    if (!status && is_truthy(json_object_get(options, "add_generation_prompt"))) {
        append_literal(r, "<|assistant|>");
        append_literal(r, thinks ? r->form->open_reasoning : r->form->no_reasoning);
        r->prompt->opens_reasoning = thinks;
    }
    return status;
}

enum status chat_render(const struct chat_form *form, const json_t *messages, const json_t *tools, const json_t *options,
                        struct chat_prompt *prompt, struct error *err)
{
    CHECK(!prompt->text.length && !prompt->n_spans);
    struct renderer r = {.form = form, .messages = messages, .tools = tools, .prompt = prompt, .err = err};
    enum status status = render_all(&r, options);
    text_free(&r.scratch);
    if (status)
        chat_prompt_free(prompt);
    else
        set_span_bytes(prompt);
    return status;
}

void chat_prompt_free(struct chat_prompt *prompt)
{
    text_free(&prompt->text);
    free(prompt->spans);
    *prompt = (struct chat_prompt){0};
}
