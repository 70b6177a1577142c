#include "model/chat_value.h"

#include <string.h>

#include "common/check.h"
#include "model/python_json.h"

/* Schemas nest through anyOf; a hostile one is not followed further than this. */
enum { SCHEMA_DEPTH_MAX = 8 };

static unsigned type_bit(const json_t *name)
{
    static const struct {
        const char *name;
        unsigned bit;
    } rows[] = {{"string", VALUE_STRING}, {"integer", VALUE_INTEGER}, {"number", VALUE_NUMBER}, {"boolean", VALUE_BOOLEAN},
                {"null", VALUE_NULL},     {"object", VALUE_OBJECT},   {"array", VALUE_ARRAY}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (json_is_string(name) && !strcmp(json_string_value(name), rows[i].name))
            return rows[i].bit;
    return 0;
}

static unsigned bit_of_value(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return VALUE_OBJECT;
    case JSON_ARRAY:
        return VALUE_ARRAY;
    case JSON_STRING:
        return VALUE_STRING;
    case JSON_INTEGER:
        return VALUE_INTEGER;
    case JSON_REAL:
        return VALUE_NUMBER;
    case JSON_NULL:
        return VALUE_NULL;
    default:
        return VALUE_BOOLEAN;
    }
}

static unsigned types_of_schema(const json_t *schema, int depth)
{
    static const char *const alternatives[] = {"anyOf", "oneOf"};
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum"),
                 *constant = json_object_get(schema, "const");
    unsigned types = type_bit(type);
    for (size_t i = 0; i < json_array_size(type); i++)
        types |= type_bit(json_array_get(type, i));
    for (size_t a = 0; a < 2 && depth < SCHEMA_DEPTH_MAX; a++) {
        const json_t *list = json_object_get(schema, alternatives[a]);
        for (size_t i = 0; i < json_array_size(list); i++)
            types |= types_of_schema(json_array_get(list, i), depth + 1);
    }
    if (types)
        return types;
    for (size_t i = 0; i < json_array_size(values); i++)
        types |= bit_of_value(json_array_get(values, i));
    return constant ? types | bit_of_value(constant) : types;
}

unsigned chat_value_types(const json_t *tools, const char *tool, const char *parameter)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *body = json_array_get(tools, i);
        if (json_object_get(body, "function"))
            body = json_object_get(body, "function");
        const char *name = json_string_value(json_object_get(body, "name"));
        if (name && !strcmp(name, tool))
            return types_of_schema(json_object_get(json_object_get(json_object_get(body, "parameters"), "properties"), parameter), 0);
    }
    return 0;
}

/* The type of the text read as JSON, 0 when it is none. Whole numbers of any size count as integers. */
static unsigned json_type_of_text(const char *bytes, size_t length)
{
    json_error_t where;
    json_t *value = json_loadb(bytes, length, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &where);
    if (!value)
        return 0;
    unsigned bit = bit_of_value(value);
    json_decref(value);
    if (bit == VALUE_NUMBER && !memchr(bytes, '.', length) && !memchr(bytes, 'e', length) && !memchr(bytes, 'E', length))
        bit = VALUE_INTEGER;
    return bit;
}

static int is_json_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

void chat_value_append(struct text *out, const char *bytes, size_t length, unsigned types)
{
    unsigned found = types == VALUE_STRING ? 0 : json_type_of_text(bytes, length);
    unsigned fitting = types & ~(unsigned)VALUE_STRING;
    if (fitting & VALUE_NUMBER)
        fitting |= VALUE_INTEGER;
    if (!found || (types & VALUE_STRING && !(found & fitting))) {
        python_json_append_string(out, bytes, length);
        return;
    }
    while (is_json_space(*bytes))
        bytes++, length--;
    while (is_json_space(bytes[length - 1]))
        length--;
    text_append(out, bytes, length);
}
