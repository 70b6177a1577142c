#include "model/chat_parse.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"
#include "model/chat_value.h"
#include "model/python_json.h"

enum tag { TAG_THINK_END, TAG_CALL, TAG_CALL_END, TAG_KEY, TAG_KEY_END, TAG_VALUE, TAG_VALUE_END, N_TAGS };

static const char *const tag_text[N_TAGS] = {"</think>",   "<tool_call>", "</tool_call>", "<arg_key>",
                                             "</arg_key>", "<arg_value>", "</arg_value>"};
enum { TAG_BYTES_MAX = 12 };

enum state {
    IN_REASONING,
    IN_CONTENT,
    AFTER_CALL, /* content, but white space at its beginning means nothing */
    IN_NAME,
    BETWEEN_PAIRS, /* expects <arg_key> or </tool_call> */
    IN_KEY,
    BEFORE_VALUE, /* expects <arg_value> */
    IN_VALUE,
    N_STATES,
};

#define BIT(tag) (1u << (tag))

/* The tags that mean something in each state; all others are text. */
static const unsigned tags_of_state[N_STATES] = {
    [IN_REASONING] = BIT(TAG_THINK_END) | BIT(TAG_CALL),
    [IN_CONTENT] = BIT(TAG_CALL),
    [AFTER_CALL] = BIT(TAG_CALL),
    [IN_NAME] = BIT(TAG_KEY) | BIT(TAG_CALL_END),
    [BETWEEN_PAIRS] = BIT(TAG_KEY) | BIT(TAG_CALL_END) | BIT(TAG_CALL),
    [IN_KEY] = BIT(TAG_KEY_END),
    [BEFORE_VALUE] = BIT(TAG_VALUE) | BIT(TAG_KEY) | BIT(TAG_CALL_END) | BIT(TAG_CALL),
    [IN_VALUE] = BIT(TAG_VALUE_END),
};

struct chat_parser {
    const json_t *tools;
    chat_event_function *on_event;
    void *context;
    enum state state;
    char held[TAG_BYTES_MAX]; /* text that may be the beginning of a tag */
    size_t n_held;
    int call; /* index of the current or next call */
    struct text name, key, value, arguments;
    json_t *keys; /* those that the call already has */
};

struct chat_parser *chat_parser_new(const json_t *tools, int in_reasoning, chat_event_function *on_event, void *context)
{
    struct chat_parser *parser = xcalloc(1, sizeof *parser);
    parser->tools = tools;
    parser->on_event = on_event;
    parser->context = context;
    parser->state = in_reasoning ? IN_REASONING : IN_CONTENT;
    parser->keys = json_object();
    return parser;
}

void chat_parser_free(struct chat_parser **parser)
{
    if (!*parser)
        return;
    text_free(&(*parser)->name);
    text_free(&(*parser)->key);
    text_free(&(*parser)->value);
    text_free(&(*parser)->arguments);
    json_decref((*parser)->keys);
    free(*parser);
    *parser = NULL;
}

/* ---- events ---- */

static void emit_text(struct chat_parser *p, enum chat_event_kind kind, const char *bytes, size_t length)
{
    if (length)
        p->on_event(p->context, &(struct chat_event){.kind = kind, .text = bytes, .length = length, .call = p->call});
}

static void emit_call(struct chat_parser *p, enum chat_event_kind kind, int is_complete)
{
    p->on_event(p->context, &(struct chat_event){.kind = kind,
                                                 .call = p->call,
                                                 .name = p->name.bytes ? p->name.bytes : "",
                                                 .arguments = p->arguments.bytes ? p->arguments.bytes : "",
                                                 .is_complete = is_complete});
}

/* The rest of p->arguments from `begin` on is new. */
static void emit_arguments(struct chat_parser *p, size_t begin)
{
    emit_text(p, CHAT_CALL_ARGUMENTS, p->arguments.bytes + begin, p->arguments.length - begin);
}

/* ---- calls ---- */

static int is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void trim(struct text *text)
{
    size_t begin = 0, end = text->length;
    while (begin < end && is_space(text->bytes[begin]))
        begin++;
    while (end > begin && is_space(text->bytes[end - 1]))
        end--;
    if (text->bytes) {
        memmove(text->bytes, text->bytes + begin, end - begin);
        text->bytes[end - begin] = 0;
    }
    text->length = end - begin;
}

static void begin_call(struct chat_parser *p)
{
    text_clear(&p->name);
    text_clear(&p->arguments);
    json_object_clear(p->keys);
    p->state = IN_NAME;
}

static void end_name(struct chat_parser *p)
{
    trim(&p->name);
    emit_call(p, CHAT_CALL_BEGIN, 0);
    text_append_string(&p->arguments, "{");
    emit_arguments(p, 0);
}

static void end_call(struct chat_parser *p, int is_complete)
{
    if (is_complete) {
        text_append_string(&p->arguments, "}");
        emit_arguments(p, p->arguments.length - 1);
    }
    emit_call(p, CHAT_CALL_END, is_complete);
    p->call++;
    p->state = AFTER_CALL;
}

/* A pair is whole: it joins the arguments, unless the call has the key already. */
static void end_pair(struct chat_parser *p)
{
    const char *key = p->key.bytes ? p->key.bytes : "", *value = p->value.bytes ? p->value.bytes : "";
    size_t begin = p->arguments.length;
    p->state = BETWEEN_PAIRS;
    if (strlen(key) != p->key.length || json_object_get(p->keys, key)) /* no schema and no parser of ours has keys with a zero byte */
        return;
    if (json_object_size(p->keys))
        text_append_string(&p->arguments, ", ");
    json_object_set_new_nocheck(p->keys, key, json_true());
    python_json_append_string(&p->arguments, key, p->key.length);
    text_append_string(&p->arguments, ": ");
    chat_value_append(&p->arguments, value, p->value.length, chat_value_types(p->tools, p->name.bytes ? p->name.bytes : "", key));
    emit_arguments(p, begin);
}

