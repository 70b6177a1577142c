#include "model/tokenizer_file.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/json.h"
#include "model/utf8.h"

static const size_t FILE_BYTES_MAX = (size_t)1 << 30;

/* Byte-level vocabularies spell each byte as one printable character: the 188 printable Latin-1 characters stand for themselves, the other
 * bytes, in order, for U+0100 and on. alphabet[c] is the byte of character c, -1 for characters outside. */
enum { ALPHABET_SIZE = 0x100 + 68 };

static int stands_for_itself(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

static void make_alphabet(int alphabet[ALPHABET_SIZE])
{
    for (int c = 0; c < ALPHABET_SIZE; c++)
        alphabet[c] = -1;
    int next = 0x100;
    for (int byte = 0; byte < 256; byte++)
        alphabet[stands_for_itself(byte) ? byte : next++] = byte;
    CHECK(next == ALPHABET_SIZE);
}

/* Appends the bytes that a token's spelling stands for; 0 when a character is not in the alphabet. */
static int append_spelt(struct text *out, const int alphabet[ALPHABET_SIZE], const char *spelling, size_t length)
{
    for (size_t at = 0; at < length;) {
        struct utf8_piece piece = utf8_next(spelling + at, length - at);
        if (piece.kind != UTF8_CHARACTER || piece.codepoint >= ALPHABET_SIZE || alphabet[piece.codepoint] < 0)
            return 0;
        char byte = (char)alphabet[piece.codepoint];
        text_append(out, &byte, 1);
        at += piece.length;
    }
    return 1;
}

/* Values that mean "not used". */
static int is_off(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) || (json_is_string(value) && !json_string_length(value)) ||
           (json_is_number(value) && json_number_value(value) == 0);
}

/* A key of an object of the file, and what we do about it. */
struct key_rule {
    const char *name;
    enum { KEY_READ, KEY_IGNORED, KEY_MUST_BE_OFF } use;
};

/* Every key must have a rule, and those that we do not implement must be off. */
static enum status check_keys(const json_t *object, const char *where, const struct key_rule *rules, size_t n_rules, struct error *err)
{
    if (!json_is_object(object))
        return error_set(err, STATUS_INVALID, "%s must be an object", where);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        size_t i = 0;
        while (i < n_rules && strcmp(rules[i].name, key))
            i++;
        if (i == n_rules || (rules[i].use == KEY_MUST_BE_OFF && !is_off(value)))
            return error_set(err, STATUS_UNSUPPORTED, "%s.%.100s is set, but not supported", where, key);
    }
    return STATUS_OK;
}
#define CHECK_KEYS(object, where, rules, err) check_keys(object, where, rules, sizeof(rules) / sizeof *(rules), err)

static int is_type(const json_t *object, const char *type)
{
    const char *value = json_string_value(json_object_get(object, "type"));
    return value && !strcmp(value, type);
}

static enum status expect_type(const json_t *object, const char *where, const char *type, struct error *err)
{
    const char *value = json_string_value(json_object_get(object, "type"));
    if (value && !strcmp(value, type))
        return STATUS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "%s.type is %.100s, only %s is implemented", where, value ? value : "not a string", type);
}

static enum status read_vocabulary(struct tokenizer_tables *tables, const json_t *vocabulary, const int *alphabet, struct error *err)
{
    if (!json_is_object(vocabulary) || !json_object_size(vocabulary))
        return error_set(err, STATUS_INVALID, "model.vocab must be an object with tokens");
    struct text bytes = {0};
    enum status status = STATUS_OK;
    const char *spelling;
    json_t *id;
    json_object_foreach((json_t *)vocabulary, spelling, id)
    {
        text_clear(&bytes);
        if (!*spelling)
            status = error_set(err, STATUS_INVALID, "model.vocab: an empty token");
        else if (!json_is_integer(id))
            status = error_set(err, STATUS_INVALID, "model.vocab: the id of \"%.100s\" must be a whole number", spelling);
        else if (!append_spelt(&bytes, alphabet, spelling, strlen(spelling)))
            status = error_set(err, STATUS_UNSUPPORTED, "model.vocab: \"%.100s\" has a character outside the byte alphabet", spelling);
        else if (token_table_add(&tables->tokens, json_integer_value(id), bytes.bytes, bytes.length, err))
            status = error_wrap(err, "model.vocab: \"%.100s\"", spelling);
        if (status)
            break;
    }
    text_free(&bytes);
    return status;
}

