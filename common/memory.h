/* Allocation for what is small or bounded by a file that was already measured: stops the process when memory is gone, because nothing sensible
 * can follow. What grows with the model or the context goes through a budget instead (common/budget.h). */
#ifndef HEARTH_COMMON_MEMORY_H
#define HEARTH_COMMON_MEMORY_H

#include <stddef.h>

void *xcalloc(size_t count, size_t bytes); /* zeroed; never NULL */
void *xrealloc(void *old, size_t bytes);
char *xstrdup(const char *text);
char *xasprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A growing byte string, always terminated by a zero that is not counted. Zero-initialise; free with text_free. */
struct text {
    char *bytes;
    size_t length, capacity;
};
void text_append(struct text *text, const char *bytes, size_t length);
void text_append_string(struct text *text, const char *string);
void text_clear(struct text *text); /* keeps the memory */
void text_free(struct text *text);

#endif
