/* Goal: an answer is taken apart the same way however it is cut while streaming, and calls that were rendered parse back as they were.
 * Method: golden answers and assistant turns of the template cases, whole, at every split point and byte by byte; answers that models get
 * wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "common/memory.h"
#include "model/chat_parse.h"
#include "model/chat_render.h"

/* Events as one text, neighbouring pieces of a kind joined: "R:...", "C:...", "B0:name", "A0:...", "E0:name:1:arguments", each on a line.
 */
struct record {
    struct text lines;
    int kind, call; /* of the last text event */
};

static void on_event(void *context, const struct chat_event *event)
{
    struct record *r = context;
    if (event->kind == CHAT_CALL_BEGIN || event->kind == CHAT_CALL_END) {
        char *line = event->kind == CHAT_CALL_BEGIN
                         ? xasprintf("\nB%d:%s", event->call, event->name)
                         : xasprintf("\nE%d:%s:%d:%s", event->call, event->name, event->is_complete, event->arguments);
        text_append_string(&r->lines, line);
        free(line);
        r->kind = -1;
        return;
    }
    assert_true(event->length > 0);
    if (r->kind != (int)event->kind) {
        char *head = event->kind == CHAT_CALL_ARGUMENTS ? xasprintf("\nA%d:", event->call)
                                                        : xasprintf("\n%s:", event->kind == CHAT_REASONING ? "R" : "C");
        text_append_string(&r->lines, head);
        free(head);
    }
    r->kind = (int)event->kind;
    text_append(&r->lines, event->text, event->length);
}

/* Feeds bytes in pieces: up to cut, then the rest; cut == SIZE_MAX: byte by byte. The caller frees. */
static char *parse_cut(const json_t *tools, int in_reasoning, const char *bytes, size_t length, size_t cut)
{
    struct record record = {.kind = -1};
    struct error err = {0};
    struct chat_parser *parser = chat_parser_new(tools, in_reasoning, on_event, &record);
    enum status status = STATUS_OK;
    if (cut == SIZE_MAX) {
        for (size_t i = 0; i < length && !status; i++)
            status = chat_parser_feed(parser, bytes + i, 1, &err);
    } else {
        status = chat_parser_feed(parser, bytes, cut, &err);
        if (!status)
            status = chat_parser_feed(parser, bytes + cut, length - cut, &err);
    }
    if (status)
        fail_msg("%s", err.text);
    chat_parser_finish(parser);
    chat_parser_free(&parser);
    text_append_string(&record.lines, "\n");
    return record.lines.bytes;
}

static char *parse_every_way(const json_t *tools, int in_reasoning, const char *bytes)
{
    size_t length = strlen(bytes);
    char *whole = parse_cut(tools, in_reasoning, bytes, length, length), *other;
    for (size_t cut = 0; cut < length; cut++) {
        other = parse_cut(tools, in_reasoning, bytes, length, cut);
        if (strcmp(whole, other))
            fail_msg("cut at %zu:%s\nwhole:%s", cut, other, whole);
        free(other);
    }
    other = parse_cut(tools, in_reasoning, bytes, length, SIZE_MAX);
    assert_string_equal(whole, other);
    free(other);
    return whole;
}

static void parse_is(const char *tools, int in_reasoning, const char *bytes, const char *wanted)
{
    json_t *t = tools ? json_loads(tools, 0, NULL) : NULL;
    assert_true(t || !tools);
    char *events = parse_every_way(t, in_reasoning, bytes);
    if (strcmp(events, wanted))
        fail_msg("%s\ngave:%s\nwanted:%s", bytes, events, wanted);
    free(events);
    json_decref(t);
}

static json_t *load(const char *path)
{
    json_error_t where;
    json_t *value = json_load_file(path, JSON_ALLOW_NUL, &where);
    if (!value)
        fail_msg("%s: %s", path, where.text);
    return value;
}

