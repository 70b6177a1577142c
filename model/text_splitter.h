/* Cuts text into the pieces that BPE works on, by the regular expression of tokenizer.json (PCRE2 with JIT, Unicode classes).
 * The expression is written for Oniguruma; what PCRE2 would read differently is translated (\s is White_Space) or refused by name. */
#ifndef HEARTH_MODEL_TEXT_SPLITTER_H
#define HEARTH_MODEL_TEXT_SPLITTER_H

#include <stddef.h>

#include "common/error.h"

struct text_splitter;

/* Compiles the expression and tries it on long runs: one that can match nothing, needs more than linear memory or backtracks without end is
 * refused, within about a second whatever it says. On success the caller closes *out. */
enum status text_splitter_open(struct text_splitter **out, const char *expression, size_t length, struct error *err);
void text_splitter_close(struct text_splitter **splitter);

/* Working memory of one thread. */
struct split_scratch;
struct split_scratch *split_scratch_new(const struct text_splitter *splitter);
void split_scratch_free(struct split_scratch **scratch);

/* Where the piece that starts at `begin` ends: a match of the expression, or what lies before the next match. text [length] is valid UTF-8,
 * begin < length; *end > begin. Fails (STATUS_UNSUPPORTED) when the expression backtracks too much on this text. */
enum status text_splitter_next(const struct text_splitter *splitter, struct split_scratch *scratch, const char *text, size_t length,
                               size_t begin, size_t *end, struct error *err);

#endif
