/* Goal: ids equal to the reference tokenizer's on every golden case; what people write never gives an added token; time stays near linear
 * on long runs; a damaged tokenizer.json is refused by name. Method: golden cases, rendered prompts cut into spans, generated long texts,
 * the real file with one thing broken at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include "common/memory.h"
#include "model/text_splitter.h"
#include "model/tokenizer.h"

#define KINDLING SOURCE_DIR "/models/kindling/tokenizer.json"

static struct tokenizer *tokenizer;

static int open_kindling(void **state)
{
    (void)state;
    struct error err = {0};
    if (tokenizer_open(&tokenizer, KINDLING, &err))
        fail_msg("%s", err.text);
    return 0;
}

static int close_kindling(void **state)
{
    (void)state;
    tokenizer_close(&tokenizer);
    assert_null(tokenizer);
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

static struct id_list encode(const char *bytes, size_t length, int is_template)
{
    struct id_list ids = {0};
    struct error err = {0};
    struct text_span span = {bytes, length, is_template};
    if (tokenizer_encode(tokenizer, &span, 1, &ids, &err))
        fail_msg("%s", err.text);
    return ids;
}

/* The bytes of all ids, one after the other. */
static struct text bytes_of(const struct id_list *ids)
{
    struct text all = {0};
    for (size_t i = 0; i < ids->n; i++) {
        size_t length;
        const char *bytes = tokenizer_token_bytes(tokenizer, ids->ids[i], &length);
        assert_non_null(bytes);
        text_append(&all, bytes, length);
    }
    return all;
}

static void golden_texts_give_the_reference_ids(void **state)
{
    (void)state;
    json_t *cases = load(SOURCE_DIR "/tests/golden/tokenizer/cases.json");
    assert_true(json_array_size(cases) >= 400);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *text = json_object_get(json_array_get(cases, i), "text"), *wanted = json_object_get(json_array_get(cases, i), "ids");
        struct id_list ids = encode(json_string_value(text), json_string_length(text), 1);
        if (ids.n != json_array_size(wanted))
            fail_msg("case %zu: %zu ids, wanted %zu", i, ids.n, json_array_size(wanted));
        for (size_t t = 0; t < ids.n; t++)
            assert_int_equal(ids.ids[t], json_integer_value(json_array_get(wanted, t)));
        id_list_free(&ids);
    }
    json_decref(cases);
}

/* Texts and the reference's pieces of them. Octal escapes: three digits end one, whatever follows. */
static const char *const reference_pieces[][2] = {
    {"a  b", "a| | b"},
    {"a \012 b", "a| \012| b"},
    {"a\011\011b\302\205\302\205c", "a|\011|\011b|\302\205|\302\205c"},
    {"x\302\240\302\240y", "x|\302\240|\302\240y"},
    {"x\341\240\216\341\240\216y", "x|\341\240\216\341\240\216|y"},
    {"x\342\200\250\342\200\250y", "x|\342\200\250|\342\200\250y"},
    {"x\342\200\213\342\200\213y", "x|\342\200\213\342\200\213|y"},
    {"\343\200\200\343\200\200z", "\343\200\200|\343\200\200z"},
    {"\034\034q", "\034\034|q"},
    {"a  ", "a|  "},
    {"DON'T we'\305\277 's'x", "DON|'T| we|'\305\277| '|s|'x"},
    {"12345\331\241\331\242\331\243", "123|45\331\241|\331\242\331\243"},
    {"!!!\015\012\015\012 x", "!!!\015\012\015\012| x"},
    {"_a__b", "_a|__|b"},
    {"e\314\201a", "e|\314\201a"},
    {"\315\270\315\270a\012", "\315\270\315\270|a|\012"},
    {"a'b", "a|'b"},
};

/* The pieces with "|" between them. */
static struct text split(struct text_splitter *splitter, const char *text)
{
    struct split_scratch *scratch = split_scratch_new(splitter);
    struct text pieces = {0};
    struct error err;
    size_t length = strlen(text);
    for (size_t begin = 0, end; begin < length; begin = end) {
        assert_int_equal(text_splitter_next(splitter, scratch, text, length, begin, &end, &err), STATUS_OK);
        text_append_string(&pieces, begin ? "|" : "");
        text_append(&pieces, text + begin, end - begin);
    }
    split_scratch_free(&scratch);
    return pieces;
}

