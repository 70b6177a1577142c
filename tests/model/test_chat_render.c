/* Goal: conversations render byte for byte as the vendor's template renders them, and no text that people write becomes a special token.
 * Method: golden template cases; the golden prompts' ids; control strings in every place where people or tools write; messages of the wrong
 * shape. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "common/memory.h"
#include "model/chat_render.h"
#include "model/python_json.h"

static struct tokenizer *tokenizer;

static int open_kindling(void **state)
{
    (void)state;
    struct error err = {0};
    if (tokenizer_open(&tokenizer, SOURCE_DIR "/models/kindling/tokenizer.json", &err))
        fail_msg("%s", err.text);
    return 0;
}

static int close_kindling(void **state)
{
    (void)state;
    tokenizer_close(&tokenizer);
    return 0;
}

static json_t *load(const char *path)
{
    json_error_t where;
    json_t *value = json_load_file(path, JSON_ALLOW_NUL, &where);
    if (!value)
        fail_msg("%s: %s", path, where.text);
    return value;
}

static json_t *parse(const char *text)
{
    json_error_t where;
    json_t *value = json_loads(text, JSON_DECODE_ANY, &where);
    if (!value)
        fail_msg("%s in %s", where.text, text);
    return value;
}

static struct chat_prompt render(const json_t *messages, const json_t *tools, const json_t *options)
{
    struct chat_prompt prompt = {0};
    struct error err = {0};
    if (chat_render(&chat_form_glm52, messages, tools, options, &prompt, &err))
        fail_msg("%s", err.text);
    size_t covered = 0;
    for (size_t i = 0; i < prompt.n_spans; i++) {
        assert_ptr_equal(prompt.spans[i].bytes, prompt.text.bytes + covered);
        covered += prompt.spans[i].length;
    }
    assert_int_equal(covered, prompt.text.length);
    return prompt;
}

static struct id_list encode(const struct chat_prompt *prompt)
{
    struct id_list ids = {0};
    struct error err = {0};
    if (tokenizer_encode(tokenizer, prompt->spans, prompt->n_spans, &ids, &err))
        fail_msg("%s", err.text);
    return ids;
}

static void render_is(const char *messages, const char *tools, const char *options, const char *wanted)
{
    json_t *m = parse(messages), *t = parse(tools), *o = parse(options);
    struct chat_prompt prompt = render(m, t, o);
    assert_string_equal(prompt.text.bytes, wanted);
    chat_prompt_free(&prompt);
    json_decref(m);
    json_decref(t);
    json_decref(o);
}

static void golden_conversations_render_as_the_template_does(void **state)
{
    (void)state;
    json_t *cases = load(SOURCE_DIR "/tests/golden/template/cases.json");
    assert_int_equal(json_array_size(cases), 150);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *wanted = json_object_get(c, "text");
        struct chat_prompt prompt = render(json_object_get(c, "messages"), json_object_get(c, "tools"), json_object_get(c, "options"));
        if (strcmp(prompt.text.bytes, json_string_value(wanted)))
            fail_msg("case %zu:\n%s\nwanted:\n%s", i, prompt.text.bytes, json_string_value(wanted));
        chat_prompt_free(&prompt);
    }
    json_decref(cases);
}

static void arguments_as_a_json_string_render_as_the_object_does(void **state)
{
    (void)state;
    json_t *cases = load(SOURCE_DIR "/tests/golden/template/cases.json");
    size_t n_strings = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *c = json_array_get(cases, i), *messages = json_object_get(c, "messages"), *message, *call;
        size_t at, k;
        json_array_foreach(messages, at, message) json_array_foreach(json_object_get(message, "tool_calls"), k, call)
        {
            json_t *body = json_object_get(call, "function");
            char *text = json_dumps(json_object_get(body, "arguments"), 0);
            json_object_set_new(body, "arguments", json_string(text));
            free(text);
            n_strings++;
        }
        struct chat_prompt prompt = render(messages, json_object_get(c, "tools"), json_object_get(c, "options"));
        assert_string_equal(prompt.text.bytes, json_string_value(json_object_get(c, "text")));
        chat_prompt_free(&prompt);
    }
    assert_true(n_strings >= 10);
    json_decref(cases);
}

static void golden_prompts_give_the_reference_ids(void **state)
{
    (void)state;
    json_t *cases = load(SOURCE_DIR "/tests/golden/kindling/greedy.json");
    assert_int_equal(json_array_size(cases), 60);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *wanted = json_object_get(c, "prompt_ids");
        json_t *options = json_pack("{s:b, s:O, s:O}", "add_generation_prompt", 1, "enable_thinking", json_object_get(c, "enable_thinking"),
                                    "reasoning_effort", json_object_get(c, "reasoning_effort"));
        struct chat_prompt prompt = render(json_object_get(c, "messages"), json_object_get(c, "tools"), options);
        assert_string_equal(prompt.text.bytes, json_string_value(json_object_get(c, "prompt")));
        assert_int_equal(prompt.opens_reasoning, json_is_true(json_object_get(c, "enable_thinking")));
        struct id_list ids = encode(&prompt);
        assert_int_equal(ids.n, json_array_size(wanted));
        for (size_t t = 0; t < ids.n; t++)
            assert_int_equal(ids.ids[t], json_integer_value(json_array_get(wanted, t)));
        id_list_free(&ids);
        chat_prompt_free(&prompt);
        json_decref(options);
    }
    json_decref(cases);
}

/* Every place where somebody writes, with %s for what they write. */
static const char INJECTED[] = "[{\"role\":\"system\",\"content\":\"%s\"},{\"role\":\"user\",\"content\":\"%s\"},{\"role\":\"user\","
                               "\"content\":[{\"type\":\"text\",\"text\":\"%s\"},\"%s\"]},"
                               "{\"role\":\"assistant\",\"reasoning_content\":\"%s\",\"content\":\"%s\",\"tool_calls\":[{\"function\":{"
                               "\"name\":\"%s\",\"arguments\":{\"%s\":\"%s\",\"b\":[\"%s\"]}}}]},"
                               "{\"role\":\"tool\",\"content\":\"%s\"},{\"role\":\"tool\",\"content\":[{\"output\":\"%s\"}]}]";
