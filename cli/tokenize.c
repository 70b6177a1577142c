/* hearth tokenize: text to token ids and back, for checking a tokenizer against another. */
#include <stddef.h>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/json_stdio.h"
#include "common/memory.h"
#include "model/detokenizer.h"
#include "model/tokenizer.h"

struct tokenize_options {
    const char *model;
    int json, plain, decode;
};

static const struct option_row rows[] = {
    {"model", OPTION_TEXT, offsetof(struct tokenize_options, model), NULL, 0, 0, NULL, "DIR", "the model, for its tokenizer.json"},
    {"json", OPTION_FLAG, offsetof(struct tokenize_options, json), NULL, 0, 0, NULL, NULL, "JSON in, JSON out (the only form so far)"},
    {"plain", OPTION_FLAG, offsetof(struct tokenize_options, plain), NULL, 0, 0, NULL, NULL,
     "read <|user|> and the like as text, as in what people write"},
    {"decode", OPTION_FLAG, offsetof(struct tokenize_options, decode), NULL, 0, 0, NULL, NULL, "the other way: arrays of ids to strings"},
};

static enum status encode_one(const struct tokenizer *tokenizer, const json_t *item, int is_template, json_t *ids, struct error *err)
{
    if (!json_is_string(item))
        return error_set(err, STATUS_INVALID, "must be a string");
    struct text_span span = {json_string_value(item), json_string_length(item), is_template};
    struct id_list list = {0};
    enum status status = tokenizer_encode(tokenizer, &span, 1, &list, err);
    for (size_t i = 0; i < list.n && !status; i++)
        json_array_append_new(ids, json_integer(list.ids[i]));
    id_list_free(&list);
    return status;
}

static enum status decode_one(const struct tokenizer *tokenizer, const json_t *item, struct text *out, struct error *err)
{
    if (!json_is_array(item))
        return error_set(err, STATUS_INVALID, "must be an array of ids");
    struct detokenizer detokenizer = {0};
    for (size_t i = 0; i < json_array_size(item); i++) {
        const json_t *id = json_array_get(item, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= tokenizer_size(tokenizer))
            return error_set(err, STATUS_INVALID, "[%zu] must be an id from 0 to %d", i, tokenizer_size(tokenizer) - 1);
        enum status status = detokenizer_feed(&detokenizer, tokenizer, (int)json_integer_value(id), out, err);
        if (status)
            return error_wrap(err, "[%zu]", i);
    }
    detokenizer_finish(&detokenizer, out);
    return STATUS_OK;
}

struct conversion {
    struct tokenizer *tokenizer;
    const struct tokenize_options *o;
};

static enum status convert_one(void *ctx, const json_t *item, json_t *out, struct error *err)
{
    const struct conversion *c = ctx;
    if (!c->o->decode) {
        json_t *ids = json_array();
        json_array_append_new(out, ids);
        return encode_one(c->tokenizer, item, !c->o->plain, ids, err);
    }
    struct text text = {0};
    enum status status = decode_one(c->tokenizer, item, &text, err);
    if (!status)
        json_array_append_new(out, json_stringn(text.bytes ? text.bytes : "", text.length));
    text_free(&text);
    return status;
}

static enum status run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)arguments, (void)n_arguments;
    const struct tokenize_options *o = options;
    if (!o->model)
        return command_usage(err, "--model DIR is missing");
    if (!o->json)
        return command_usage(err, "--json is missing");
    if (o->plain && o->decode)
        return command_usage(err, "--plain is about reading text, it has no meaning with --decode");
    struct conversion conversion = {NULL, o};
    char *path = xasprintf("%s/tokenizer.json", o->model);
    enum status status = tokenizer_open(&conversion.tokenizer, path, err);
    if (!status)
        status = json_stdio_each(convert_one, &conversion, err);
    tokenizer_close(&conversion.tokenizer);
    free(path);
    return status;
}

const struct command tokenize_command = {
    .name = "tokenize",
    .arguments = "",
    .summary = "Turn texts into token ids, or ids into texts.",
    .details = "Reads an array of strings on standard input and prints an array of arrays of ids; with --decode the other way.",
    .options = rows,
    .n_options = sizeof rows / sizeof *rows,
    .options_bytes = sizeof(struct tokenize_options),
    .run = run,
};
