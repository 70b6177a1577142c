/* The JSON that a tool argument's text stands for, by the tool's schema (spec section 8.4). */
#ifndef HEARTH_MODEL_CHAT_VALUE_H
#define HEARTH_MODEL_CHAT_VALUE_H

#include <jansson.h>
#include <stddef.h>

#include "common/memory.h"

/* The types that a schema allows for one value, as bits. */
enum {
    VALUE_STRING = 1,
    VALUE_INTEGER = 2,
    VALUE_NUMBER = 4,
    VALUE_BOOLEAN = 8,
    VALUE_NULL = 16,
    VALUE_OBJECT = 32,
    VALUE_ARRAY = 64,
};

/* What tools (an array in either of OpenAI's forms, or NULL) say about a parameter; 0 when they say nothing. */
unsigned chat_value_types(const json_t *tools, const char *tool, const char *parameter);

/* Appends the value as JSON: a string, or the text itself where it is JSON of a fitting type. */
void chat_value_append(struct text *out, const char *bytes, size_t length, unsigned types);

#endif
