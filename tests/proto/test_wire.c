/* Goal: what we write is read back bit for bit; every field is accepted at its limits and refused by name beyond them; no bytes at all can
 * make decoding misbehave. Method: a valid message of every kind, changed one field at a time by the rows of proto/wire_rules.c; hand-made
 * headers; seeded mutations (HEARTH_FUZZ_SEED and HEARTH_FUZZ_CASES replay and prolong them). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "common/memory.h"
#include "proto/wire.h"
#include "proto/wire_rules.h"

enum { ROW_WIDTH = 8 };

static const ProtobufCMessageDescriptor *const envelope_descriptor = &hearth__envelope__descriptor;

/* ---- a valid message of every kind, filled through the descriptors ---- */

static void *at(const void *message, const ProtobufCFieldDescriptor *field)
{
    return (char *)message + field->offset;
}

static size_t *count_at(const void *message, const ProtobufCFieldDescriptor *field)
{
    return (size_t *)((char *)message + field->quantifier_offset);
}

static void put_number(void *place, ProtobufCType type, double value)
{
    switch (type) {
    case PROTOBUF_C_TYPE_UINT32:
        *(uint32_t *)place = (uint32_t)value;
        break;
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_ENUM:
        *(int32_t *)place = (int32_t)value;
        break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        *(uint64_t *)place = value >= 0x1p64 ? UINT64_MAX : (uint64_t)value;
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        *(float *)place = (float)value;
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)place = value;
        break;
    default:
        fail_msg("no number");
    }
}

static char *text_of(enum field_kind kind, size_t bytes)
{
    static char text[4096];
    memset(text, 'a', bytes);
    text[bytes] = 0;
    if (kind == FIELD_ENDPOINT && bytes > 12) {
        memcpy(text, "tcp://", 6);
        memcpy(text + bytes - 6, ":65535", 6);
    }
    return xstrdup(text);
}

static ProtobufCMessage *new_message(const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message = xcalloc(1, descriptor->sizeof_message);
    protobuf_c_message_init(descriptor, message);
    return message;
}

static void fill(ProtobufCMessage *message);

static void fill_field(ProtobufCMessage *message, const ProtobufCFieldDescriptor *field, const struct field_rule *rule)
{
    void *place = at(message, field);
    if (rule->kind == FIELD_MESSAGE) {
        *(ProtobufCMessage **)place = new_message(field->descriptor);
        fill(*(ProtobufCMessage **)place);
    } else if (field->label == PROTOBUF_C_LABEL_REPEATED) {
        *(void **)place = xcalloc(STEP_ROWS_MAX + 1, 4);
        *count_at(message, field) = 2;
        put_number(*(char **)place + 4, field->type, 1);
    } else if (field->type == PROTOBUF_C_TYPE_STRING) {
        *(char **)place = text_of(rule->kind, rule->kind == FIELD_ENDPOINT ? 16 : (size_t)rule->max);
    } else {
        put_number(place, field->type, rule->min > 2 ? rule->min : rule->max < 2 ? rule->max : 2);
    }
}

static void fill(ProtobufCMessage *message)
{
    const struct message_rules *rules = wire_rules_find(message->descriptor);
    assert_non_null(rules);
    assert_int_equal(rules->n_fields, message->descriptor->n_fields);
    for (unsigned i = 0; i < rules->n_fields; i++) {
        assert_string_equal(rules->fields[i].field, message->descriptor->fields[i].name);
        fill_field(message, &message->descriptor->fields[i], &rules->fields[i]);
    }
}

/* What fields say about each other. */
static void reconcile(Hearth__Envelope *e)
{
    if (e->body_case == HEARTH__ENVELOPE__BODY_ASSIGN)
        e->assign->layer_begin = e->assign->stage = 1;
    if (e->body_case == HEARTH__ENVELOPE__BODY_READY)
        e->ready->layer_begin = 1;
    if (e->body_case == HEARTH__ENVELOPE__BODY_RESULT)
        e->result->row_floats = 0;
}

