/* Every limit of the wire in one place; checked before anything is allocated for a message. */
#ifndef HEARTH_PROTO_LIMITS_H
#define HEARTH_PROTO_LIMITS_H

#include <stdint.h>

enum {
    PROTOCOL_VERSION = 1,
    HEADER_BYTES_MAX = 64 << 10,       /* first frame */
    ROW_MESSAGE_BYTES_MAX = 2 << 20,   /* second frame: rows or logits; longer chunks go in pieces */
    DECODED_BYTES_MAX = 512 << 10,     /* memory that unpacking one header may take */
    STEP_ROWS_MAX = 512,
    POSITIONS_MAX = 1 << 24,
    CANDIDATES_MAX = 512,
    DRAFTS_MAX = 8,
    STAGES_MAX = 16,
    LAYERS_WIRE_MAX = 512,
    SEQUENCES_MAX = 1024,
    NAME_BYTES_MAX = 64,               /* node names: letters, digits, '-', '_', '.' */
    TEXT_BYTES_MAX = 1024,             /* sentences */
    ENDPOINT_BYTES_MAX = 128,
    ROUTING_ID_BYTES_MAX = 64,         /* of a connection, chosen by its node */
    KEY_TEXT_BYTES = 40,               /* a CURVE key in Z85 */
    THREADS_WIRE_MAX = 4096,
    TEMPERATURE_MAX = 1000,
    MILLISECONDS_MAX = 24 * 3600 * 1000,
};

#define NO_CUT UINT32_MAX

/* Step.want: what the tail is to send back about the step's last row (or every row). */
enum want {
    WANT_CANDIDATES = 1 << 0,   /* the best 512 and the log-sum-exp */
    WANT_LOGITS = 1 << 1,       /* the whole row of logits */
    WANT_DRAFT_LOGITS = 1 << 2, /* the whole row of the true MTP row, as soon as its token is known */
    WANT_EVERY_ROW = 1 << 3,
    WANT_ALL = (1 << 4) - 1,
};

enum nack_reason {
    NACK_GAP = 1,      /* first_position is above the length here */
    NACK_PREFIX = 2,   /* the ids below it are others */
    NACK_SEQUENCE = 3, /* no such sequence is open here */
    NACK_FULL = 4,     /* more rows in flight than were agreed */
    NACK_REASONS_END,
};

enum refuse_code {
    REFUSE_PROTOCOL = 1,
    REFUSE_MODEL = 2,
    REFUSE_NUMERIC = 3,
    REFUSE_NAME = 4,      /* a node of that name is here with another key */
    REFUSE_RANGE = 5,     /* not a range that this node can own */
    REFUSE_MEMORY = 6,
    REFUSE_MALFORMED = 7, /* a field outside its limits; the sentence names it */
    REFUSE_INTERNAL = 8,
    REFUSE_CODES_END,
};

#endif