/* ---- the two things that happen: a tag, or text ---- */

static void on_tag(struct chat_parser *p, enum tag tag)
{
    CHECK(tags_of_state[p->state] & BIT(tag));
    switch (tag) {
    case TAG_THINK_END:
        p->state = IN_CONTENT;
        break;
    case TAG_CALL:
        if (p->state == BETWEEN_PAIRS || p->state == BEFORE_VALUE)
            end_call(p, 0);
        begin_call(p);
        break;
    case TAG_CALL_END:
        if (p->state == IN_NAME)
            end_name(p);
        end_call(p, 1);
        break;
    case TAG_KEY:
        if (p->state == IN_NAME)
            end_name(p);
        text_clear(&p->key);
        p->state = IN_KEY;
        break;
    case TAG_KEY_END:
        trim(&p->key);
        p->state = BEFORE_VALUE;
        break;
    case TAG_VALUE:
        text_clear(&p->value);
        p->state = IN_VALUE;
        break;
    default:
        end_pair(p);
        break;
    }
}

static enum status keep(struct chat_parser *p, struct text *text, const char *bytes, size_t length, struct error *err)
{
    if (length > CHAT_CALL_BYTES_MAX - text->length || p->arguments.length > CHAT_CALL_BYTES_MAX - text->length - length)
        return error_set(err, STATUS_NO_MEMORY, "tool call %d: more than the %d bytes that a call may have", p->call, CHAT_CALL_BYTES_MAX);
    text_append(text, bytes, length);
    return STATUS_OK;
}

static enum status on_text(struct chat_parser *p, const char *bytes, size_t length, struct error *err)
{
    switch (p->state) {
    case IN_REASONING:
        emit_text(p, CHAT_REASONING, bytes, length);
        return STATUS_OK;
    case AFTER_CALL:
        while (length && is_space(*bytes))
            bytes++, length--;
        if (length)
            p->state = IN_CONTENT;
        /* fall through */
    case IN_CONTENT:
        emit_text(p, CHAT_CONTENT, bytes, length);
        return STATUS_OK;
    case IN_NAME:
        return keep(p, &p->name, bytes, length, err);
    case IN_KEY:
        return keep(p, &p->key, bytes, length, err);
    case IN_VALUE:
        return keep(p, &p->value, bytes, length, err);
    default:
        return STATUS_OK;
    }
}

/* ---- finding tags ---- */

enum match { MATCH_NONE, MATCH_PREFIX, MATCH_WHOLE };

/* bytes [length] start with '<': do they start with a tag of this state, or are they the beginning of one? */
static enum match match_tag(enum state state, const char *bytes, size_t length, enum tag *tag)
{
    enum match best = MATCH_NONE;
    for (int t = 0; t < N_TAGS; t++) {
        size_t tag_length = strlen(tag_text[t]), n = length < tag_length ? length : tag_length;
        if (!(tags_of_state[state] & BIT(t)) || memcmp(bytes, tag_text[t], n))
            continue;
        *tag = (enum tag)t;
        if (n == tag_length)
            return MATCH_WHOLE;
        best = MATCH_PREFIX;
    }
    return best;
}

/* Goes on with a '<' that an earlier piece ended in: takes bytes into p->held one by one until it is a tag or can be none. Returns the
 * bytes taken. */
static enum status resolve_held(struct chat_parser *p, const char *bytes, size_t length, size_t *taken, struct error *err)
{
    enum status status = STATUS_OK;
    for (*taken = 0; p->n_held && *taken < length && !status; ++*taken) {
        enum tag tag;
        CHECK(p->n_held < TAG_BYTES_MAX);
        p->held[p->n_held++] = bytes[*taken];
        enum match match = match_tag(p->state, p->held, p->n_held, &tag);
        if (match == MATCH_PREFIX)
            continue;
        size_t n = p->n_held;
        p->n_held = 0;
        if (match == MATCH_WHOLE) {
            on_tag(p, tag);
            continue;
        }
        /* No tag: all but the last byte are text (a tag has one '<', its first byte); the last is looked at again. */
        status = on_text(p, p->held, n - 1, err);
        break;
    }
    return status;
}

enum status chat_parser_feed(struct chat_parser *p, const char *bytes, size_t length, struct error *err)
{
    size_t begin;
    enum status status = resolve_held(p, bytes, length, &begin, err);
    for (size_t at = begin; !status && at < length;) {
        const char *open = memchr(bytes + at, '<', length - at);
        at = open ? (size_t)(open - bytes) : length;
        enum tag tag;
        enum match match = open ? match_tag(p->state, open, length - at, &tag) : MATCH_NONE;
        if (open && match == MATCH_NONE) {
            at++;
            continue;
        }
        status = on_text(p, bytes + begin, at - begin, err);
        if (!status && match == MATCH_WHOLE) {
            on_tag(p, tag);
            begin = at += strlen(tag_text[tag]);
        } else if (match == MATCH_PREFIX) {
            p->n_held = length - at;
            memcpy(p->held, open, p->n_held);
            return status;
        } else {
            return status;
        }
    }
    return !status && begin < length ? on_text(p, bytes + begin, length - begin, err) : status;
}

int chat_parser_finish(struct chat_parser *p)
{
    struct error err;
    size_t n = p->n_held;
    p->n_held = 0;
    on_text(p, p->held, n, &err); /* a call at its limit is cut here anyway */
    if (p->state < IN_NAME)
        return 0;
    if (p->state == IN_NAME)
        trim(&p->name);
    end_call(p, 0);
    return 1;
}
