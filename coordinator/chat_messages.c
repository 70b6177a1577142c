#include "coordinator/chat_messages.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

/* The calls of the latest assistant message that made any, and which of them have a result. */
struct open_calls {
    const json_t *calls;
    unsigned char *is_answered; /* [n calls] */
    size_t first_result;        /* index in the new list where the present run of results begins */
};

static const json_t *field(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static int wrong(struct api_error *error, size_t message, const char *code, const char *name, const char *sentence)
{
    char *param = xasprintf("messages[%zu]%s%s", message, *name ? "." : "", name);
    api_refuse(error, 400, code, param, "%s %s", param, sentence);
    free(param);
    return 1;
}

static int append_part(struct text *out, const json_t *part, size_t message, size_t index, struct api_error *error)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_is_string(part) ? part : json_object_get(part, "text");
    char name[40];
    snprintf(name, sizeof name, "content[%zu]", index);
    if (!json_is_string(part) && !type)
        return wrong(error, message, NULL, name, "must be a part: an object with a type");
    if (type && strcmp(type, "text"))
        return wrong(error, message, "unsupported_parameter", name, "is not text; this model reads text only");
    if (!json_is_string(text))
        return wrong(error, message, NULL, name, "must have its text as a string");
    text_append(out, json_string_value(text), json_string_length(text));
    return 0;
}

/* New reference, or NULL with *error. */
static json_t *read_content(const json_t *content, size_t message, struct api_error *error)
{
    struct text joined = {0};
    int refused = 0;
    if (!content)
        return json_string("");
    if (json_is_string(content))
        return json_incref((json_t *)content);
    if (!json_is_array(content)) {
        wrong(error, message, NULL, "content", "must be a string, a list of text parts or null");
        return NULL;
    }
    for (size_t i = 0; i < json_array_size(content) && !refused; i++)
        refused = append_part(&joined, json_array_get(content, i), message, i, error);
    json_t *text = refused ? NULL : json_stringn(joined.bytes ? joined.bytes : "", joined.length);
    text_free(&joined);
    return text;
}

/* Arguments that come as a string are JSON of their own: the same limits hold for it. Its form is chat_render's to check. */
static int check_calls(const json_t *calls, size_t message, struct api_error *error)
{
    if (!json_is_array(calls))
        return wrong(error, message, NULL, "tool_calls", "must be a list or null");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i), *arguments = json_object_get(json_object_get(call, "function"), "arguments");
        struct api_error inner;
        char name[64];
        snprintf(name, sizeof name, "tool_calls[%zu]", i);
        if (!json_is_object(call) || !json_is_object(json_object_get(call, "function")))
            return wrong(error, message, NULL, name, "must be an object with a function");
        snprintf(name, sizeof name, "tool_calls[%zu].function.arguments", i);
        if (json_is_string(arguments) && http_json_refused(json_string_value(arguments), json_string_length(arguments), &inner))
            return wrong(error, message, NULL, name, "is too large or nested too deep");
    }
    return 0;
}

static int read_assistant(json_t *out, const json_t *message, size_t index, struct open_calls *open, struct api_error *error)
{
    const json_t *reasoning = field(message, "reasoning_content"), *calls = field(message, "tool_calls");
    if (!reasoning)
        reasoning = field(message, "reasoning");
    if (reasoning && !json_is_string(reasoning))
        return wrong(error, index, NULL, "reasoning_content", "must be a string or null");
    if (reasoning)
        json_object_set(out, "reasoning_content", (json_t *)reasoning);
    if (!calls)
        return 0;
    if (check_calls(calls, index, error))
        return 1;
    json_object_set(out, "tool_calls", (json_t *)calls);
    if (json_array_size(calls)) {
        open->calls = calls;
        free(open->is_answered);
        open->is_answered = xcalloc(json_array_size(calls), 1);
    }
    return 0;
}

/* Which call this is the result of; -1: none. */
static int find_call(const struct open_calls *open, const char *id)
{
    for (size_t i = 0; i < json_array_size(open->calls); i++) {
        const char *other = json_string_value(json_object_get(json_array_get(open->calls, i), "id"));
        if (other && !open->is_answered[i] && !strcmp(other, id))
            return (int)i;
    }
    return -1;
}

/* The result goes to its place among those of the run before it. */
static int insert_result(json_t *list, json_t *result, const json_t *message, size_t index, struct open_calls *open,
                         struct api_error *error)
{
    const char *id = json_string_value(json_object_get(message, "tool_call_id"));
    int call = id ? find_call(open, id) : -1;
    if (!id)
        return wrong(error, index, NULL, "tool_call_id", "must be the id of the call that this is the result of");
    if (call < 0)
        return wrong(error, index, NULL, "tool_call_id", "is no id of a call before it that has no result yet");
    open->is_answered[call] = 1;
    json_object_set_new(result, "call", json_integer(call));
    size_t at = json_array_size(list);
    while (at > open->first_result && json_integer_value(json_object_get(json_array_get(list, at - 1), "call")) > call)
        at--;
    json_array_insert(list, at, result);
    return 0;
}

static int read_message(json_t *list, const json_t *message, size_t index, struct open_calls *open, struct api_error *error)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    const char *role = json_string_value(json_object_get(message, "role"));
    int is_known = 0, is_tool = role && !strcmp(role, "tool");
    if (!json_is_object(message))
        return wrong(error, index, NULL, "", "must be an object");
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        is_known |= role && !strcmp(role, roles[i]);
    if (!is_known)
        return wrong(error, index, NULL, "role", "must be system, developer, user, assistant or tool");
    json_t *content = read_content(field(message, "content"), index, error);
    if (!content)
        return 1;
    json_t *out = json_pack("{s:s, s:o}", "role", role, "content", content);
    int refused = 0;
    if (!is_tool) {
        if (!strcmp(role, "assistant"))
            refused = read_assistant(out, message, index, open, error);
        json_array_append(list, out);
        open->first_result = json_array_size(list);
    } else {
        refused = insert_result(list, out, message, index, open, error);
    }
    json_decref(out);
    return refused;
}

int chat_messages_read(json_t **out, const json_t *messages, struct api_error *error)
{
    struct open_calls open = {0};
    int refused = 0;
    *out = NULL;
    if (!json_is_array(messages) || !json_array_size(messages))
        return api_refuse(error, 400, NULL, "messages", "messages must be a list with at least one message");
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(messages) && !refused; i++)
        refused = read_message(list, json_array_get(messages, i), i, &open, error);
    free(open.is_answered);
    if (refused)
        json_decref(list);
    else
        *out = list;
    return refused;
}
