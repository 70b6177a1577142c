#include "proto/wire_scan.h"

#include <string.h>

#include "common/check.h"

enum { TAG_BYTES_MAX = 2, VARINT_BYTES_MAX = 10, DEPTH_MAX = 2, FIELDS_MAX = 64 };

/* Bytes that are still to be read. */
struct cursor {
    const uint8_t *at, *end;
};

/* Returns the number of bytes, 0 when they end too early, are too many or the value needs more than 64 bits. */
static int take_varint(struct cursor *c, int bytes_max, uint64_t *value)
{
    *value = 0;
    for (int i = 0; i < bytes_max && c->at + i < c->end; i++) {
        uint8_t byte = c->at[i];
        if (i == VARINT_BYTES_MAX - 1 && byte > 1)
            return 0;
        *value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            c->at += i + 1;
            return i + 1;
        }
    }
    return 0;
}

static unsigned wire_type(const ProtobufCFieldDescriptor *field)
{
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        return PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED;
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED;
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return PROTOBUF_C_WIRE_TYPE_64BIT;
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return PROTOBUF_C_WIRE_TYPE_32BIT;
    default:
        return PROTOBUF_C_WIRE_TYPE_VARINT;
    }
}

/* protobuf-c cuts longer numbers to the type's bits without a word. */
static int varint_fits(const ProtobufCFieldDescriptor *field, uint64_t value)
{
    return field->type == PROTOBUF_C_TYPE_UINT64 || value <= (field->type == PROTOBUF_C_TYPE_ENUM ? INT32_MAX : UINT32_MAX);
}

static enum status scan_list(const char *message, const ProtobufCFieldDescriptor *field, struct cursor c, size_t list_max,
                             struct error *err)
{
    size_t n = 0, element = field->type == PROTOBUF_C_TYPE_FLOAT ? 4 : 0, bytes = (size_t)(c.end - c.at);
    CHECK(element || field->type == PROTOBUF_C_TYPE_UINT32);
    if (!bytes || (element && bytes % element))
        return error_set(err, STATUS_INVALID, "%s: %s: a list of %zu bytes", message, field->name, bytes);
    if (element)
        n = bytes / element;
    for (; !element && c.at < c.end; n++) {
        uint64_t value;
        if (!take_varint(&c, VARINT_BYTES_MAX, &value) || !varint_fits(field, value))
            return error_set(err, STATUS_INVALID, "%s: %s: value %zu is not a whole number of 32 bits", message, field->name, n);
    }
    if (n > list_max)
        return error_set(err, STATUS_INVALID, "%s: %s: %zu values, at most %zu are allowed", message, field->name, n, list_max);
    return STATUS_OK;
}

static enum status scan(const ProtobufCMessageDescriptor *message, const char *name, struct cursor c, size_t list_max, int depth,
                        struct error *err);

static enum status scan_value(const char *message, const ProtobufCFieldDescriptor *field, struct cursor *c, size_t list_max, int depth,
                              struct error *err)
{
    uint64_t value;
    size_t left = (size_t)(c->end - c->at), fixed;
    switch (wire_type(field)) {
    case PROTOBUF_C_WIRE_TYPE_VARINT:
        if (!take_varint(c, VARINT_BYTES_MAX, &value) || !varint_fits(field, value))
            return error_set(err, STATUS_INVALID, "%s: %s: not a whole number of its type", message, field->name);
        return STATUS_OK;
    case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED:
        break;
    default:
        fixed = wire_type(field) == PROTOBUF_C_WIRE_TYPE_64BIT ? 8 : 4;
        if (left < fixed)
            return error_set(err, STATUS_INVALID, "%s: %s: needs %zu bytes, the header has %zu left", message, field->name, fixed, left);
        c->at += fixed;
        return STATUS_OK;
    }
    if (!take_varint(c, 4, &value) || value > (uint64_t)(c->end - c->at))
        return error_set(err, STATUS_INVALID, "%s: %s: its length reaches beyond the header", message, field->name);
    struct cursor inside = {c->at, c->at + value};
    c->at = inside.end;
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        return scan_list(message, field, inside, list_max, err);
    if (field->type == PROTOBUF_C_TYPE_STRING) {
        if (!value || memchr(inside.at, 0, (size_t)value))
            return error_set(err, STATUS_INVALID, "%s: %s: %s", message, field->name,
                             value ? "a zero byte in a text" : "an empty text is left out");
        return STATUS_OK;
    }
    CHECK(field->type == PROTOBUF_C_TYPE_MESSAGE);
    if (depth == DEPTH_MAX)
        return error_set(err, STATUS_INVALID, "%s: %s: messages are nested deeper than %d", message, field->name, DEPTH_MAX);
    return scan(field->descriptor, field->name, inside, list_max, depth + 1, err);
}

static enum status scan(const ProtobufCMessageDescriptor *message, const char *name, struct cursor c, size_t list_max, int depth,
                        struct error *err)
{
    CHECK(message->n_fields <= FIELDS_MAX);
    uint64_t seen = 0;
    const char *body = NULL;
    while (c.at < c.end) {
        uint64_t tag;
        if (!take_varint(&c, TAG_BYTES_MAX, &tag))
            return error_set(err, STATUS_INVALID, "%s: a field's tag is longer than %d bytes", name, TAG_BYTES_MAX);
        const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(message, (unsigned)(tag >> 3));
        if (!field)
            return error_set(err, STATUS_INVALID, "%s: unknown field %u", name, (unsigned)(tag >> 3));
        if ((tag & 7) != wire_type(field))
            return error_set(err, STATUS_INVALID, "%s: %s: wire type %u, expected %u", name, field->name, (unsigned)(tag & 7),
                             wire_type(field));
        uint64_t bit = UINT64_C(1) << (field - message->fields);
        if (seen & bit)
            return error_set(err, STATUS_INVALID, "%s: %s: there twice", name, field->name);
        seen |= bit;
        if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) {
            if (body)
                return error_set(err, STATUS_INVALID, "%s: two bodies, %s and %s", name, body, field->name);
            body = field->name;
        }
        enum status status = scan_value(name, field, &c, list_max, depth, err);
        if (status)
            return status;
    }
    return STATUS_OK;
}

enum status wire_scan(const ProtobufCMessageDescriptor *message, const uint8_t *bytes, size_t n_bytes, size_t list_max, struct error *err)
{
    return scan(message, message->short_name, (struct cursor){bytes, bytes + n_bytes}, list_max, 0, err);
}
