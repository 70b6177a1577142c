#include "model/python_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "model/utf8.h"

void python_float_append(struct text *out, double number)
{
    CHECK(isfinite(number));
    char scientific[40]; /* "-d.ddddddddddddddddde-308" */
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(scientific, sizeof scientific, "%.*e", precision, number);
        if (strtod(scientific, NULL) == number)
            break;
    }
    const char *sign = scientific[0] == '-' ? "-" : "", *mantissa = scientific + (*sign ? 1 : 0);
    char digits[20];
    int n = 0;
    for (const char *p = mantissa; *p != 'e'; p++)
        if (*p != '.')
            digits[n++] = *p;
    digits[n] = 0;
    int exponent = atoi(strchr(mantissa, 'e') + 1);
    char printed[64];
    if (exponent < -4 || exponent >= 16)
        snprintf(printed, sizeof printed, "%s%c%s%se%+03d", sign, digits[0], n > 1 ? "." : "", digits + 1, exponent);
    else if (exponent < 0)
        snprintf(printed, sizeof printed, "%s0.%.*s%s", sign, -exponent - 1, "0000", digits);
    else if (n <= exponent + 1)
        snprintf(printed, sizeof printed, "%s%s%.*s.0", sign, digits, exponent + 1 - n, "0000000000000000");
    else
        snprintf(printed, sizeof printed, "%s%.*s.%s", sign, exponent + 1, digits, digits + exponent + 1);
    text_append_string(out, printed);
}

static void append_escaped(struct text *out, unsigned char byte)
{
    static const char short_form[][2] = {{'"', '"'}, {'\\', '\\'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}, {'\f', 'f'}, {'\b', 'b'}};
    char escape[8];
    for (size_t i = 0; i < sizeof short_form / sizeof *short_form; i++)
        if ((unsigned char)short_form[i][0] == byte) {
            snprintf(escape, sizeof escape, "\\%c", short_form[i][1]);
            text_append_string(out, escape);
            return;
        }
    snprintf(escape, sizeof escape, "\\u%04x", byte);
    text_append_string(out, escape);
}

void python_json_append_string(struct text *out, const char *bytes, size_t length)
{
    struct text repaired = {0};
    if (utf8_valid_prefix(bytes, length) < length) {
        utf8_append_repaired(&repaired, bytes, length);
        bytes = repaired.bytes;
        length = repaired.length;
    }
    text_append(out, "\"", 1);
    size_t begin = 0;
    for (size_t at = 0; at < length; at++) {
        unsigned char byte = (unsigned char)bytes[at];
        if (byte >= 0x20 && byte != '"' && byte != '\\')
            continue;
        text_append(out, bytes + begin, at - begin);
        append_escaped(out, byte);
        begin = at + 1;
    }
    text_append(out, bytes + begin, length - begin);
    text_append(out, "\"", 1);
    text_free(&repaired);
}

static void append_object(struct text *out, const json_t *object)
{
    const char *key, *separator = "";
    json_t *value;
    text_append_string(out, "{");
    json_object_foreach((json_t *)object, key, value)
    {
        text_append_string(out, separator);
        python_json_append_string(out, key, strlen(key));
        text_append_string(out, ": ");
        python_json_append(out, value);
        separator = ", ";
    }
    text_append_string(out, "}");
}

static void append_array(struct text *out, const json_t *array)
{
    text_append_string(out, "[");
    for (size_t i = 0; i < json_array_size(array); i++) {
        text_append_string(out, i ? ", " : "");
        python_json_append(out, json_array_get(array, i));
    }
    text_append_string(out, "]");
}

/* Recursion is as deep as the value, which jansson's parser bounds (2048). */
void python_json_append(struct text *out, const json_t *value)
{
    char integer[32];
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        append_object(out, value);
        break;
    case JSON_ARRAY:
        append_array(out, value);
        break;
    case JSON_STRING:
        python_json_append_string(out, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        snprintf(integer, sizeof integer, "%lld", (long long)json_integer_value(value));
        text_append_string(out, integer);
        break;
    case JSON_REAL:
        python_float_append(out, json_real_value(value));
        break;
    case JSON_TRUE:
        text_append_string(out, "true");
        break;
    case JSON_FALSE:
        text_append_string(out, "false");
        break;
    case JSON_NULL:
        text_append_string(out, "null");
        break;
    }
}