static const char INJECTED_TOOLS[] = "[{\"type\":\"function\",\"function\":{\"name\":\"%s\",\"%s\":\"%s\",\"parameters\":{\"%s\":{}}}}]";

static char *replace_all(const char *format, const char *with)
{
    struct text out = {0};
    for (const char *at = format; *at;) {
        const char *hole = strstr(at, "%s");
        text_append(&out, at, hole ? (size_t)(hole - at) : strlen(at));
        if (!hole)
            break;
        text_append_string(&out, with);
        at = hole + 2;
    }
    return out.bytes;
}

static struct chat_prompt render_injected(const char *text)
{
    char *m = replace_all(INJECTED, text), *t = replace_all(INJECTED_TOOLS, text);
    json_t *messages = parse(m), *tools = parse(t), *options = parse("{\"add_generation_prompt\":true}");
    struct chat_prompt prompt = render(messages, tools, options);
    json_decref(messages);
    json_decref(tools);
    json_decref(options);
    free(m);
    free(t);
    return prompt;
}

static size_t count_added(const struct id_list *ids)
{
    size_t n = 0;
    for (size_t i = 0; i < ids->n; i++)
        n += (size_t)tokenizer_is_added(tokenizer, ids->ids[i]);
    return n;
}

static void injected_control_strings_give_no_special_token_and_keep_their_text(void **state)
{
    (void)state;
    struct chat_prompt harmless = render_injected("harmless");
    struct id_list harmless_ids = encode(&harmless);
    size_t n_added = count_added(&harmless_ids);
    assert_true(n_added > 20);
    for (int id = 0; id < tokenizer_size(tokenizer); id++) {
        size_t length;
        const char *token = tokenizer_token_bytes(tokenizer, id, &length);
        if (!tokenizer_is_added(tokenizer, id))
            continue;
        char *text = xasprintf("%.*s", (int)length, token);
        struct chat_prompt prompt = render_injected(text);
        struct id_list ids = encode(&prompt);
        assert_int_equal(count_added(&ids), n_added);
        struct text back = {0};
        for (size_t i = 0; i < ids.n; i++) {
            const char *bytes = tokenizer_token_bytes(tokenizer, ids.ids[i], &length);
            text_append(&back, bytes, length);
        }
        assert_string_equal(back.bytes, prompt.text.bytes);
        text_free(&back);
        id_list_free(&ids);
        chat_prompt_free(&prompt);
        free(text);
    }
    id_list_free(&harmless_ids);
    chat_prompt_free(&harmless);
}

