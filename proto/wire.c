#include "proto/wire.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "proto/wire_rules.h"
#include "proto/wire_scan.h"

/* Rows go to the wire as they lie in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && sizeof(float) == 4, "rows on the wire are little-endian f32");
_Static_assert(STEP_ROWS_MAX >= CANDIDATES_MAX, "the scanner's bound on lists is the larger one");

/* ---- sending ---- */

size_t wire_encode(const Hearth__Envelope *envelope, uint8_t *out)
{
    CHECK(envelope->epoch && envelope->body_case != HEARTH__ENVELOPE__BODY__NOT_SET);
    size_t bytes = hearth__envelope__get_packed_size(envelope);
    CHECK(bytes <= HEADER_BYTES_MAX);
    return hearth__envelope__pack(envelope, out);
}

const char *wire_message_name(const Hearth__Envelope *envelope)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field(&hearth__envelope__descriptor, (unsigned)envelope->body_case);
    return field ? field->name : "nothing";
}

/* ---- receiving ---- */

/* Gives memory to protobuf-c until the limit is reached; what it gave is plain malloc'ed memory. */
static void *bounded_alloc(void *left, size_t bytes)
{
    size_t *bytes_left = left;
    if (bytes > *bytes_left)
        return NULL;
    *bytes_left -= bytes;
    return malloc(bytes ? bytes : 1);
}

static void bounded_free(void *left, void *memory)
{
    (void)left;
    free(memory);
}

static const ProtobufCMessage *body_of(const Hearth__Envelope *envelope)
{
    return (const ProtobufCMessage *)envelope->hello; /* every body is a pointer at the same place */
}

static enum status check_protocol(const Hearth__Envelope *e, struct error *err)
{
    /* These two must be understood across versions, so that a refusal can be explained. */
    int any = e->body_case == HEARTH__ENVELOPE__BODY_HELLO || e->body_case == HEARTH__ENVELOPE__BODY_REFUSE;
    return any || e->protocol == PROTOCOL_VERSION ? STATUS_OK
                                                  : error_set(err, STATUS_INVALID, "%s: protocol: %u, this program speaks %d",
                                                              wire_message_name(e), e->protocol, PROTOCOL_VERSION);
}

static enum status check_range(const char *name, uint32_t begin, uint32_t end, struct error *err)
{
    return begin < end ? STATUS_OK : error_set(err, STATUS_INVALID, "%s: layer_end: %u is not above layer_begin %u", name, end, begin);
}

static enum status check_step(const Hearth__Step *s, size_t rows_bytes, uint32_t row_width, struct error *err)
{
    uint32_t end = s->first_position + s->n_rows;
    if (end > POSITIONS_MAX)
        return error_set(err, STATUS_INVALID, "step: n_rows: %u rows from position %u end above %d", s->n_rows, s->first_position,
                         POSITIONS_MAX);
    if (s->n_token_ids != s->n_rows)
        return error_set(err, STATUS_INVALID, "step: token_ids: %zu ids for %u rows", s->n_token_ids, s->n_rows);
    if (s->cut_from > POSITIONS_MAX && s->cut_from != NO_CUT)
        return error_set(err, STATUS_INVALID, "step: cut_from: %u is above %d and not the mark for no cut", s->cut_from, POSITIONS_MAX);
    if (s->chunk_rows && (s->chunk_first > s->first_position || end > (uint64_t)s->chunk_first + s->chunk_rows))
        return error_set(err, STATUS_INVALID, "step: chunk_rows: rows %u to %u are no piece of the chunk of %u from %u", s->first_position,
                         end, s->chunk_rows, s->chunk_first);
    if (rows_bytes && rows_bytes != (uint64_t)s->n_rows * row_width * 4)
        return error_set(err, STATUS_INVALID, "step: the second frame has %zu bytes, %u rows of %u floats are %llu", rows_bytes, s->n_rows,
                         row_width, (unsigned long long)s->n_rows * row_width * 4);
    return STATUS_OK;
}

static enum status check_result(const Hearth__Result *r, size_t rows_bytes, struct error *err)
{
    if (r->n_ids != r->n_logits)
        return error_set(err, STATUS_INVALID, "result: logits: %zu for %zu ids", r->n_logits, r->n_ids);
    if (rows_bytes != (size_t)r->row_floats * 4)
        return error_set(err, STATUS_INVALID, "result: row_floats: %u, the second frame has %zu bytes", r->row_floats, rows_bytes);
    return STATUS_OK;
}