static enum status find_byte_tokens(struct tokenizer_tables *tables, struct error *err)
{
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        tables->bpe.byte_ids[byte] = token_table_find(&tables->tokens, &c, 1);
        if (tables->bpe.byte_ids[byte] < 0)
            return error_set(err, STATUS_INVALID, "model.vocab: no token for the byte 0x%02X: not a byte-level vocabulary", byte);
    }
    return STATUS_OK;
}

/* The two halves of a merge, as spelt: ["a", "b"] or "a b" (a space is never part of a spelling: it is spelt U+0120). */
static int merge_halves(const json_t *merge, const char *half[2], size_t length[2])
{
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++) {
            half[i] = json_string_value(json_array_get(merge, i));
            length[i] = json_string_length(json_array_get(merge, i));
        }
        return half[0] && half[1];
    }
    const char *both = json_string_value(merge), *space = both ? strchr(both, ' ') : NULL;
    if (!space)
        return 0;
    half[0] = both, length[0] = (size_t)(space - both);
    half[1] = space + 1, length[1] = strlen(space + 1);
    return 1;
}

static enum status read_merge(struct tokenizer_tables *tables, const json_t *merge, size_t rank, const int *alphabet, struct text *bytes,
                              struct error *err)
{
    const char *half[2];
    size_t length[2];
    int ids[2];
    if (!merge_halves(merge, half, length))
        return error_set(err, STATUS_INVALID, "model.merges[%zu] must be \"a b\" or [\"a\", \"b\"]", rank);
    text_clear(bytes);
    for (int i = 0; i < 2; i++) {
        size_t begin = bytes->length;
        ids[i] = -1;
        if (append_spelt(bytes, alphabet, half[i], length[i]))
            ids[i] = token_table_find(&tables->tokens, bytes->bytes + begin, bytes->length - begin);
        if (ids[i] < 0)
            return error_set(err, STATUS_INVALID, "model.merges[%zu]: \"%.*s\" is not in model.vocab", rank,
                             (int)(length[i] < 100 ? length[i] : 100), half[i]);
    }
    int id = token_table_find(&tables->tokens, bytes->bytes, bytes->length);
    if (id < 0)
        return error_set(err, STATUS_INVALID, "model.merges[%zu]: \"%.60s\" and \"%.60s\" give a token that is not in model.vocab", rank,
                         half[0], half[1]);
    bpe_add_merge(&tables->bpe, ids[0], ids[1], (uint32_t)rank, id);
    return STATUS_OK;
}

static enum status read_merges(struct tokenizer_tables *tables, const json_t *merges, const int *alphabet, struct error *err)
{
    if (!json_is_array(merges) || json_array_size(merges) > TOKEN_IDS_MAX)
        return error_set(err, STATUS_INVALID, "model.merges must be a list of at most %d", TOKEN_IDS_MAX);
    struct text bytes = {0};
    enum status status = STATUS_OK;
    for (size_t rank = 0; rank < json_array_size(merges) && !status; rank++)
        status = read_merge(tables, json_array_get(merges, rank), rank, alphabet, &bytes, err);
    text_free(&bytes);
    return status;
}

