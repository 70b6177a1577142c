/* Token ids to text, one at a time, never half a character. The pieces joined are what decoding the whole list at once gives: bytes that
 * can become no character come out as U+FFFD, one for each longest broken piece. Special tokens come out as their text; the caller decides
 * which ids to feed. */
#ifndef HEARTH_MODEL_DETOKENIZER_H
#define HEARTH_MODEL_DETOKENIZER_H

#include <stddef.h>

#include "common/error.h"
#include "common/memory.h"
#include "model/tokenizer.h"

/* Zero-initialise; owns nothing. */
struct detokenizer {
    char held[4]; /* the beginning of a character */
    size_t n_held;
};

/* Appends what is complete after this id to out. Fails (STATUS_INVALID) when the tokenizer has no such id; nothing has changed then. */
enum status detokenizer_feed(struct detokenizer *detokenizer, const struct tokenizer *tokenizer, int id, struct text *out,
                             struct error *err);

/* Ends the text: a character that never became whole is one U+FFFD. The detokenizer is as new afterwards. */
void detokenizer_finish(struct detokenizer *detokenizer, struct text *out);

#endif