static Hearth__Envelope *new_envelope(unsigned body)
{
    const ProtobufCFieldDescriptor *field = protobuf_c_message_descriptor_get_field(envelope_descriptor, body);
    Hearth__Envelope *e = (Hearth__Envelope *)new_message(envelope_descriptor);
    e->protocol = PROTOCOL_VERSION;
    e->epoch = (Hearth__Epoch *)new_message(&hearth__epoch__descriptor);
    fill(&e->epoch->base);
    e->body_case = (Hearth__Envelope__BodyCase)body;
    e->hello = (Hearth__Hello *)new_message(field->descriptor);
    fill((ProtobufCMessage *)e->hello);
    reconcile(e);
    return e;
}

/* The numbers of all bodies, ending with 0. */
static const unsigned *bodies(void)
{
    static unsigned list[32];
    unsigned n = 0;
    for (unsigned i = 0; i < envelope_descriptor->n_fields; i++)
        if (envelope_descriptor->fields[i].flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
            list[n++] = envelope_descriptor->fields[i].id;
    list[n] = 0;
    return list;
}

static uint8_t header[HEADER_BYTES_MAX];
static float frame[ROW_MESSAGE_BYTES_MAX / 4 + 1];

static enum status decode_rows(const Hearth__Envelope *e, size_t rows_bytes, struct error *err)
{
    Hearth__Envelope *out;
    enum status status = wire_decode(&out, header, wire_encode(e, header), frame, rows_bytes, ROW_WIDTH, err);
    assert_true((status == STATUS_OK) == (out != NULL));
    wire_free(&out);
    assert_null(out);
    return status;
}

/* ---- every message ---- */

static void every_message_comes_back_equal(void **state)
{
    (void)state;
    int n = 0;
    for (const unsigned *body = bodies(); *body; body++, n++) {
        Hearth__Envelope *e = new_envelope(*body), *out;
        struct error err = {0};
        static uint8_t again[HEADER_BYTES_MAX];
        size_t bytes = wire_encode(e, header);
        if (wire_decode(&out, header, bytes, NULL, 0, ROW_WIDTH, &err))
            fail_msg("%s", err.text);
        assert_int_equal(out->body_case, *body);
        assert_string_equal(wire_message_name(out), wire_message_name(e));
        assert_true(wire_encode(out, again) == bytes && !memcmp(again, header, bytes));
        wire_free(&out);
        wire_free(&e);
    }
    assert_int_equal(n, 16);
}

static void expect_refused(const Hearth__Envelope *e, const char *message, const char *field, const char *why)
{
    struct error err = {0};
    if (decode_rows(e, 0, &err) != STATUS_INVALID)
        fail_msg("%s.%s %s was accepted", message, field, why);
    if (!strstr(err.text, message) || !strstr(err.text, field))
        fail_msg("%s.%s %s: the sentence does not name it: %s", message, field, why, err.text);
}

/* The relation that a limit's value breaks by itself; those have tests of their own. */
static int is_related(const char *message, const char *field)
{
    static const char *const related[] = {"assign.layer_begin", "assign.stage",     "assign.n_stages",     "assign.layer_end",
                                          "ready.layer_begin",  "ready.layer_end",  "step.first_position", "step.n_rows",
                                          "step.cut_from",      "step.chunk_first", "step.chunk_rows",     "result.row_floats"};
    char name[64];
    snprintf(name, sizeof name, "%s.%s", message, field);
    for (size_t i = 0; i < sizeof related / sizeof *related; i++)
        if (!strcmp(name, related[i]))
            return 1;
    return 0;
}

static void expect_accepted(const Hearth__Envelope *e, const char *message, const char *field, const char *why)
{
    struct error err = {0};
    if (decode_rows(e, 0, &err) && !is_related(message, field))
        fail_msg("%s.%s %s: %s", message, field, why, err.text);
}

static double type_min(ProtobufCType type)
{
    return type == PROTOBUF_C_TYPE_UINT32 || type == PROTOBUF_C_TYPE_UINT64 || type == PROTOBUF_C_TYPE_FIXED64 ? 0 : -1e9;
}

/* What lies just outside, where the type can hold it. */
static void try_numbers(const Hearth__Envelope *e, const char *message, const ProtobufCFieldDescriptor *field,
                        const struct field_rule *rule, void *place)
{
    int is_real = rule->kind == FIELD_REAL, is_wide = field->type == PROTOBUF_C_TYPE_UINT64 || field->type == PROTOBUF_C_TYPE_FIXED64;
    double type_max = is_real ? INFINITY : is_wide ? 0x1p64 : field->type == PROTOBUF_C_TYPE_UINT32 ? UINT32_MAX : INT32_MAX;
    double beyond = is_real ? 0.001 * fmax(1, rule->max) : rule->max > 0x1p53 ? 0x1p13 : 1;
    uint64_t saved = 0;
    size_t bytes = is_wide || field->type == PROTOBUF_C_TYPE_DOUBLE ? 8 : 4;
    memcpy(&saved, place, bytes);
    if (isfinite(rule->min)) {
        put_number(place, field->type, rule->min);
        expect_accepted(e, message, field->name, "at its least");
        if (rule->min - beyond >= type_min(field->type) || (is_real && rule->min == 0)) {
            put_number(place, field->type, rule->min - beyond);
            expect_refused(e, message, field->name, "below its least");
        }
    }
    put_number(place, field->type, isfinite(rule->max) ? rule->max : is_real ? 3e38 : type_max);
    expect_accepted(e, message, field->name, "at its most");
    if (isfinite(rule->max) && rule->max < type_max) {
        put_number(place, field->type, rule->max + beyond);
        expect_refused(e, message, field->name, "above its most");
    }
    for (int i = 0; is_real && i < 3; i++) {
        put_number(place, field->type, i == 0 ? NAN : i == 1 ? INFINITY : -INFINITY);
        expect_refused(e, message, field->name, "not finite");
    }
    memcpy(place, &saved, bytes);
}

static void try_text(const Hearth__Envelope *e, const char *message, const ProtobufCFieldDescriptor *field, const struct field_rule *rule,
                     char **place)
{
    static const char *const never[] = {"line\nbreak",
                                        "\x1b[31m",
                                        "\x7f",
                                        "bad \xff",
                                        "\xc0\x80",
                                        "\xed\xa0\x80",
                                        "\xf4\x90\x80\x80",
                                        "cut \xe2\x82",
                                        "\xc2\x85",
                                        "\xe2\x80\xae"
                                        "turned"};
    static const char *const no_name[] = {"a b", "a/b", "ü", "a\t"};
    static const char *const no_endpoint[] = {
        "tcp://h",     "http://h:1",   "tcp://:1",   "tcp://h:0",      "tcp://h:65536", "tcp://h:1x", "tcp://h:",    "ipc:///tmp/x",
        "tcp://a b:1", "tcp://[::1:1", "tcp://[]:1", "tcp://[::1%]:1", "inproc://x",    "tcp://*:1",  "tcp://h;g:1", "tcp://h:123456"};
    static const char *const endpoints[] = {"tcp://10.0.0.7:7602", "tcp://[fd00::7%eth0]:1", "tcp://my-host_2.lan:65535"};
    char *saved = *place;
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        *place = (char *)never[i];
        expect_refused(e, message, field->name, "with bytes that nobody may send");
    }
    for (size_t i = 0; rule->kind != FIELD_TEXT && i < sizeof no_name / sizeof *no_name; i++) {
        *place = (char *)no_name[i];
        expect_refused(e, message, field->name, no_name[i]);
    }
    for (size_t i = 0; rule->kind == FIELD_ENDPOINT && i < sizeof no_endpoint / sizeof *no_endpoint; i++) {
        *place = (char *)no_endpoint[i];
        expect_refused(e, message, field->name, no_endpoint[i]);
    }
    for (size_t i = 0; rule->kind == FIELD_ENDPOINT && i < sizeof endpoints / sizeof *endpoints; i++) {
        *place = (char *)endpoints[i];
        expect_accepted(e, message, field->name, endpoints[i]);
    }
    *place = "";
    if (rule->min > 0)
        expect_refused(e, message, field->name, "empty");
    else
        expect_accepted(e, message, field->name, "empty");
    *place = text_of(rule->kind, (size_t)rule->max);
    expect_accepted(e, message, field->name, "of the greatest length");
    free(*place);
    *place = text_of(rule->kind, (size_t)rule->max + 1);
    expect_refused(e, message, field->name, "too long");
    free(*place);
    *place = saved;
}