static void golden_answers_parse_alike_at_every_split_point(void **state)
{
    (void)state;
    json_t *cases = load(SOURCE_DIR "/tests/golden/kindling/greedy.json");
    assert_int_equal(json_array_size(cases), 60);
    int n_reasoning = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        char *events = parse_every_way(json_object_get(c, "tools"), json_is_true(json_object_get(c, "enable_thinking")),
                                       json_string_value(json_object_get(c, "answer")));
        assert_null(strstr(events, "</think>"));
        assert_null(strstr(events, "<tool_call>"));
        n_reasoning += strstr(events, "\nR:") != NULL;
        free(events);
    }
    assert_int_equal(n_reasoning, 33); /* none of the golden answers is a call: those come from the template cases */
    json_decref(cases);
}

/* Tools that type every argument of the calls by the value it has, so that "123" the text and 123 the number can be told apart. */
static json_t *tools_for(const json_t *calls)
{
    static const char *const type_names[] = {
        [JSON_OBJECT] = "object", [JSON_ARRAY] = "array",  [JSON_STRING] = "string", [JSON_INTEGER] = "integer",
        [JSON_REAL] = "number",   [JSON_TRUE] = "boolean", [JSON_FALSE] = "boolean", [JSON_NULL] = "null"};
    json_t *tools = json_array(), *call;
    size_t i;
    json_array_foreach((json_t *)calls, i, call)
    {
        const json_t *body = json_object_get(call, "function");
        json_t *properties = json_object(), *value;
        const char *key;
        json_object_foreach(json_object_get(body, "arguments"), key, value)
            json_object_set_new(properties, key, json_pack("{s:s}", "type", type_names[json_typeof(value)]));
        /* Two calls of one name may type a key differently: each call gets its own name. */
        char *name = xasprintf("%s_%zu", json_string_value(json_object_get(body, "name")), i);
        json_object_set_new((json_t *)body, "name", json_string(name));
        json_array_append_new(tools, json_pack("{s:s, s:{s:s, s:{s:s, s:o}}}", "type", "function", "function", "name", name, "parameters",
                                               "type", "object", "properties", properties));
        free(name);
    }
    return tools;
}