static enum status read_model(struct tokenizer_tables *tables, const json_t *model, struct error *err)
{
    static const struct key_rule rules[] = {
        {"type", KEY_READ},
        {"vocab", KEY_READ},
        {"merges", KEY_READ},
        {"ignore_merges", KEY_READ},
        {"dropout", KEY_MUST_BE_OFF},
        {"unk_token", KEY_MUST_BE_OFF},
        {"continuing_subword_prefix", KEY_MUST_BE_OFF},
        {"end_of_word_suffix", KEY_MUST_BE_OFF},
        {"fuse_unk", KEY_IGNORED}, /* means nothing without unk_token */
        {"byte_fallback", KEY_MUST_BE_OFF},
    };
    int alphabet[ALPHABET_SIZE];
    make_alphabet(alphabet);
    enum status status = CHECK_KEYS(model, "model", rules, err);
    if (!status)
        status = expect_type(model, "model", "BPE", err);
    if (!status)
        status = json_get_bool(model, "ignore_merges", 0, &tables->ignores_merges, "model", err);
    if (!status)
        status = read_vocabulary(tables, json_object_get(model, "vocab"), alphabet, err);
    if (!status)
        status = find_byte_tokens(tables, err);
    if (!status)
        status = read_merges(tables, json_object_get(model, "merges"), alphabet, err);
    return status;
}

static enum status read_split(struct tokenizer_tables *tables, const json_t *split, struct error *err)
{
    static const char where[] = "pre_tokenizer.pretokenizers[0]";
    static const struct key_rule rules[] = {{"type", KEY_READ}, {"pattern", KEY_READ}, {"behavior", KEY_READ}, {"invert", KEY_MUST_BE_OFF}};
    enum status status = CHECK_KEYS(split, where, rules, err);
    if (!status)
        status = expect_type(split, where, "Split", err);
    if (status)
        return status;
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    if (!behavior || strcmp(behavior, "Isolated"))
        return error_set(err, STATUS_UNSUPPORTED, "%s.behavior is %.100s, only Isolated is implemented", where,
                         behavior ? behavior : "not a string");
    const json_t *pattern = json_object_get(split, "pattern"), *expression = json_object_get(pattern, "Regex");
    if (!json_is_string(expression) || json_object_size(pattern) != 1)
        return error_set(err, STATUS_UNSUPPORTED, "%s.pattern must be {\"Regex\": \"...\"}", where);
    status = text_splitter_open(&tables->splitter, json_string_value(expression), json_string_length(expression), err);
    return status ? error_wrap(err, "%s.pattern: the regular expression is refused", where) : STATUS_OK;
}

static enum status read_pre_tokenizer(struct tokenizer_tables *tables, const json_t *pre, struct error *err)
{
    static const char where[] = "pre_tokenizer.pretokenizers[1]";
    static const struct key_rule rules[] = {{"type", KEY_READ}, {"pretokenizers", KEY_READ}};
    static const struct key_rule byte_rules[] = {
        {"type", KEY_READ}, {"add_prefix_space", KEY_MUST_BE_OFF}, {"trim_offsets", KEY_IGNORED}, {"use_regex", KEY_READ}};
    enum status status = CHECK_KEYS(pre, "pre_tokenizer", rules, err);
    if (!status)
        status = expect_type(pre, "pre_tokenizer", "Sequence", err);
    if (status)
        return status;
    const json_t *steps = json_object_get(pre, "pretokenizers");
    if (json_array_size(steps) != 2)
        return error_set(err, STATUS_UNSUPPORTED, "pre_tokenizer.pretokenizers must be a Split and a ByteLevel");
    status = read_split(tables, json_array_get(steps, 0), err);
    const json_t *bytes = json_array_get(steps, 1);
    if (!status)
        status = CHECK_KEYS(bytes, where, byte_rules, err);
    if (!status)
        status = expect_type(bytes, where, "ByteLevel", err);
    /* The format's defaults for missing keys are true, and true is what we do not do. */
    if (!status && !(json_is_false(json_object_get(bytes, "add_prefix_space")) && json_is_false(json_object_get(bytes, "use_regex"))))
        status = error_set(err, STATUS_UNSUPPORTED, "%s: add_prefix_space and use_regex must be false", where);
    return status;
}

