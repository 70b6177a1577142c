/* Which values a field may have, as data: one row per field of every message. */
#ifndef HEARTH_PROTO_WIRE_RULES_H
#define HEARTH_PROTO_WIRE_RULES_H

#include <protobuf-c/protobuf-c.h>

#include "common/error.h"

enum field_kind {
    FIELD_WHOLE,    /* whole number within [min, max] */
    FIELD_REAL,     /* finite, within [min, max] */
    FIELD_TEXT,     /* printable UTF-8 of min to max bytes */
    FIELD_NAME,     /* letters, digits, '-', '_', '.', min to max bytes */
    FIELD_ENDPOINT, /* "tcp://host:port" */
    FIELD_KEY,      /* 40 characters of Z85, or empty */
    FIELD_IDENTITY, /* 32 lower-case hex digits */
    FIELD_MESSAGE,  /* must be there; its own rows apply */
};

struct field_rule {
    const char *field;
    enum field_kind kind;
    double min, max;
    unsigned list_max; /* lists: number of values; min and max hold for each */
};

struct message_rules {
    const ProtobufCMessageDescriptor *descriptor;
    const struct field_rule *fields; /* in the order of the descriptor's, which is by number */
    unsigned n_fields;
};

/* NULL when there are none (the envelope's own fields are wire.c's). */
const struct message_rules *wire_rules_find(const ProtobufCMessageDescriptor *descriptor);

/* Every field within its row; sentences begin with name ("step: n_rows: 513 is outside 1 to 512"). */
enum status wire_rules_check(const ProtobufCMessage *message, const char *name, struct error *err);

/* The alphabets, for those who read the same things from files. */
int wire_is_name(const char *text);
int wire_is_key(const char *text); /* 40 characters of Z85; not the empty one */
int wire_is_endpoint(const char *text);

#endif