static void try_list(const Hearth__Envelope *e, const char *message, const ProtobufCFieldDescriptor *field, const struct field_rule *rule,
                     void *owner)
{
    char *values = *(char **)at(owner, field);
    size_t *count = count_at(owner, field), saved = *count;
    try_numbers(e, message, field, rule, values + 4);
    *count = rule->list_max + 1;
    struct error err = {0};
    assert_int_equal(decode_rows(e, 0, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, field->name));
    *count = saved;
}

static void try_fields(const Hearth__Envelope *e, const char *name, ProtobufCMessage *message)
{
    const struct message_rules *rules = wire_rules_find(message->descriptor);
    for (unsigned i = 0; i < rules->n_fields; i++) {
        const struct field_rule *rule = &rules->fields[i];
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (rule->kind == FIELD_MESSAGE) {
            ProtobufCMessage **inner = at(message, field), *saved = *inner;
            try_fields(e, field->name, saved);
            *inner = NULL;
            expect_refused(e, name, field->name, "missing");
            *inner = saved;
        } else if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            try_list(e, name, field, rule, message);
        } else if (field->type == PROTOBUF_C_TYPE_STRING) {
            try_text(e, name, field, rule, at(message, field));
        } else {
            try_numbers(e, name, field, rule, at(message, field));
        }
    }
}

