/* JSON as Python's json.dumps(ensure_ascii=False) prints it, byte for byte: that is what the model saw in training. Separators ", " and ":
 * ", keys in the order of the file, numbers as Python's repr prints them (1e-07, 1e+16, 1.0, -0.0). */
#ifndef HEARTH_MODEL_PYTHON_JSON_H
#define HEARTH_MODEL_PYTHON_JSON_H

#include <jansson.h>

#include "common/memory.h"

void python_json_append(struct text *out, const json_t *value);

/* A string with its quotes. Bytes that are not UTF-8 are taken as U+FFFD. */
void python_json_append_string(struct text *out, const char *bytes, size_t length);

/* repr(float): the shortest digits that read back as the same number. number is finite. */
void python_float_append(struct text *out, double number);

#endif
