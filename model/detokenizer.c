#include "model/detokenizer.h"

#include <string.h>

#include "common/check.h"
#include "model/utf8.h"

/* Bytes at the end of text [length] that are the beginning of a character: 0 to 3. */
static size_t incomplete_tail(const char *bytes, size_t length)
{
    for (size_t n = length < 3 ? length : 3; n > 0; n--)
        if (utf8_next(bytes + length - n, n).kind == UTF8_INCOMPLETE)
            return n;
    return 0;
}

enum status detokenizer_feed(struct detokenizer *detokenizer, const struct tokenizer *tokenizer, int id, struct text *out,
                             struct error *err)
{
    size_t length;
    const char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    if (!bytes)
        return error_set(err, STATUS_INVALID, "token id %d: the tokenizer has no such id", id);
    CHECK(detokenizer->n_held < sizeof detokenizer->held);
    struct text all = {0};
    text_append(&all, detokenizer->held, detokenizer->n_held);
    text_append(&all, bytes, length);
    size_t tail = incomplete_tail(all.bytes, all.length);
    utf8_append_repaired(out, all.bytes, all.length - tail);
    memcpy(detokenizer->held, all.bytes + all.length - tail, tail);
    detokenizer->n_held = tail;
    text_free(&all);
    return STATUS_OK;
}

void detokenizer_finish(struct detokenizer *detokenizer, struct text *out)
{
    utf8_append_repaired(out, detokenizer->held, detokenizer->n_held);
    detokenizer->n_held = 0;
}
