/* Goal: ids fed one by one give, joined, what the reference decodes from the whole list, and never half a character. Method: golden cases;
 * random ids against a plain decoder of the joined bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "common/memory.h"
#include "model/detokenizer.h"
#include "model/utf8.h"

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

/* Decodes ids one by one; after each, what came out must be whole characters. */
static struct text decode(const int *ids, size_t n)
{
    struct detokenizer detokenizer = {0};
    struct text out = {0};
    struct error err = {0};
    for (size_t i = 0; i < n; i++) {
        if (detokenizer_feed(&detokenizer, tokenizer, ids[i], &out, &err))
            fail_msg("%s", err.text);
        assert_int_equal(utf8_valid_prefix(out.bytes, out.length), out.length);
    }
    detokenizer_finish(&detokenizer, &out);
    assert_int_equal(utf8_valid_prefix(out.bytes, out.length), out.length);
    return out;
}

static void golden_ids_decode_to_the_reference_text(void **state)
{
    (void)state;
    json_t *cases = json_load_file(SOURCE_DIR "/tests/golden/tokenizer/cases.json", JSON_ALLOW_NUL, NULL);
    assert_true(json_array_size(cases) >= 400);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *ids = json_object_get(json_array_get(cases, i), "ids"),
                     *wanted = json_object_get(json_array_get(cases, i), "decoded");
        struct id_list list = {0};
        for (size_t t = 0; t < json_array_size(ids); t++)
            id_list_push(&list, (int)json_integer_value(json_array_get(ids, t)));
        struct text text = decode(list.ids, list.n);
        assert_int_equal(text.length, json_string_length(wanted));
        if (text.length)
            assert_memory_equal(text.bytes, json_string_value(wanted), text.length);
        text_free(&text);
        id_list_free(&list);
    }
    json_decref(cases);
}

static int byte_id(int byte)
{
    char c = (char)byte;
    return tokenizer_find(tokenizer, &c, 1);
}

static void decode_is(const char *bytes, const char *wanted)
{
    struct id_list ids = {0};
    for (const char *b = bytes; *b; b++)
        id_list_push(&ids, byte_id((unsigned char)*b));
    struct text text = decode(ids.ids, ids.n);
    assert_string_equal(text.bytes, wanted);
    text_free(&text);
    id_list_free(&ids);
}

static void broken_bytes_become_one_replacement_for_each_longest_piece(void **state)
{
    (void)state;
    decode_is("\xE4\xBD\xA0", "\xE4\xBD\xA0");
    decode_is("\xE4\xBD", "\xEF\xBF\xBD");
    decode_is("\xE4\xBD!", "\xEF\xBF\xBD!");
    decode_is("\xE4\xE4\xBD\xA0", "\xEF\xBF\xBD\xE4\xBD\xA0");
    decode_is("\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80");
    decode_is("\xF0\x9F\x98z", "\xEF\xBF\xBDz");
    decode_is("\xF0\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    decode_is("\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    decode_is("\x80\xBF", "\xEF\xBF\xBD\xEF\xBF\xBD");
}

static void half_a_character_waits(void **state)
{
    (void)state;
    struct detokenizer detokenizer = {0};
    struct text out = {0};
    struct error err;
    static const unsigned char bytes[] = {0xF0, 0x9F, 0x98, 0x80};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(out.length, 0);
        assert_int_equal(detokenizer_feed(&detokenizer, tokenizer, byte_id(bytes[i]), &out, &err), STATUS_OK);
    }
    assert_int_equal(out.length, 4);
    text_free(&out);
}

static void any_ids_decode_as_their_joined_bytes_do(void **state)
{
    (void)state;
    srand(11);
    for (int round = 0; round < 5000; round++) {
        int ids[24];
        size_t n = (size_t)rand() % 24;
        struct text bytes = {0}, wanted = {0};
        for (size_t i = 0; i < n; i++) {
            ids[i] = rand() % 3 ? rand() % 256 : rand() % tokenizer_size(tokenizer);
            size_t length;
            const char *token = tokenizer_token_bytes(tokenizer, ids[i], &length);
            text_append(&bytes, token, length);
        }
        utf8_append_repaired(&wanted, bytes.bytes, bytes.length);
        struct text text = decode(ids, n);
        assert_int_equal(text.length, wanted.length);
        if (wanted.length)
            assert_memory_equal(text.bytes, wanted.bytes, wanted.length);
        text_free(&text);
        text_free(&bytes);
        text_free(&wanted);
    }
}

static void an_unknown_id_is_an_error_and_changes_nothing(void **state)
{
    (void)state;
    struct detokenizer detokenizer = {0};
    struct text out = {0};
    struct error err;
    assert_int_equal(detokenizer_feed(&detokenizer, tokenizer, byte_id(0xE4), &out, &err), STATUS_OK);
    assert_int_equal(detokenizer_feed(&detokenizer, tokenizer, 3636, &out, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "3636"));
    assert_int_equal(detokenizer_feed(&detokenizer, tokenizer, -1, &out, &err), STATUS_INVALID);
    assert_int_equal(detokenizer.n_held, 1);
    detokenizer_finish(&detokenizer, &out);
    assert_string_equal(out.bytes, "\xEF\xBF\xBD");
    text_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_ids_decode_to_the_reference_text),
        cmocka_unit_test(broken_bytes_become_one_replacement_for_each_longest_piece),
        cmocka_unit_test(half_a_character_waits),
        cmocka_unit_test(any_ids_decode_as_their_joined_bytes_do),
        cmocka_unit_test(an_unknown_id_is_an_error_and_changes_nothing),
    };
    return cmocka_run_group_tests(tests, open_kindling, close_kindling);
}