/* Kindling's vocabulary is too small to show where rare characters are cut; the reference's pieces of these texts are. */
static void pieces_are_the_reference_pieces(void **state)
{
    (void)state;
    json_t *root = load(KINDLING);
    const json_t *first = json_array_get(json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers"), 0);
    const json_t *expression = json_object_get(json_object_get(first, "pattern"), "Regex");
    struct text_splitter *splitter;
    struct error err;
    assert_int_equal(text_splitter_open(&splitter, json_string_value(expression), json_string_length(expression), &err), STATUS_OK);
    for (size_t i = 0; i < sizeof reference_pieces / sizeof *reference_pieces; i++) {
        struct text pieces = split(splitter, reference_pieces[i][0]);
        assert_string_equal(pieces.bytes, reference_pieces[i][1]);
        text_free(&pieces);
    }
    text_splitter_close(&splitter);
    json_decref(root);
}

static void cutting_plain_text_into_spans_changes_no_id(void **state)
{
    (void)state;
    static const char text[] = "The coordinator's caf\xC3\xA9 opens at 12345 \n\n  o'clock, isn't it?";
    struct id_list whole = encode(text, strlen(text), 0);
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        /* The left part as template, the right as people's text: the border must leave no trace, inside a character too. */
        struct text_span spans[] = {{text, cut, 1}, {text + cut, strlen(text) - cut, 0}};
        struct id_list ids = {0};
        struct error err = {0};
        assert_int_equal(tokenizer_encode(tokenizer, spans, 2, &ids, &err), STATUS_OK);
        assert_int_equal(ids.n, whole.n);
        assert_memory_equal(ids.ids, whole.ids, whole.n * sizeof *ids.ids);
        id_list_free(&ids);
    }
    id_list_free(&whole);
}

static void what_people_write_never_gives_an_added_token(void **state)
{
    (void)state;
    int n_added = 0;
    for (int id = 0; id < tokenizer_size(tokenizer); id++) {
        if (!tokenizer_is_added(tokenizer, id))
            continue;
        n_added++;
        struct text text = {0};
        size_t length;
        const char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
        text_append_string(&text, "x");
        text_append(&text, bytes, length);
        text_append(&text, bytes, length);
        struct id_list as_template = encode(text.bytes, text.length, 1), plain = encode(text.bytes, text.length, 0);
        assert_int_equal(as_template.n, 3);
        assert_int_equal(as_template.ids[2], id);
        for (size_t i = 0; i < plain.n; i++)
            assert_false(tokenizer_is_added(tokenizer, plain.ids[i]));
        struct text back = bytes_of(&plain);
        assert_string_equal(back.bytes, text.bytes);
        text_free(&back);
        text_free(&text);
        id_list_free(&as_template);
        id_list_free(&plain);
    }
    assert_int_equal(n_added, 36);
}

static void an_added_token_across_two_spans_is_text(void **state)
{
    (void)state;
    struct text_span spans[] = {{"<|us", 4, 0}, {"er|>", 4, 0}, {"<thi", 4, 1}, {"nk>", 3, 0}, {"</th", 4, 0}, {"ink>", 4, 1}};
    struct id_list ids = {0};
    struct error err = {0};
    assert_int_equal(tokenizer_encode(tokenizer, spans, 6, &ids, &err), STATUS_OK);
    for (size_t i = 0; i < ids.n; i++)
        assert_false(tokenizer_is_added(tokenizer, ids.ids[i]));
    struct text back = bytes_of(&ids);
    assert_string_equal(back.bytes, "<|user|><think></think>");
    text_free(&back);
    id_list_free(&ids);
}