static void every_field_at_and_beyond_its_limit(void **state)
{
    (void)state;
    for (const unsigned *body = bodies(); *body; body++) {
        Hearth__Envelope *e = new_envelope(*body);
        try_fields(e, wire_message_name(e), (ProtobufCMessage *)e->hello);
        try_fields(e, "epoch", &e->epoch->base);
        wire_free(&e);
    }
}

/* ---- what fields say about each other, and about the second frame ---- */

static void refused_with(const Hearth__Envelope *e, size_t rows_bytes, const char *words)
{
    struct error err = {0};
    assert_int_equal(decode_rows(e, rows_bytes, &err), STATUS_INVALID);
    if (!strstr(err.text, words))
        fail_msg("the sentence lacks '%s': %s", words, err.text);
}

static void accepted_with(const Hearth__Envelope *e, size_t rows_bytes)
{
    struct error err = {0};
    if (decode_rows(e, rows_bytes, &err))
        fail_msg("%s", err.text);
}

static void steps_agree_with_their_rows(void **state)
{
    (void)state;
    Hearth__Envelope *e = new_envelope(HEARTH__ENVELOPE__BODY_STEP);
    Hearth__Step *s = e->step;
    accepted_with(e, 0);
    accepted_with(e, 2 * ROW_WIDTH * 4);
    refused_with(e, 2 * ROW_WIDTH * 4 - 4, "step: the second frame has 60 bytes, 2 rows of 8 floats are 64");
    refused_with(e, 2 * ROW_WIDTH * 4 + 1, "step: the second frame");
    refused_with(e, sizeof frame, "a second frame of 2097156 bytes, allowed are 2097152");
    s->n_token_ids = 1;
    refused_with(e, 0, "step: token_ids: 1 ids for 2 rows");
    s->n_token_ids = 2;
    s->chunk_rows = 0;
    s->first_position = POSITIONS_MAX - 2;
    accepted_with(e, 0);
    s->first_position = POSITIONS_MAX - 1;
    refused_with(e, 0, "step: n_rows: 2 rows from position 16777215");
    s->first_position = 5;
    s->cut_from = NO_CUT;
    accepted_with(e, 0);
    s->cut_from = POSITIONS_MAX;
    accepted_with(e, 0);
    s->cut_from = POSITIONS_MAX + 1;
    refused_with(e, 0, "step: cut_from: 16777217");
    s->cut_from = NO_CUT;
    s->chunk_first = 4, s->chunk_rows = 3;
    accepted_with(e, 0);
    s->chunk_rows = 2;
    refused_with(e, 0, "step: chunk_rows");
    s->chunk_first = 6, s->chunk_rows = 100;
    refused_with(e, 0, "step: chunk_rows");
    s->n_rows = s->n_token_ids = STEP_ROWS_MAX;
    s->chunk_rows = 0;
    accepted_with(e, STEP_ROWS_MAX * ROW_WIDTH * 4);
    struct error err = {0};
    Hearth__Envelope *out;
    size_t bytes = wire_encode(e, header);
    assert_int_equal(wire_decode(&out, header, bytes, frame, STEP_ROWS_MAX * ROW_WIDTH * 4, 0, &err),
                     STATUS_INVALID); /* where no rows can come */
    assert_int_equal(wire_decode(&out, header, bytes, (char *)frame + 1, STEP_ROWS_MAX * ROW_WIDTH * 4, ROW_WIDTH, &err),
                     STATUS_INVALID); /* unaligned */
    wire_free(&e);
}

