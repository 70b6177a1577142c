#include "cli/json_stdio.h"

#include <stdio.h>

#include "common/memory.h"

static const size_t INPUT_BYTES_MAX = (size_t)1 << 30;

static enum status read_all(struct text *out, struct error *err)
{
    char block[1 << 16];
    size_t n;
    while ((n = fread(block, 1, sizeof block, stdin)) > 0) {
        if (n > INPUT_BYTES_MAX - out->length)
            return error_set(err, STATUS_INVALID, "standard input: more than %zu bytes", INPUT_BYTES_MAX);
        text_append(out, block, n);
    }
    return ferror(stdin) ? error_errno(err, STATUS_IO, "standard input: cannot read") : STATUS_OK;
}

static enum status read_array(json_t **out, struct error *err)
{
    struct text input = {0};
    *out = NULL;
    enum status status = read_all(&input, err);
    if (!status) {
        json_error_t where;
        *out = json_loadb(input.bytes ? input.bytes : "", input.length, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &where);
        if (!*out)
            status = error_set(err, STATUS_INVALID, "standard input: line %d: %s", where.line, where.text);
        else if (!json_is_array(*out))
            status = error_set(err, STATUS_INVALID, "standard input: must be a JSON array");
    }
    text_free(&input);
    if (status) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

static enum status print_line(const json_t *value, struct error *err)
{
    if (json_dumpf(value, stdout, JSON_COMPACT | JSON_ENSURE_ASCII) || putchar('\n') == EOF)
        return error_errno(err, STATUS_IO, "standard output: cannot write");
    return STATUS_OK;
}

enum status json_stdio_each(enum status (*one)(void *ctx, const json_t *item, json_t *out, struct error *err), void *ctx, struct error *err)
{
    json_t *in, *out = json_array();
    enum status status = read_array(&in, err);
    for (size_t i = 0; i < json_array_size(in) && !status; i++) {
        status = one(ctx, json_array_get(in, i), out, err);
        if (status)
            status = error_wrap(err, "standard input: [%zu]", i);
    }
    if (!status)
        status = print_line(out, err);
    json_decref(in);
    json_decref(out);
    return status;
}