static void any_bytes_encode_and_broken_utf8_becomes_replacement_characters(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } rows[] = {{"a\xFF", "a\xEF\xBF\xBD"},
                {"\xE4\xBD", "\xEF\xBF\xBD"},
                {"\xE4\xBD!", "\xEF\xBF\xBD!"},
                {"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},
                {"\xED\xA0\x80x", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDx"},
                {"\xF0\x9F\x98", "\xEF\xBF\xBD"},
                {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct id_list ids = encode(rows[i].in, strlen(rows[i].in), 0);
        struct text back = bytes_of(&ids);
        assert_string_equal(back.bytes, rows[i].out);
        text_free(&back);
        id_list_free(&ids);
    }
    srand(7);
    for (int round = 0; round < 2000; round++) {
        char bytes[64];
        size_t length = (size_t)rand() % sizeof bytes;
        for (size_t i = 0; i < length; i++)
            bytes[i] = (char)rand();
        struct id_list ids = encode(bytes, length, round & 1);
        id_list_free(&ids);
    }
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* 512 KB and 2 MB of one thing: linear growth is 4, quadratic 16; the bound of 9 leaves room for n log n, caches and sanitizers. */
static void long_runs_take_near_linear_time(void **state)
{
    (void)state;
    static const char *const units[] = {"Z",
                                        " ",
                                        "\n",
                                        " \n",
                                        "\xCC\x81",
                                        "us",
                                        "!",
                                        "1",
                                        "<",
                                        "'",
                                        "\xE4\xBD\xA0",
                                        "\xF0\x9F\x91\xA8\xE2\x80\x8D",
                                        "\xE2\x80\xAE",
                                        "\xCD\xB8",
                                        "\xFF"};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        double took[2];
        for (int large = 0; large < 2; large++) {
            size_t bytes = large ? 2 << 20 : 512 << 10;
            struct text text = {0};
            while (text.length < bytes)
                text_append_string(&text, units[u]);
            double start = seconds();
            struct id_list ids = encode(text.bytes, text.length, 1);
            took[large] = seconds() - start;
            if (units[u][0] != '\xFF') {
                struct text back = bytes_of(&ids);
                assert_int_equal(back.length, text.length);
                assert_memory_equal(back.bytes, text.bytes, text.length);
                text_free(&back);
            }
            id_list_free(&ids);
            text_free(&text);
        }
        if (took[1] > 9 * took[0] + 0.2)
            fail_msg("unit %zu: %.3f s for 512 KB, %.3f s for 2 MB", u, took[0], took[1]);
    }
}

/* ---- damaged files ---- */

static enum status open_text(const char *text, size_t length, struct error *err)
{
    char path[] = "/tmp/hearth-tokenizer-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, length), (ssize_t)length);
    close(fd);
    struct tokenizer *opened;
    enum status status = tokenizer_open(&opened, path, err);
    if (status) {
        assert_null(opened);
        if (!strstr(err->text, path))
            fail_msg("the sentence does not name the file: %s", err->text);
    }
    tokenizer_close(&opened);
    unlink(path);
    return status;
}

static enum status open_json(const json_t *root, struct error *err)
{
    char *text = json_dumps(root, JSON_COMPACT);
    enum status status = open_text(text, strlen(text), err);
    free(text);
    return status;
}

/* One thing broken: the value at a path of keys and indexes ("model/merges/0"), and what the sentence must contain. NULL value: removed. */
struct damage {
    const char *where, *value, *names;
};

static void set_at(json_t *root, const char *where, json_t *value)
{
    char *path = xstrdup(where), *rest = path, *key = strsep(&rest, "/");
    json_t *at = root;
    for (; rest; key = strsep(&rest, "/"))
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
    if (json_is_array(at))
        assert_int_equal(value ? json_array_set(at, (size_t)atoi(key), value) : json_array_remove(at, (size_t)atoi(key)), 0);
    else
        assert_int_equal(value ? json_object_set(at, key, value) : json_object_del(at, key), 0);
    free(path);
}

static void each_damage_is_refused_naming_file_and_thing(void **state)
{
    (void)state;
    static const struct damage rows[] = {
        {"model/vocab/!", NULL, "0x21"},
        {"model/vocab/new", "3", "id 3"},
        {"model/vocab/new", "2147483648", "2147483648"},
        {"model/vocab/new", "2097152", "2097152"},
        {"model/vocab/new", "-1", "-1"},
        {"model/vocab/new", "1.5", "new"},
        {"model/vocab/new", "\"x\"", "new"},
        {"model/vocab/", "3700", "empty token"},
        {"model/vocab/a b", "3700", "a b"},
        {"model/vocab", "[]", "model.vocab"},
        {"model/vocab", "{}", "model.vocab"},
        {"model/merges/0", "[\"nowhere\",\"a\"]", "nowhere"},
        {"model/merges/0", "[\"q\",\"\\u0120\"]", "merges[0]"},
        {"model/merges/1", "\"ab\"", "merges[1]"},
        {"model/merges/2", "[\"a\"]", "merges[2]"},
        {"model/merges/2", "17", "merges[2]"},
        {"model/merges", "{}", "model.merges"},
        {"model/type", "\"Unigram\"", "Unigram"},
        {"model/byte_fallback", "true", "byte_fallback"},
        {"model/unk_token", "\"<unk>\"", "unk_token"},
        {"model/dropout", "0.1", "dropout"},
        {"model/end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
        {"model/ignore_merges", "3", "ignore_merges"},
        {"model/surprise", "1", "surprise"},
        {"model", "7", "model"},
        {"added_tokens/0/content", "\"\"", "added_tokens[0].content"},
        {"added_tokens/0/content", "7", "added_tokens[0].content"},
        {"added_tokens/1/content", "\"<|endoftext|>\"", "added_tokens[1]"},
        {"added_tokens/1/id", "3600", "id 3600"},
        {"added_tokens/1/id", "3", "id 3"},
        {"added_tokens/1/id", "2147483648", "2147483648"},
        {"added_tokens/1/id", NULL, "added_tokens[1]"},
        {"added_tokens/2/lstrip", "true", "added_tokens[2].lstrip"},
        {"added_tokens/2/single_word", "true", "single_word"},
        {"added_tokens/3", "{\"id\":3344,\"content\":\"the\",\"special\":true}", "added_tokens[3]"},
        {"added_tokens", "3", "added_tokens"},
        {"normalizer", "{\"type\":\"NFC\"}", "normalizer"},
        {"truncation", "{\"max_length\":5}", "truncation"},
        {"post_processor", "{\"type\":\"BertProcessing\"}", "post_processor"},
        {"decoder/type", "\"WordPiece\"", "WordPiece"},
        {"decoder", NULL, "decoder"},
        {"version", "\"2.0\"", "version"},
        {"pre_tokenizer", "null", "pre_tokenizer"},
        {"pre_tokenizer/type", "\"Whitespace\"", "Whitespace"},
        {"pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", "Removed"},
        {"pre_tokenizer/pretokenizers/0/invert", "true", "invert"},
        {"pre_tokenizer/pretokenizers/0/pattern", "{\"String\":\"x\"}", "pattern"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(a\"", "regular expression"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"a*\"", "empty"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\"", "regular expression"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(a+)+$\"", "backtracks"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(x+x+)+y\"", "backtracks"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(?:a|a)*b|(?=(?:.?.?){12}z).\"", "backtracks"}, /* many matches, each within the limit of one */
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(?:(?=[^z]*y)a)+$\"", "backtracks"}, /* dear steps */
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(?=(?:(?=[^~]*[^a])[^~]){1000})(?:.{1,40}~|.)\"", "500 ms"}, /* many places */
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\w+\"", "\\w"},
        {"pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "add_prefix_space"},
        {"pre_tokenizer/pretokenizers/1/use_regex", "true", "use_regex"},
        {"pre_tokenizer/pretokenizers/1", NULL, "pretokenizers"},
    };
    json_t *root = load(KINDLING);
    struct error err = {0};
    if (open_json(root, &err))
        fail_msg("the undamaged copy is refused: %s", err.text);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *damaged = json_deep_copy(root), *value = rows[i].value ? json_loads(rows[i].value, JSON_DECODE_ANY, NULL) : NULL;
        assert_true(value || !rows[i].value);
        set_at(damaged, rows[i].where, value);
        double start = seconds();
        if (!open_json(damaged, &err))
            fail_msg("%s = %s was accepted", rows[i].where, rows[i].value ? rows[i].value : "(removed)");
        if (!strstr(err.text, rows[i].names))
            fail_msg("%s: the sentence does not name %s: %s", rows[i].where, rows[i].names, err.text);
        if (seconds() - start > 2) /* half a second for the trial, the rest for reading the file under sanitizers */
            fail_msg("%s = %s took %.1f s", rows[i].where, rows[i].value ? rows[i].value : "(removed)", seconds() - start);
        json_decref(value);
        json_decref(damaged);
    }
    json_decref(root);
}

/* Goal: a text that would take gigabytes to merge is an error with a sentence, and the tokenizer goes on working. */
static void a_piece_and_a_text_beyond_their_limits_are_refused(void **state)
{
    (void)state;
    struct error err = {0};
    char *text = malloc(ENCODE_BYTES_MAX + 1);
    assert_non_null(text);
    memset(text, 'a', ENCODE_BYTES_MAX + 1);
    struct id_list ids = {0};
    struct text_span span = {text, PIECE_BYTES_MAX + 1, 0};
    assert_int_equal(tokenizer_encode(tokenizer, &span, 1, &ids, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "8388609 bytes"));
    assert_int_equal(ids.n, 0);
    span.length = ENCODE_BYTES_MAX + 1;
    assert_int_equal(tokenizer_encode(tokenizer, &span, 1, &ids, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "67108864 bytes"));
    span.length = 8;
    assert_int_equal(tokenizer_encode(tokenizer, &span, 1, &ids, &err), STATUS_OK);
    id_list_free(&ids);
    free(text);
}

static void a_file_that_is_no_json_is_refused(void **state)
{
    (void)state;
    struct error err;
    struct text braces = {0};
    while (braces.length < 10 << 20)
        text_append_string(&braces, "{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{");
    assert_int_not_equal(open_text(braces.bytes, braces.length, &err), STATUS_OK);
    text_clear(&braces);
    while (braces.length < 1 << 20)
        text_append_string(&braces, "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[");
    assert_int_not_equal(open_text(braces.bytes, braces.length, &err), STATUS_OK);
    text_free(&braces);
    assert_int_not_equal(open_text("", 0, &err), STATUS_OK);
    assert_int_not_equal(open_text("{}", 2, &err), STATUS_OK);
    assert_int_not_equal(open_text("[]", 2, &err), STATUS_OK);
    assert_int_not_equal(open_text("{\"a\":1,\"a\":2}", 13, &err), STATUS_OK);
    struct tokenizer *opened;
    assert_int_equal(tokenizer_open(&opened, SOURCE_DIR "/models", &err), STATUS_INVALID);
    assert_int_equal(tokenizer_open(&opened, SOURCE_DIR "/models/none.json", &err), STATUS_NOT_FOUND);
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    json_t *root = load(KINDLING);
    char *text = json_dumps(root, JSON_COMPACT);
    size_t length = strlen(text);
    struct error err;
    for (size_t cut = 1; cut < length; cut += length / 15)
        assert_int_not_equal(open_text(text, cut, &err), STATUS_OK);
    free(text);
    json_decref(root);
}

/* Opens a changed copy of kindling's file and encodes one text with it. */
static struct id_list encode_with(const json_t *root, const char *text, int is_template)
{
    char path[] = "/tmp/hearth-tokenizer-XXXXXX";
    close(mkstemp(path));
    assert_int_equal(json_dump_file(root, path, 0), 0);
    struct tokenizer *other;
    struct error err = {0};
    struct text_span span = {text, strlen(text), is_template};
    struct id_list ids = {0};
    if (tokenizer_open(&other, path, &err) || tokenizer_encode(other, &span, 1, &ids, &err))
        fail_msg("%s", err.text);
    tokenizer_close(&other);
    unlink(path);
    return ids;
}

static void merges_may_be_spelt_as_strings(void **state)
{
    (void)state;
    json_t *root = load(KINDLING), *merges = json_object_get(json_object_get(root, "model"), "merges"), *joined = json_array();
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *pair = json_array_get(merges, i);
        json_array_append_new(
            joined, json_sprintf("%s %s", json_string_value(json_array_get(pair, 0)), json_string_value(json_array_get(pair, 1))));
    }
    json_object_set_new(json_object_get(root, "model"), "merges", joined);
    static const char text[] = "The experts of hidden layers stream from the disk, don't they? 2024";
    struct id_list ids = encode_with(root, text, 0), wanted = encode(text, strlen(text), 0);
    assert_int_equal(ids.n, wanted.n);
    assert_memory_equal(ids.ids, wanted.ids, ids.n * sizeof *ids.ids);
    id_list_free(&ids);
    id_list_free(&wanted);
    json_decref(root);
}