static void other_messages_agree_with_themselves(void **state)
{
    (void)state;
    Hearth__Envelope *e = new_envelope(HEARTH__ENVELOPE__BODY_RESULT);
    e->result->row_floats = 3;
    accepted_with(e, 12);
    refused_with(e, 0, "result: row_floats: 3");
    refused_with(e, 16, "result: row_floats: 3");
    e->result->row_floats = ROW_MESSAGE_BYTES_MAX / 4;
    accepted_with(e, ROW_MESSAGE_BYTES_MAX);
    e->result->row_floats = 0;
    e->result->n_logits = 1;
    refused_with(e, 0, "result: logits: 1 for 2 ids");
    e->result->n_logits = e->result->n_ids = 0;
    accepted_with(e, 0);
    e->result->n_logits = e->result->n_ids = CANDIDATES_MAX;
    accepted_with(e, 0);
    wire_free(&e);
    e = new_envelope(HEARTH__ENVELOPE__BODY_DRAFT);
    e->draft->n_p = 1;
    refused_with(e, 0, "draft: p: 1 for 2 ids");
    wire_free(&e);
    e = new_envelope(HEARTH__ENVELOPE__BODY_ASSIGN);
    e->assign->stage = e->assign->n_stages;
    refused_with(e, 0, "assign: stage");
    e->assign->stage = 0;
    e->assign->layer_begin = e->assign->layer_end;
    refused_with(e, 0, "assign: layer_end");
    wire_free(&e);
    e = new_envelope(HEARTH__ENVELOPE__BODY_READY);
    e->ready->layer_begin = 9;
    refused_with(e, 0, "ready: layer_end: 2 is not above layer_begin 9");
    wire_free(&e);
    e = new_envelope(HEARTH__ENVELOPE__BODY_HEARTBEAT);
    refused_with(e, 4, "heartbeat: a second frame of 4 bytes");
    e->protocol = 2;
    refused_with(e, 0, "heartbeat: protocol: 2");
    wire_free(&e);
    e = new_envelope(HEARTH__ENVELOPE__BODY_HELLO);
    e->protocol = 2; /* must be understood, so that it can be answered */
    accepted_with(e, 0);
    wire_free(&e);
}