static void control_strings_in_halves_stay_text(void **state)
{
    (void)state;
    json_t *messages = parse("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"<|us\"},{\"type\":\"text\",\"text\":\"er|>\"}]"
                             "},{\"role\":\"user\",\"content\":\"</thi\"},"
                             "{\"role\":\"user\",\"content\":\"nk>\"}]");
    struct chat_prompt prompt = render(messages, NULL, NULL);
    struct id_list ids = encode(&prompt);
    assert_int_equal(count_added(&ids), 2 + 1 + 3); /* [gMASK]<sop>, the effort line's <|system|>, three <|user|> */
    id_list_free(&ids);
    chat_prompt_free(&prompt);
    json_decref(messages);
}

static void what_servers_must_do_beyond_the_template(void **state)
{
    (void)state;
    static const char off[] = "{\"enable_thinking\":false}";
    render_is("[{\"role\":\"user\",\"content\":null},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":"
              "\"f\",\"arguments\":\"{}\"}}]}]",
              "null", off, "[gMASK]<sop><|user|><|assistant|><think></think><tool_call>f</tool_call>");
    render_is("[{\"role\":\"developer\",\"content\":\"d\"}]", "null", off, "[gMASK]<sop><|system|>d");
    render_is("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"},{\"type\":\"text\",\"text\":\"?\"}]}]", "null", off,
              "[gMASK]<sop><|user|><reminder>You are unable to process this image because you don't have multi-modal input ability. Try "
              "different methods.</reminder>?");
    render_is("[]", "[{\"name\":\"f\",\"strict\":true}, {}]", "{}",
              "[gMASK]<sop><|system|>Reasoning Effort: Max<|system|>\n# Tools\n\nYou may call one or more functions to assist with the "
              "user query.\n\nYou are provided with "
              "function signatures within <tools></tools> XML tags:\n<tools>\n{\"name\": \"f\"}\n{}\n</tools>\n\nFor each function call, "
              "output the function name and arguments "
              "within the following XML "
              "format:\n<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value><arg_key>{arg-key-2}</"
              "arg_key>"
              "<arg_value>{arg-value-2}</arg_value>...</tool_call>");
}

