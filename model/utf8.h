/* UTF-8 as everybody who repairs it agrees (Unicode 3.9, "maximal subpart"): each longest broken piece becomes one U+FFFD. */
#ifndef HEARTH_MODEL_UTF8_H
#define HEARTH_MODEL_UTF8_H

#include <stddef.h>
#include <stdint.h>

#include "common/memory.h"

enum utf8_kind {
    UTF8_CHARACTER,  /* a whole character */
    UTF8_BROKEN,     /* bytes that no continuation can turn into a character: one U+FFFD */
    UTF8_INCOMPLETE, /* the input ends inside a character that is fine so far */
};

struct utf8_piece {
    enum utf8_kind kind;
    size_t length;      /* bytes, 1 to 4 */
    uint32_t codepoint; /* of a character, else 0 */
};

/* Looks at the first character of bytes [length], length > 0. */
struct utf8_piece utf8_next(const char *bytes, size_t length);

/* The number of leading bytes that are valid UTF-8. */
size_t utf8_valid_prefix(const char *bytes, size_t length);

/* Appends bytes to out with U+FFFD for every broken or incomplete piece; the result is valid UTF-8. */
void utf8_append_repaired(struct text *out, const char *bytes, size_t length);

/* White space as Python's str.isspace and str.strip see it. */
int utf8_is_python_space(uint32_t codepoint);

#endif