/* ---- bytes that no encoder of ours writes ---- */

static void hand_made_headers_are_refused(void **state)
{
    (void)state;
#define BYTES(text) (const uint8_t *)text, sizeof text - 1
    const struct {
        const uint8_t *bytes;
        size_t n;
        const char *words;
    } cases[] = {
        {BYTES(""), "0 bytes"},
        {BYTES("\x08\x01"), "no body"},
        {BYTES("\x08\x01\xb2\x01\x00"), "epoch is missing"}, /* an empty Drop */
        {BYTES("\x08\x01\x12\x00\xb2\x01\x00\xaa\x01\x00"), "two bodies"},
        {BYTES("\x08\x01\x08\x01"), "there twice"},
        {BYTES("\x12\x00\x12\x00"), "epoch: there twice"},
        {BYTES("\xc2\x02\x00"), "unknown field 40"}, /* reserved */
        {BYTES("\x18\x01"), "unknown field 3"},
        {BYTES("\x00\x01"), "unknown field 0"},
        {BYTES("\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80"), "tag"},
        {BYTES("\xff\xff\xff\xff\x7f"), "tag"},
        {BYTES("\x0a\x01\x00"), "protocol: wire type 2"},
        {BYTES("\x0b"), "protocol: wire type 3"}, /* a group */
        {BYTES("\x08"), "protocol: not a whole number"},
        {BYTES("\x08\x80"), "protocol: not a whole number"},
        {BYTES("\x08\xff\xff\xff\xff\x1f"), "protocol: not a whole number"}, /* 33 bits */
        {BYTES("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), "protocol: not a whole number"},
        {BYTES("\x12\x05\x09\x01"), "epoch: its length"},
        {BYTES("\x12\xff\xff\xff\xff\x0f"), "epoch: its length"},
        {BYTES("\x12\x04\x09\x01\x02\x03"), "epoch: instance: needs 8 bytes"},
        {BYTES("\xba\x01\x02\x52\x00"), "step: token_ids: a list of 0 bytes"},
        {BYTES("\xba\x01\x02\x50\x01"), "step: token_ids: wire type 0"}, /* not packed */
        {BYTES("\xba\x01\x03\x52\x01\x80"), "step: token_ids: value 0"},
        {BYTES("\xd2\x01\x05\x2a\x03\x00\x00\x00"), "result: logits: a list of 3 bytes"},
        {BYTES("\x52\x02\x12\x00"), "hello: node: an empty text"},
        {BYTES("\x52\x05\x12\x03\x61\x00\x62"), "hello: node: a zero byte"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Hearth__Envelope *out;
        struct error err = {0};
        assert_int_equal(wire_decode(&out, cases[i].bytes, cases[i].n, NULL, 0, ROW_WIDTH, &err), STATUS_INVALID);
        assert_null(out);
        if (!strstr(err.text, cases[i].words))
            fail_msg("case %zu: the sentence lacks '%s': %s", i, cases[i].words, err.text);
    }
    Hearth__Envelope *out;
    struct error err = {0};
    static uint8_t large[HEADER_BYTES_MAX + 1];
    assert_int_equal(wire_decode(&out, large, sizeof large, NULL, 0, ROW_WIDTH, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "65537 bytes"));
}

/* ---- mutations ---- */

static uint64_t random_state;

static uint32_t next_random(uint32_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state * UINT64_C(0x2545f4914f6cdd1d) >> 32) * below >> 32);
}

/* One to four changes: a bit, a byte, an interesting byte, a copy within, a cut, an insertion. */
static size_t mutate(uint8_t *bytes, size_t n, size_t max)
{
    static const uint8_t interesting[] = {0, 1, 0x7f, 0x80, 0xff, 0x0a, 0x12, 0x52, 0xba, 0xd2};
    for (uint32_t changes = 1 + next_random(4); changes && n; changes--) {
        size_t place = next_random((uint32_t)n);
        switch (next_random(6)) {
        case 0:
            bytes[place] ^= (uint8_t)(1u << next_random(8));
            break;
        case 1:
            bytes[place] = (uint8_t)next_random(256);
            break;
        case 2:
            bytes[place] = interesting[next_random(sizeof interesting)];
            break;
        case 3:
            bytes[place] = bytes[next_random((uint32_t)n)];
            break;
        case 4:
            n = place;
            break;
        case 5:
            if (n < max) {
                memmove(bytes + place + 1, bytes + place, n - place);
                bytes[place] = interesting[next_random(sizeof interesting)];
                n++;
            }
        }
    }
    return n;
}

static void mutated_headers_never_misbehave(void **state)
{
    (void)state;
    const char *seed_text = getenv("HEARTH_FUZZ_SEED"), *cases_text = getenv("HEARTH_FUZZ_CASES");
    uint64_t seed = seed_text ? strtoull(seed_text, NULL, 10) : 4711;
    long n_cases = cases_text ? atol(cases_text) : 300000, n_accepted = 0;
    printf("seed %llu, %ld cases (HEARTH_FUZZ_SEED, HEARTH_FUZZ_CASES)\n", (unsigned long long)seed, n_cases);
    static uint8_t originals[16][1024];
    size_t sizes[16];
    int n = 0;
    for (const unsigned *body = bodies(); *body; body++, n++) {
        Hearth__Envelope *e = new_envelope(*body);
        if (e->body_case == HEARTH__ENVELOPE__BODY_REFUSE) {
            free(e->refuse->sentence);
            e->refuse->sentence = xstrdup("node 'laptop': too little memory");
        }
        sizes[n] = wire_encode(e, header);
        assert_true(sizes[n] <= sizeof *originals);
        memcpy(originals[n], header, sizes[n]);
        wire_free(&e);
    }
    random_state = seed * 2 + 1;
    for (long i = 0; i < n_cases; i++) {
        uint32_t which = next_random((uint32_t)n);
        uint8_t *bytes = memcpy(xcalloc(1, 1100), originals[which], sizes[which]); /* of its own, so that a read beyond it is seen */
        size_t length = mutate(bytes, sizes[which], 1100);
        bytes = xrealloc(bytes, length);
        struct error err;
        Hearth__Envelope *out;
        size_t rows_bytes = next_random(4) ? 0 : 4 * next_random(64);
        if (!wire_decode(&out, bytes, length, frame, rows_bytes, ROW_WIDTH, &err)) {
            n_accepted++;
            size_t again = wire_encode(out, header); /* what was accepted is something that we could have written */
            Hearth__Envelope *twice;
            if (wire_decode(&twice, header, again, frame, rows_bytes, ROW_WIDTH, &err))
                fail_msg("seed %llu, case %ld: accepted once, then: %s", (unsigned long long)seed, i, err.text);
            wire_free(&twice);
        }
        wire_free(&out);
        free(bytes);
    }
    assert_true(n_accepted > 100 && n_accepted < n_cases);
}

static void hashes_depend_on_every_id_and_their_order(void **state)
{
    (void)state;
    uint64_t a = wire_hash_next(wire_hash_next(WIRE_HASH_EMPTY, 1), 2), b = wire_hash_next(wire_hash_next(WIRE_HASH_EMPTY, 2), 1);
    assert_true(a != b && a != WIRE_HASH_EMPTY && wire_hash_next(WIRE_HASH_EMPTY, 0) != WIRE_HASH_EMPTY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_comes_back_equal),
        cmocka_unit_test(every_field_at_and_beyond_its_limit),
        cmocka_unit_test(steps_agree_with_their_rows),
        cmocka_unit_test(other_messages_agree_with_themselves),
        cmocka_unit_test(hand_made_headers_are_refused),
        cmocka_unit_test(mutated_headers_never_misbehave),
        cmocka_unit_test(hashes_depend_on_every_id_and_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