static void a_piece_that_is_a_token_is_taken_whole_only_with_ignore_merges(void **state)
{
    (void)state;
    json_t *root = load(KINDLING);
    json_t *model = json_object_get(root, "model");
    json_object_set_new(json_object_get(model, "vocab"), "\xC4\xA0zqxj", json_integer(3700)); /* no merge makes it */
    struct id_list ids = encode_with(root, "a zqxj", 0);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.ids[1], 3700);
    id_list_free(&ids);
    json_object_set_new(model, "ignore_merges", json_false());
    ids = encode_with(root, "a zqxj", 0);
    assert_true(ids.n > 2);
    id_list_free(&ids);
    json_decref(root);
}

static void of_added_tokens_the_leftmost_then_the_longest_wins(void **state)
{
    (void)state;
    json_t *root = load(KINDLING), *added = json_object_get(root, "added_tokens");
    json_array_append_new(added, json_pack("{s:i, s:s}", "id", 3700, "content", "<|user|>more"));
    json_array_append_new(added, json_pack("{s:i, s:s}", "id", 3701, "content", "er|>more and more"));
    json_array_append_new(added,
                          json_pack("{s:i, s:s, s:b}", "id", 3702, "content", "!<|user|>", "normalized", 1)); /* searched in what is left */
    struct id_list ids = encode_with(root, "<|user|>more and more!<|user|>", 1);
    assert_int_equal(ids.ids[0], 3700);
    assert_int_equal(ids.ids[ids.n - 1], 3607);
    for (size_t i = 1; i + 1 < ids.n; i++)
        assert_true(ids.ids[i] < 3600);
    id_list_free(&ids);
    ids = encode_with(root, "!<|user|", 1);
    for (size_t i = 0; i < ids.n; i++)
        assert_true(ids.ids[i] < 3600);
    id_list_free(&ids);
    json_decref(root);
}