/* What two fields, or a field and the second frame, say about each other. */
static enum status check_relations(const Hearth__Envelope *e, size_t rows_bytes, uint32_t row_width, struct error *err)
{
    if (rows_bytes && e->body_case != HEARTH__ENVELOPE__BODY_STEP && e->body_case != HEARTH__ENVELOPE__BODY_RESULT)
        return error_set(err, STATUS_INVALID, "%s: a second frame of %zu bytes, it has none", wire_message_name(e), rows_bytes);
    switch (e->body_case) {
    case HEARTH__ENVELOPE__BODY_STEP:
        return check_step(e->step, rows_bytes, row_width, err);
    case HEARTH__ENVELOPE__BODY_RESULT:
        return check_result(e->result, rows_bytes, err);
    case HEARTH__ENVELOPE__BODY_DRAFT:
        return e->draft->n_ids == e->draft->n_p
                   ? STATUS_OK
                   : error_set(err, STATUS_INVALID, "draft: p: %zu for %zu ids", e->draft->n_p, e->draft->n_ids);
    case HEARTH__ENVELOPE__BODY_READY:
        return check_range("ready", e->ready->layer_begin, e->ready->layer_end, err);
    case HEARTH__ENVELOPE__BODY_ASSIGN:
        if (e->assign->stage >= e->assign->n_stages)
            return error_set(err, STATUS_INVALID, "assign: stage: %u of %u stages", e->assign->stage, e->assign->n_stages);
        return check_range("assign", e->assign->layer_begin, e->assign->layer_end, err);
    default:
        return STATUS_OK;
    }
}

static enum status check_envelope(const Hearth__Envelope *e, size_t rows_bytes, uint32_t row_width, struct error *err)
{
    if (e->body_case == HEARTH__ENVELOPE__BODY__NOT_SET)
        return error_set(err, STATUS_INVALID, "envelope: no body");
    if (!e->epoch)
        return error_set(err, STATUS_INVALID, "%s: epoch is missing", wire_message_name(e));
    enum status status = check_protocol(e, err);
    if (!status)
        status = wire_rules_check(&e->epoch->base, "epoch", err);
    if (!status)
        status = wire_rules_check(body_of(e), wire_message_name(e), err);
    return status ? status : check_relations(e, rows_bytes, row_width, err);
}

enum status wire_decode(Hearth__Envelope **out, const uint8_t *header, size_t header_bytes, const void *rows, size_t rows_bytes,
                        uint32_t row_width, struct error *err)
{
    *out = NULL;
    if (!header_bytes || header_bytes > HEADER_BYTES_MAX)
        return error_set(err, STATUS_INVALID, "envelope: a header of %zu bytes, allowed are 1 to %d", header_bytes, HEADER_BYTES_MAX);
    if (rows_bytes > ROW_MESSAGE_BYTES_MAX || (rows_bytes && (uintptr_t)rows % 4))
        return error_set(err, STATUS_INVALID, "envelope: a second frame of %zu bytes, allowed are %d", rows_bytes, ROW_MESSAGE_BYTES_MAX);
    enum status status = wire_scan(&hearth__envelope__descriptor, header, header_bytes, STEP_ROWS_MAX, err);
    if (status)
        return status;
    size_t bytes_left = DECODED_BYTES_MAX;
    ProtobufCAllocator allocator = {bounded_alloc, bounded_free, &bytes_left};
    Hearth__Envelope *envelope = hearth__envelope__unpack(&allocator, header_bytes, header);
    if (!envelope)
        return error_set(err, STATUS_INVALID, "envelope: not a protobuf message, or one that needs more than %d bytes", DECODED_BYTES_MAX);
    status = check_envelope(envelope, rows_bytes, row_width, err);
    if (status)
        wire_free(&envelope);
    *out = envelope;
    return status;
}

void wire_free(Hearth__Envelope **envelope)
{
    if (*envelope)
        hearth__envelope__free_unpacked(*envelope, NULL);
    *envelope = NULL;
}
