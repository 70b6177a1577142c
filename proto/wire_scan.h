/* The shape of a header, checked by hand before protobuf-c sees a byte of it (protobuf-c 1.4.1 shifts signed numbers on long tags and
 * copies from NULL). */
#ifndef HEARTH_PROTO_WIRE_SCAN_H
#define HEARTH_PROTO_WIRE_SCAN_H

#include <stddef.h>
#include <stdint.h>
#include <protobuf-c/protobuf-c.h>

#include "common/error.h"

/* Accepts exactly the form that our own encoder writes: known fields of the right wire type, each at most once (lists packed in one piece),
 * tags of at most two bytes, varints of at most ten and within the field's type, lengths inside the buffer, messages at most two deep, at
 * most one body. Everything else is STATUS_INVALID with a sentence that names message and field. list_max: values in one list. */
enum status wire_scan(const ProtobufCMessageDescriptor *message, const uint8_t *bytes, size_t n_bytes, size_t list_max, struct error *err);

#endif