static enum status read_added_token(struct tokenizer_tables *tables, const json_t *token, size_t index, struct error *err)
{
    static const struct key_rule rules[] = {
        {"id", KEY_READ},
        {"content", KEY_READ},
        {"single_word", KEY_MUST_BE_OFF},
        {"lstrip", KEY_MUST_BE_OFF},
        {"rstrip", KEY_MUST_BE_OFF},
        {"special", KEY_READ},
        {"normalized", KEY_READ},
    };
    char where[64];
    snprintf(where, sizeof where, "added_tokens[%zu]", index);
    enum status status = CHECK_KEYS(token, where, rules, err);
    int64_t id;
    int is_normalized = 0, is_special;
    if (!status)
        status = json_get_int(token, "id", 0, TOKEN_IDS_MAX - 1, -1, &id, where, err);
    if (!status)
        status = json_get_bool(token, "normalized", 0, &is_normalized, where, err);
    if (!status)
        status = json_get_bool(token, "special", 0, &is_special, where, err);
    if (status)
        return status;
    const json_t *content = json_object_get(token, "content");
    size_t length = json_string_length(content), known_length;
    if (!json_is_string(content) || !length || length > ADDED_TOKEN_BYTES_MAX)
        return error_set(err, STATUS_INVALID, "%s.content must be a text of 1 to %d bytes", where, ADDED_TOKEN_BYTES_MAX);
    /* An added token may be listed in the vocabulary too. */
    const char *known = token_table_bytes(&tables->tokens, id, &known_length);
    if (!known || known_length != length || memcmp(known, json_string_value(content), length)) {
        if (token_table_add(&tables->tokens, id, json_string_value(content), length, err))
            return error_wrap(err, "%s (\"%.100s\")", where, json_string_value(content));
    }
    tables->added[tables->n_added++] = (struct added_token){(int)id, is_normalized};
    return STATUS_OK;
}

/* Counting sort by first byte, then by length within. */
struct added_key {
    struct added_token token;
    unsigned char first;
    size_t length;
};

static int compare_added(const void *a, const void *b)
{
    const struct added_key *x = a, *y = b;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    if (x->length != y->length)
        return x->length > y->length ? -1 : 1;
    return x->token.id < y->token.id ? -1 : x->token.id > y->token.id;
}

static void sort_added(struct tokenizer_tables *tables)
{
    size_t n = (size_t)tables->n_added;
    struct added_key *keys = xcalloc(n, sizeof *keys);
    for (size_t i = 0; i < n; i++) {
        const char *bytes = token_table_bytes(&tables->tokens, tables->added[i].id, &keys[i].length);
        keys[i].token = tables->added[i];
        keys[i].first = (unsigned char)bytes[0];
    }
    qsort(keys, n, sizeof *keys, compare_added);
    for (size_t i = 0; i < n; i++) {
        tables->added[i] = keys[i].token;
        tables->added_begin[keys[i].first + 1] = (int)i + 1;
    }
    for (int b = 1; b <= 256; b++)
        if (tables->added_begin[b] < tables->added_begin[b - 1])
            tables->added_begin[b] = tables->added_begin[b - 1];
    free(keys);
}

static enum status read_added_tokens(struct tokenizer_tables *tables, const json_t *added, struct error *err)
{
    if (added && !json_is_null(added) && !json_is_array(added))
        return error_set(err, STATUS_INVALID, "added_tokens must be a list");
    if (json_array_size(added) > ADDED_TOKENS_MAX)
        return error_set(err, STATUS_INVALID, "added_tokens: %zu tokens, allowed are %d", json_array_size(added), ADDED_TOKENS_MAX);
    tables->added = xcalloc(json_array_size(added), sizeof *tables->added);
    for (size_t i = 0; i < json_array_size(added); i++) {
        enum status status = read_added_token(tables, json_array_get(added, i), i, err);
        if (status)
            return status;
    }
    tables->is_added = xcalloc(tables->tokens.n_ids, 1);
    for (int i = 0; i < tables->n_added; i++) {
        if (tables->is_added[tables->added[i].id])
            return error_set(err, STATUS_INVALID, "added_tokens: id %d is used twice", tables->added[i].id);
        tables->is_added[tables->added[i].id] = 1;
    }
    sort_added(tables);
    return STATUS_OK;
}

