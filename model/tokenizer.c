#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"
#include "model/tokenizer_file.h"
#include "model/utf8.h"

struct tokenizer {
    struct tokenizer_tables tables;
};

/* One call of tokenizer_encode. */
struct encoder {
    const struct tokenizer_tables *tables;
    struct text plain;    /* text since the last added token, not yet encoded */
    struct text repaired; /* `plain` as valid UTF-8, where it is not */
    struct split_scratch *split;
    struct bpe_scratch bpe;
    struct id_list *out;
};

enum status tokenizer_open(struct tokenizer **out, const char *path, struct error *err)
{
    struct tokenizer *tokenizer = xcalloc(1, sizeof *tokenizer);
    enum status status = tokenizer_file_read(&tokenizer->tables, path, err);
    if (status)
        tokenizer_close(&tokenizer);
    *out = tokenizer;
    return status;
}

void tokenizer_close(struct tokenizer **tokenizer)
{
    if (!*tokenizer)
        return;
    tokenizer_tables_release(&(*tokenizer)->tables);
    free(*tokenizer);
    *tokenizer = NULL;
}

int tokenizer_size(const struct tokenizer *tokenizer)
{
    return (int)tokenizer->tables.tokens.n_ids;
}

const char *tokenizer_token_bytes(const struct tokenizer *tokenizer, int id, size_t *length)
{
    return token_table_bytes(&tokenizer->tables.tokens, id, length);
}

int tokenizer_find(const struct tokenizer *tokenizer, const char *bytes, size_t length)
{
    return token_table_find(&tokenizer->tables.tokens, bytes, length);
}

int tokenizer_is_added(const struct tokenizer *tokenizer, int id)
{
    return id >= 0 && id < tokenizer_size(tokenizer) && tokenizer->tables.is_added[id];
}

static enum status encode_piece(struct encoder *e, const char *bytes, size_t length, struct error *err)
{
    if (length > PIECE_BYTES_MAX)
        return error_set(err, STATUS_INVALID, "%zu bytes of the text have no border between words, at most %d may", length, PIECE_BYTES_MAX);
    if (e->tables->ignores_merges) {
        int id = token_table_find(&e->tables->tokens, bytes, length);
        if (id >= 0 && !e->tables->is_added[id]) {
            id_list_push(e->out, id);
            return STATUS_OK;
        }
    }
    bpe_encode(&e->tables->bpe, bytes, length, &e->bpe, e->out);
    return STATUS_OK;
}

/* Encodes what has gathered in `plain` as one string and empties it. */
static enum status flush_plain(struct encoder *e, struct error *err)
{
    const struct text *text = &e->plain;
    if (utf8_valid_prefix(text->bytes, text->length) < text->length) {
        text_clear(&e->repaired);
        utf8_append_repaired(&e->repaired, text->bytes, text->length);
        text = &e->repaired;
    }
    for (size_t begin = 0, end; begin < text->length; begin = end) {
        enum status status = text_splitter_next(e->tables->splitter, e->split, text->bytes, text->length, begin, &end, err);
        if (status)
            return error_wrap(err, "the tokenizer's regular expression");
        status = encode_piece(e, text->bytes + begin, end - begin, err);
        if (status)
            return status;
    }
    text_clear(&e->plain);
    return STATUS_OK;
}

/* The longest added token of a pass that starts here, -1 when there is none. */
static int added_at(const struct tokenizer_tables *tables, int pass, const char *bytes, size_t length, size_t *token_length)
{
    unsigned char first = (unsigned char)bytes[0];
    for (int i = tables->added_begin[first]; i < tables->added_begin[first + 1]; i++) {
        const char *token = token_table_bytes(&tables->tokens, tables->added[i].id, token_length);
        if (tables->added[i].pass == pass && *token_length <= length && !memcmp(token, bytes, *token_length))
            return tables->added[i].id;
    }
    return -1;
}

/* Finds added tokens leftmost-longest; pass 1 sees the stretches that pass 0 leaves, as the reference does. */
static enum status encode_template(struct encoder *e, int pass, const char *bytes, size_t length, struct error *err)
{
    size_t begin = 0, token_length;
    enum status status = STATUS_OK;
    for (size_t at = 0; at <= length && !status;) {
        int id = at < length ? added_at(e->tables, pass, bytes + at, length - at, &token_length) : -1;
        if (id < 0 && at < length) {
            at++;
            continue;
        }
        if (pass == 0)
            status = encode_template(e, 1, bytes + begin, at - begin, err);
        else
            text_append(&e->plain, bytes + begin, at - begin);
        if (at == length)
            break;
        if (!status)
            status = flush_plain(e, err);
        id_list_push(e->out, id);
        begin = at += token_length;
    }
    return status;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const struct text_span *spans, size_t n_spans, struct id_list *out,
                             struct error *err)
{
    size_t total = 0;
    for (size_t i = 0; i < n_spans; i++) {
        if (spans[i].length > ENCODE_BYTES_MAX - total)
            return error_set(err, STATUS_INVALID, "the text is longer than the %d bytes that can be encoded at once", ENCODE_BYTES_MAX);
        total += spans[i].length;
    }
    struct encoder e = {.tables = &tokenizer->tables, .split = split_scratch_new(tokenizer->tables.splitter), .out = out};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n_spans && !status; i++) {
        if (spans[i].is_template)
            status = encode_template(&e, 0, spans[i].bytes, spans[i].length, err);
        else
            text_append(&e.plain, spans[i].bytes, spans[i].length);
    }
    if (!status)
        status = flush_plain(&e, err);
    text_free(&e.plain);
    text_free(&e.repaired);
    split_scratch_free(&e.split);
    bpe_scratch_free(&e.bpe);
    return status;
}
