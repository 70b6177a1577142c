#include "common/memory.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

static void *must(void *memory)
{
    if (!memory) {
        fprintf(stderr, "out of memory\n");
        abort();
    }
    return memory;
}

void *xcalloc(size_t count, size_t bytes)
{
    return must(calloc(count ? count : 1, bytes ? bytes : 1));
}

void *xrealloc(void *old, size_t bytes)
{
    return must(realloc(old, bytes ? bytes : 1));
}

char *xstrdup(const char *text)
{
    return must(strdup(text));
}

char *xasprintf(const char *format, ...)
{
    char *out = NULL;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&out, format, args);
    va_end(args);
    return must(length < 0 ? NULL : out);
}

void text_append(struct text *text, const char *bytes, size_t length)
{
    CHECK(length < SIZE_MAX / 2 - text->length);
    if (text->length + length + 1 > text->capacity) {
        text->capacity = (text->length + length + 1) * 2;
        text->bytes = xrealloc(text->bytes, text->capacity);
    }
    if (length)
        memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = 0;
}

void text_append_string(struct text *text, const char *string)
{
    text_append(text, string, strlen(string));
}

void text_clear(struct text *text)
{
    text->length = 0;
    if (text->bytes)
        text->bytes[0] = 0;
}

void text_free(struct text *text)
{
    free(text->bytes);
    *text = (struct text){0};
}
