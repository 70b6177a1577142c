/* Messages as bytes: the first frame is a protobuf Envelope, the second, where there is one, raw little-endian f32. */
#ifndef HEARTH_PROTO_WIRE_H
#define HEARTH_PROTO_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "common/error.h"
#include "proto/envelope.pb-c.h"
#include "proto/limits.h"

/* Bytes of an envelope; out [HEADER_BYTES_MAX]. CHECKs that it fits: what we send obeys the limits. Returns the length. */
size_t wire_encode(const Hearth__Envelope *envelope, uint8_t *out);

/* Unpacks and validates both frames: every field within limits.h, text printable UTF-8, enumerations known, the second frame exactly as long as the header
 * says (Step: n_rows * row_width floats or none, Result: n_logits) and aligned to 4 bytes. row_width: floats of a row between stages, 0 where none can
 * come. Memory for unpacking is bounded by DECODED_BYTES_MAX. On success the caller frees *out with wire_free. On failure (STATUS_INVALID) the sentence
 * names the message and the field, the value and its limit. */
enum status wire_decode(Hearth__Envelope **out, const uint8_t *header, size_t header_bytes, const void *rows, size_t rows_bytes, uint32_t row_width,
                        struct error *err);
void wire_free(Hearth__Envelope **envelope);

/* "step", "result", ...; for logs and errors. */
const char *wire_message_name(const Hearth__Envelope *envelope);

/* The rolling hash of token ids: wire_hash_next(h, id) for every id in order, starting at WIRE_HASH_EMPTY. */
#define WIRE_HASH_EMPTY UINT64_C(0xcbf29ce484222325)
static inline uint64_t wire_hash_next(uint64_t hash, uint32_t id)
{
    hash ^= id + UINT64_C(0x9e3779b97f4a7c15);
    hash *= UINT64_C(0xff51afd7ed558ccd);
    return hash ^ hash >> 32;
}

#endif