/* What people write must not become an added token by merging, nor a byte be one. */
static enum status check_plain_ids(const struct tokenizer_tables *tables, struct error *err)
{
    for (int byte = 0; byte < 256; byte++)
        if (tables->is_added[tables->bpe.byte_ids[byte]])
            return error_set(err, STATUS_UNSUPPORTED, "added_tokens: id %d is also the byte 0x%02X", tables->bpe.byte_ids[byte], byte);
    for (size_t i = 0; i < tables->bpe.n_slots; i++) {
        const struct bpe_merge *merge = &tables->bpe.slots[i];
        if (merge->id_plus_one && tables->is_added[merge->id_plus_one - 1])
            return error_set(err, STATUS_UNSUPPORTED, "added_tokens: id %u is also the result of model.merges[%u]", merge->id_plus_one - 1,
                             merge->rank);
    }
    return STATUS_OK;
}

static enum status check_surroundings(const json_t *root, struct error *err)
{
    static const struct key_rule rules[] = {
        {"version", KEY_READ},        {"truncation", KEY_MUST_BE_OFF}, {"padding", KEY_MUST_BE_OFF},
        {"added_tokens", KEY_READ},   {"normalizer", KEY_MUST_BE_OFF}, {"pre_tokenizer", KEY_READ},
        {"post_processor", KEY_READ}, {"decoder", KEY_READ},           {"model", KEY_READ},
    };
    enum status status = CHECK_KEYS(root, "tokenizer", rules, err);
    if (status)
        return status;
    const char *version = json_string_value(json_object_get(root, "version"));
    if (version && strcmp(version, "1.0"))
        return error_set(err, STATUS_UNSUPPORTED, "version is \"%.20s\", only 1.0 is implemented", version);
    /* A post-processor adds tokens around a text only when asked to; the chat form writes [gMASK]<sop> itself. ByteLevel moves offsets,
     * which we do not have. */
    const json_t *post = json_object_get(root, "post_processor");
    if (!is_off(post) && !is_type(post, "ByteLevel") && !is_type(post, "TemplateProcessing"))
        return error_set(err, STATUS_UNSUPPORTED, "post_processor is set, but only ByteLevel and TemplateProcessing are known");
    return expect_type(json_object_get(root, "decoder"), "decoder", "ByteLevel", err);
}

enum status tokenizer_file_read(struct tokenizer_tables *tables, const char *path, struct error *err)
{
    json_t *root;
    enum status status = json_read_file(&root, path, FILE_BYTES_MAX, err);
    if (status)
        return status;
    status = check_surroundings(root, err);
    if (!status)
        status = read_model(tables, json_object_get(root, "model"), err);
    if (!status)
        status = read_pre_tokenizer(tables, json_object_get(root, "pre_tokenizer"), err);
    if (!status)
        status = read_added_tokens(tables, json_object_get(root, "added_tokens"), err);
    if (!status)
        status = check_plain_ids(tables, err);
    json_decref(root);
    if (status) {
        tokenizer_tables_release(tables);
        return error_wrap(err, "%s", path);
    }
    return STATUS_OK;
}

void tokenizer_tables_release(struct tokenizer_tables *tables)
{
    token_table_release(&tables->tokens);
    bpe_release(&tables->bpe);
    text_splitter_close(&tables->splitter);
    free(tables->added);
    free(tables->is_added);
    *tables = (struct tokenizer_tables){0};
}
