/* Finds the first end of any of several strings in a text that arrives in pieces (Knuth, Morris and Pratt, one automaton a string). Text
 * that may be the beginning of one is held back, nothing else is. */
#ifndef HEARTH_COORDINATOR_TEXT_SEARCH_H
#define HEARTH_COORDINATOR_TEXT_SEARCH_H

#include <stddef.h>

#include "common/memory.h"

struct text_pattern {
    char *bytes;
    size_t length;
    size_t *border; /* [length] longest proper prefix of bytes[0..i] that is also its end */
    size_t n_matched;
};

struct text_search {
    struct text_pattern *patterns;
    size_t n;
    struct text held;
};

/* Strings are copied, none may be empty. */
void text_search_init(struct text_search *search, const char *const *strings, size_t n);
void text_search_release(struct text_search *search);

/* Appends to out what can no longer be part of a string. Returns 1 when one was found: out then ends before it and *rest is the number of
 * bytes of this piece behind it; the search starts anew. The string that ends first wins, of those that end together the longest. */
int text_search_feed(struct text_search *search, const char *bytes, size_t length, struct text *out, size_t *rest);

/* What was held back comes out after all. */
void text_search_flush(struct text_search *search, struct text *out);

#endif