static void collect_calls(void *context, const struct chat_event *event)
{
    if (event->kind != CHAT_CALL_END)
        return;
    assert_true(event->is_complete);
    json_t *arguments = json_loads(event->arguments, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(arguments);
    json_array_append_new(context, json_pack("{s:s, s:o}", "name", event->name, "arguments", arguments));
}

static void rendered_calls_parse_back_as_they_were(void **state)
{
    (void)state;
    json_t *cases = load(SOURCE_DIR "/tests/golden/template/cases.json"), *message;
    size_t n_turns = 0, at;
    for (size_t i = 0; i < json_array_size(cases); i++)
        json_array_foreach(json_object_get(json_array_get(cases, i), "messages"), at, message)
        {
            json_t *calls = json_object_get(message, "tool_calls");
            if (strcmp(json_string_value(json_object_get(message, "role")), "assistant"))
                continue;
            json_t *tools = tools_for(calls), *turn = json_pack("[O]", message), *parsed = json_array();
            struct chat_prompt prompt = {0};
            struct error err = {0};
            assert_int_equal(chat_render(&chat_form_glm52, turn, NULL, NULL, &prompt, &err), STATUS_OK);
            const char *answer = strstr(prompt.text.bytes, "<think>") + strlen("<think>");
            struct chat_parser *parser = chat_parser_new(tools, 1, collect_calls, parsed);
            assert_int_equal(chat_parser_feed(parser, answer, strlen(answer), &err), STATUS_OK);
            assert_int_equal(chat_parser_finish(parser), 0);
            chat_parser_free(&parser);
            free(parse_every_way(tools, 1, answer));
            assert_int_equal(json_array_size(parsed), json_array_size(calls));
            for (size_t k = 0; k < json_array_size(calls); k++) {
                const json_t *was = json_object_get(json_array_get(calls, k), "function"), *is = json_array_get(parsed, k);
                assert_true(json_equal(json_object_get(was, "name"), json_object_get(is, "name")));
                if (!json_equal(json_object_get(was, "arguments"), json_object_get(is, "arguments")))
                    fail_msg("case %zu: %s", i, json_dumps(is, 0));
            }
            n_turns++;
            chat_prompt_free(&prompt);
            json_decref(tools);
            json_decref(turn);
            json_decref(parsed);
        }
    assert_true(n_turns > 100);
    json_decref(cases);
}

static void reasoning_ends_at_its_tag_or_at_a_call(void **state)
{
    (void)state;
    parse_is(NULL, 1, " why \n</think>\n\nanswer", "\nR: why \n\nC:\n\nanswer\n");
    parse_is(NULL, 1, "</think>answer", "\nC:answer\n");
    parse_is(NULL, 1, "why<tool_call>f</tool_call>", "\nR:why\nB0:f\nA0:{}\nE0:f:1:{}\n");
    parse_is(NULL, 1, "only reasoning", "\nR:only reasoning\n");
    parse_is(NULL, 1, "a</think>b</think>c", "\nR:a\nC:b</think>c\n");
    parse_is(NULL, 0, "answer</think>more <think>", "\nC:answer</think>more <think>\n");
    parse_is(NULL, 0, "", "\n");
}

static void what_only_looks_like_a_tag_is_text(void **state)
{
    (void)state;
    parse_is(NULL, 1, "a < b << c </thin <</think> d", "\nR:a < b << c </thin <\nC: d\n");
    parse_is(NULL, 1, "ends in </thi", "\nR:ends in </thi\n");
    parse_is(NULL, 0, "<tool_cal", "\nC:<tool_cal\n");
    parse_is(NULL, 0, "<<tool_call>f</tool_call><", "\nC:<\nB0:f\nA0:{}\nE0:f:1:{}\nC:<\n");
    parse_is(NULL, 0, "<arg_key>x</arg_key>", "\nC:<arg_key>x</arg_key>\n");
}

static void calls_with_white_space_without_arguments_and_in_a_row(void **state)
{
    (void)state;
    parse_is(NULL, 0, "<tool_call>\n f \n</tool_call>", "\nB0:f\nA0:{}\nE0:f:1:{}\n");
    parse_is(NULL, 0, "<tool_call>f\n<arg_key> k </arg_key>\n <arg_value> v </arg_value>\n</tool_call>",
             "\nB0:f\nA0:{\"k\": \" v \"}\nE0:f:1:{\"k\": \" v \"}\n");
    parse_is(NULL, 0, "do:<tool_call>f</tool_call>\n<tool_call>g</tool_call>\n\n done",
             "\nC:do:\nB0:f\nA0:{}\nE0:f:1:{}\nB1:g\nA1:{}\nE1:g:1:{}\nC:done\n");
    parse_is(NULL, 0,
             "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>junk<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>",
             "\nB0:f\nA0:{\"a\": 1}\nE0:f:1:{\"a\": 1}\n");
    parse_is(NULL, 0, "<tool_call>f<arg_key>t</arg_key><arg_value></tool_call></think> <arg_key></arg_value></tool_call>",
             "\nB0:f\nA0:{\"t\": \"</tool_call></think> <arg_key>\"}\nE0:f:1:{\"t\": \"</tool_call></think> <arg_key>\"}\n");
}

static void unterminated_calls_are_reported_and_do_not_parse_by_accident(void **state)
{
    (void)state;
    parse_is(NULL, 0, "<tool_call>get_wea", "\nE0:get_wea:0:\n");
    parse_is(NULL, 0, "<tool_call>f<arg_key>a", "\nB0:f\nA0:{\nE0:f:0:{\n");
    parse_is(NULL, 0, "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key><arg_value>2</arg",
             "\nB0:f\nA0:{\"a\": 1\nE0:f:0:{\"a\": 1\n");
    parse_is(NULL, 0, "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value><tool_call>g</tool_call>",
             "\nB0:f\nA0:{\"a\": 1\nE0:f:0:{\"a\": 1\nB1:g\nA1:{}\nE1:g:1:{}\n");
    parse_is(NULL, 1, "hm<tool_call>", "\nR:hm\nE0::0:\n");
}

static void values_are_typed_by_the_schema(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *text, *json;
    } rows[] = {
        {"{\"type\":\"string\"}", "123", "\"123\""},
        {"{\"type\":\"string\"}", "true", "\"true\""},
        {"{\"type\":\"string\"}", "{\\\"a\\\": 1}", "\"{\\\\\\\"a\\\\\\\": 1}\""},
        {"{\"type\":\"string\"}", "", "\"\""},
        {"{\"type\":\"string\"}", "null", "\"null\""},
        {"{\"type\":\"string\"}", " spaced\n", "\" spaced\\n\""},
        {"{\"type\":\"string\",\"enum\":[\"1\",\"2\"]}", "1", "\"1\""},
        {"{\"enum\":[\"1\",\"2\"]}", "1", "\"1\""},
        {"{\"type\":\"integer\"}", "123", "123"},
        {"{\"type\":\"integer\"}", " 123\n", "123"},
        {"{\"type\":\"integer\"}", "123456789012345678901234567890", "123456789012345678901234567890"},
        {"{\"type\":\"integer\"}", "many", "\"many\""},
        {"{\"type\":\"number\"}", "1e-07", "1e-07"},
        {"{\"type\":\"number\"}", "NaN", "\"NaN\""},
        {"{\"type\":\"boolean\"}", "true", "true"},
        {"{\"type\":\"boolean\"}", "True", "\"True\""},
        {"{\"type\":\"object\"}", "{\"x\": [1]}", "{\"x\": [1]}"},
        {"{\"type\":\"array\"}", "[1, 2", "\"[1, 2\""},
        {"{\"type\":[\"string\",\"null\"]}", "null", "null"},
        {"{\"type\":[\"string\",\"null\"]}", "1", "\"1\""},
        {"{\"type\":[\"string\",\"number\"]}", "1", "1"},
        {"{\"type\":[\"string\",\"integer\"]}", "1.5", "\"1.5\""},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "12", "\"12\""},
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}", "12", "12"},
        {"{}", "12", "12"},
        {"{}", "twelve", "\"twelve\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *tools = xasprintf(
            "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"k\":%s}}}}]",
            rows[i].schema);
        char *answer = xasprintf("<tool_call>f<arg_key>k</arg_key><arg_value>%s</arg_value></tool_call>", rows[i].text);
        char *wanted = xasprintf("\nB0:f\nA0:{\"k\": %s}\nE0:f:1:{\"k\": %s}\n", rows[i].json, rows[i].json);
        parse_is(tools, 0, answer, wanted);
        free(tools);
        free(answer);
        free(wanted);
    }
}