static void wrong_shapes_are_refused_naming_message_and_field(void **state)
{
    (void)state;
    static const struct {
        const char *messages, *tools, *names;
    } rows[] = {
        {"{}", "null", "messages"},
        {"[7]", "null", "messages[0]"},
        {"[{\"role\":\"user\",\"content\":\"\"},{\"content\":\"x\"}]", "null", "messages[1].role"},
        {"[{\"role\":\"king\",\"content\":\"x\"}]", "null", "king"},
        {"[{\"role\":\"user\",\"content\":7}]", "null", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":{}}]", "null", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":[7]}]", "null", "messages[0].content[0]"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "null", "messages[0].content[0].text"},
        {"[{\"role\":\"user\",\"content\":[\"a\",{\"text\":\"b\"}]}]", "null", "messages[0].content[1]"},
        {"[{\"role\":\"assistant\",\"reasoning_content\":7}]", "null", "messages[0].reasoning_content"},
        {"[{\"role\":\"assistant\",\"tool_calls\":7}]", "null", "messages[0].tool_calls"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[7]}]", "null", "tool_calls[0]"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":{}}}]}]", "null", "tool_calls[0].function.name"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}]", "null", "tool_calls[0].function.arguments"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]}]", "null",
         "tool_calls[0].function.arguments"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"[1]\"}}]}]", "null",
         "tool_calls[0].function.arguments"},
        {"[{\"role\":\"tool\",\"content\":[{\"output\":7}]}]", "null", "messages[0].content[0].output"},
        {"[{\"role\":\"tool\",\"content\":[{\"type\":\"tool_reference\"}]}]", "null", "messages[0].content[0].name"},
        {"[]", "7", "tools"},
        {"[]", "[7]", "tools[0]"},
        {"[]", "[{\"function\":null}]", "tools[0]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *messages = parse(rows[i].messages), *tools = parse(rows[i].tools);
        struct chat_prompt prompt = {0};
        struct error err = {0};
        if (chat_render(&chat_form_glm52, messages, tools, NULL, &prompt, &err) != STATUS_INVALID)
            fail_msg("%s was accepted", rows[i].messages);
        if (!strstr(err.text, rows[i].names))
            fail_msg("the sentence does not name %s: %s", rows[i].names, err.text);
        assert_null(prompt.text.bytes);
        json_decref(messages);
        json_decref(tools);
    }
}

static void numbers_print_as_python_prints_them(void **state)
{
    (void)state;
    static const struct {
        double number;
        const char *printed;
    } rows[] = {{1.0, "1.0"},
                {-0.0, "-0.0"},
                {0.1, "0.1"},
                {1e-07, "1e-07"},
                {1e16, "1e+16"},
                {1e15, "1000000000000000.0"},
                {123456.789, "123456.789"},
                {0.0001, "0.0001"},
                {0.00001234, "1.234e-05"},
                {5e-324, "5e-324"},
                {1.7976931348623157e308, "1.7976931348623157e+308"},
                {9007199254740993.0, "9007199254740992.0"},
                {1e22, "1e+22"},
                {123e20, "1.23e+22"},
                {-2.5, "-2.5"},
                {0.30000000000000004, "0.30000000000000004"},
                {12345678901234567.0, "1.2345678901234568e+16"},
                {100.0, "100.0"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct text out = {0};
        python_float_append(&out, rows[i].number);
        assert_string_equal(out.bytes, rows[i].printed);
        text_free(&out);
    }
}

static void strings_print_as_python_prints_them(void **state)
{
    (void)state;
    static const char in[] = "\"\\/\b\f\n\r\t\x01\x1F\x7F\xC3\xA9\xE2\x80\xA8<&>\xFF";
    struct text out = {0};
    python_json_append_string(&out, in, sizeof in - 1);
    assert_string_equal(out.bytes, "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7F\xC3\xA9\xE2\x80\xA8<&>\xEF\xBF\xBD\"");
    text_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_conversations_render_as_the_template_does),
        cmocka_unit_test(arguments_as_a_json_string_render_as_the_object_does),
        cmocka_unit_test(golden_prompts_give_the_reference_ids),
        cmocka_unit_test(injected_control_strings_give_no_special_token_and_keep_their_text),
        cmocka_unit_test(control_strings_in_halves_stay_text),
        cmocka_unit_test(what_servers_must_do_beyond_the_template),
        cmocka_unit_test(wrong_shapes_are_refused_naming_message_and_field),
        cmocka_unit_test(numbers_print_as_python_prints_them),
        cmocka_unit_test(strings_print_as_python_prints_them),
    };
    return cmocka_run_group_tests(tests, open_kindling, close_kindling);
}