static void size_find_and_bytes_agree(void **state)
{
    (void)state;
    assert_int_equal(tokenizer_size(tokenizer), 3636);
    size_t length;
    for (int id = 0; id < tokenizer_size(tokenizer); id++) {
        const char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
        assert_non_null(bytes);
        assert_int_equal(tokenizer_find(tokenizer, bytes, length), id);
    }
    assert_null(tokenizer_token_bytes(tokenizer, -1, &length));
    assert_null(tokenizer_token_bytes(tokenizer, 3636, &length));
    assert_int_equal(tokenizer_find(tokenizer, "<|user|>", 8), 3607);
    assert_int_equal(tokenizer_find(tokenizer, "no such token at all", 20), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_texts_give_the_reference_ids),
        cmocka_unit_test(pieces_are_the_reference_pieces),
        cmocka_unit_test(cutting_plain_text_into_spans_changes_no_id),
        cmocka_unit_test(what_people_write_never_gives_an_added_token),
        cmocka_unit_test(an_added_token_across_two_spans_is_text),
        cmocka_unit_test(any_bytes_encode_and_broken_utf8_becomes_replacement_characters),
        cmocka_unit_test(long_runs_take_near_linear_time),
        cmocka_unit_test(a_piece_and_a_text_beyond_their_limits_are_refused),
        cmocka_unit_test(each_damage_is_refused_naming_file_and_thing),
        cmocka_unit_test(a_file_that_is_no_json_is_refused),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(merges_may_be_spelt_as_strings),
        cmocka_unit_test(a_piece_that_is_a_token_is_taken_whole_only_with_ignore_merges),
        cmocka_unit_test(of_added_tokens_the_leftmost_then_the_longest_wins),
        cmocka_unit_test(size_find_and_bytes_agree),
    };
    return cmocka_run_group_tests(tests, open_kindling, close_kindling);
}