static void a_call_without_end_stops_at_the_limit(void **state)
{
    (void)state;
    struct record record = {.kind = -1};
    struct error err = {0};
    struct chat_parser *parser = chat_parser_new(NULL, 0, on_event, &record);
    assert_int_equal(chat_parser_feed(parser, "<tool_call>f<arg_key>k</arg_key><arg_value>", 43, &err), STATUS_OK);
    static char block[1 << 20];
    memset(block, 'x', sizeof block);
    enum status status = STATUS_OK;
    int n_blocks = 0;
    for (; !status && n_blocks < 100; n_blocks++)
        status = chat_parser_feed(parser, block, sizeof block, &err);
    assert_int_equal(status, STATUS_NO_MEMORY);
    assert_int_equal(n_blocks, 16);
    assert_int_equal(chat_parser_finish(parser), 1);
    chat_parser_free(&parser);
    text_free(&record.lines);
}

static void any_mixture_of_tags_parses_alike_at_every_split_point(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "</think>", "<think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<", "</", "<tool_",
        "a",        "\n",      "1",           "\xC3\xA9",     "\"",        "k"};
    srand(3);
    for (int round = 0; round < 600; round++) {
        struct text text = {0};
        text_append_string(&text, "");
        for (int n = rand() % 14; n > 0; n--)
            text_append_string(&text, parts[(size_t)rand() % (sizeof parts / sizeof *parts)]);
        free(parse_every_way(NULL, rand() & 1, text.bytes));
        text_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_answers_parse_alike_at_every_split_point),
        cmocka_unit_test(rendered_calls_parse_back_as_they_were),
        cmocka_unit_test(reasoning_ends_at_its_tag_or_at_a_call),
        cmocka_unit_test(what_only_looks_like_a_tag_is_text),
        cmocka_unit_test(calls_with_white_space_without_arguments_and_in_a_row),
        cmocka_unit_test(unterminated_calls_are_reported_and_do_not_parse_by_accident),
        cmocka_unit_test(values_are_typed_by_the_schema),
        cmocka_unit_test(a_call_without_end_stops_at_the_limit),
        cmocka_unit_test(any_mixture_of_tags_parses_alike_at_every_split_point),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
