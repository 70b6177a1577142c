#include "proto/wire_rules.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "proto/cluster.pb-c.h"
#include "proto/limits.h"
#include "proto/step.pb-c.h"

/* ---- the rows ---- */

#define ANY 0, INFINITY
#define COUNT_63 0, (double)INT64_MAX /* fits into a JSON number of ours */
#define TOKEN 0, INT32_MAX /* the vocabulary's size is the model's affair */
#define POSITION 0, POSITIONS_MAX - 1
#define LENGTH 0, POSITIONS_MAX
#define STAGE 0, STAGES_MAX - 1
#define MILLISECONDS 0, MILLISECONDS_MAX
#define MICROSECONDS 0, UINT32_MAX

static const struct field_rule epoch[] = {
    {"instance", FIELD_WHOLE, ANY, 0},
    {"counter", FIELD_WHOLE, ANY, 0},
};
static const struct field_rule numeric_class[] = {
    {"contract", FIELD_WHOLE, ANY, 0},
    {"activations", FIELD_NAME, 1, NAME_BYTES_MAX, 0},
    {"cache", FIELD_NAME, 1, NAME_BYTES_MAX, 0},
    {"wire", FIELD_NAME, 1, NAME_BYTES_MAX, 0},
    {"model_identity", FIELD_IDENTITY, 32, 32, 0},
};
static const struct field_rule hello[] = {
    {"protocol", FIELD_WHOLE, ANY, 0},
    {"node", FIELD_NAME, 1, NAME_BYTES_MAX, 0},
    {"version", FIELD_TEXT, 0, NAME_BYTES_MAX, 0},
    {"numeric", FIELD_MESSAGE, 0, 0, 0},
    {"n_layers", FIELD_WHOLE, 1, LAYERS_WIRE_MAX, 0},
    {"has_mtp", FIELD_WHOLE, 0, 1, 0},
    {"row_endpoint", FIELD_ENDPOINT, 1, ENDPOINT_BYTES_MAX, 0},
    {"row_key", FIELD_KEY, 0, KEY_TEXT_BYTES, 0},
    {"memory_bytes", FIELD_WHOLE, COUNT_63, 0},
    {"threads", FIELD_WHOLE, 0, THREADS_WIRE_MAX, 0},
    {"boot", FIELD_WHOLE, ANY, 0},
};
static const struct field_rule assign[] = {
    {"layer_begin", FIELD_WHOLE, 0, LAYERS_WIRE_MAX - 1, 0},
    {"layer_end", FIELD_WHOLE, 1, LAYERS_WIRE_MAX, 0},
    {"stage", FIELD_WHOLE, STAGE, 0},
    {"n_stages", FIELD_WHOLE, 1, STAGES_MAX, 0},
    {"next_endpoint", FIELD_ENDPOINT, 1, ENDPOINT_BYTES_MAX, 0},
    {"next_key", FIELD_KEY, 0, KEY_TEXT_BYTES, 0},
    {"previous_key", FIELD_KEY, 0, KEY_TEXT_BYTES, 0},
    {"max_positions", FIELD_WHOLE, 1, POSITIONS_MAX, 0},
    {"max_sequences", FIELD_WHOLE, 1, SEQUENCES_MAX, 0},
    {"max_rows_in_flight", FIELD_WHOLE, 1, POSITIONS_MAX, 0},
    {"chunk_rows_max", FIELD_WHOLE, 0, STEP_ROWS_MAX, 0},
};
static const struct field_rule ready[] = {
    {"layer_begin", FIELD_WHOLE, 0, LAYERS_WIRE_MAX - 1, 0},
    {"layer_end", FIELD_WHOLE, 1, LAYERS_WIRE_MAX, 0},
    {"free_positions", FIELD_WHOLE, LENGTH, 0},
    {"chunk_rows", FIELD_WHOLE, 0, STEP_ROWS_MAX, 0},
};
static const struct field_rule heartbeat[] = {
    {"progress", FIELD_WHOLE, ANY, 0}, {"unit_ms", FIELD_WHOLE, MILLISECONDS, 0}, {"state", FIELD_NAME, 0, NAME_BYTES_MAX, 0},
    {"rows", FIELD_WHOLE, ANY, 0},     {"busy_ms", FIELD_WHOLE, ANY, 0},          {"queue_ms", FIELD_WHOLE, ANY, 0},
    {"boot", FIELD_WHOLE, ANY, 0},
    {"expert_hits", FIELD_WHOLE, COUNT_63, 0},
    {"expert_misses", FIELD_WHOLE, COUNT_63, 0},
    {"expert_read_bytes", FIELD_WHOLE, COUNT_63, 0},
    {"expert_wait_ms", FIELD_WHOLE, COUNT_63, 0},
    {"expert_slots_used", FIELD_WHOLE, COUNT_63, 0},
    {"expert_slots", FIELD_WHOLE, COUNT_63, 0},
};
static const struct field_rule drain[] = {
    {"deadline_ms", FIELD_WHOLE, MILLISECONDS, 0},
};
static const struct field_rule refuse[] = {
    {"code", FIELD_WHOLE, 1, REFUSE_CODES_END - 1, 0},
    {"sentence", FIELD_TEXT, 0, TEXT_BYTES_MAX, 0},
    {"scope", FIELD_WHOLE, HEARTH__SCOPE__SCOPE_MESSAGE, HEARTH__SCOPE__SCOPE_NODE, 0},
    {"sequence", FIELD_WHOLE, ANY, 0},
};
static const struct field_rule open_rows[] = {
    {"sequence", FIELD_WHOLE, ANY, 0},
    {"positions", FIELD_WHOLE, 1, POSITIONS_MAX, 0},
    {"temperature", FIELD_REAL, 0, TEMPERATURE_MAX, 0},
    {"top_k", FIELD_WHOLE, TOKEN, 0},
    {"top_p", FIELD_REAL, 0, 1, 0},
    {"min_p", FIELD_REAL, 0, 1, 0},
    {"seed", FIELD_WHOLE, ANY, 0},
    {"row_width", FIELD_WHOLE, 1, ROW_MESSAGE_BYTES_MAX / 4, 0},
    {"n_tokens", FIELD_WHOLE, 1, INT32_MAX, 0},
};
static const struct field_rule opened[] = {
    {"sequence", FIELD_WHOLE, ANY, 0},
    {"stage", FIELD_WHOLE, STAGE, 0},
};
static const struct field_rule drop[] = {
    {"sequence", FIELD_WHOLE, ANY, 0},
};
static const struct field_rule step[] = {
    {"sequence", FIELD_WHOLE, ANY, 0},
    {"generation", FIELD_WHOLE, ANY, 0},
    {"cut_from", FIELD_WHOLE, ANY, 0}, /* a position or NO_CUT: wire.c */
    {"first_position", FIELD_WHOLE, POSITION, 0},
    {"n_rows", FIELD_WHOLE, 1, STEP_ROWS_MAX, 0},
    {"kind", FIELD_WHOLE, HEARTH__STEP_KIND__STEP_PREFILL, HEARTH__STEP_KIND__STEP_DRAFT, 0},
    {"depth", FIELD_WHOLE, 0, DRAFTS_MAX, 0},
    {"chunk_first", FIELD_WHOLE, POSITION, 0},
    {"chunk_rows", FIELD_WHOLE, LENGTH, 0},
    {"token_ids", FIELD_WHOLE, TOKEN, STEP_ROWS_MAX},
    {"next_token", FIELD_WHOLE, -1, INT32_MAX, 0},
    {"want", FIELD_WHOLE, 0, WANT_ALL, 0},
    {"prefix_hash", FIELD_WHOLE, ANY, 0},
    {"remaining_ms", FIELD_WHOLE, MILLISECONDS, 0},
};
static const struct field_rule cut[] = {
    {"sequence", FIELD_WHOLE, ANY, 0},
    {"generation", FIELD_WHOLE, ANY, 0},
    {"from", FIELD_WHOLE, LENGTH, 0},
};
static const struct field_rule commit[] = {
    {"sequence", FIELD_WHOLE, ANY, 0}, {"generation", FIELD_WHOLE, ANY, 0},           {"position", FIELD_WHOLE, POSITION, 0},
    {"token", FIELD_WHOLE, TOKEN, 0},  {"want_depth", FIELD_WHOLE, 0, DRAFTS_MAX, 0},
};
static const struct field_rule result[] = {
    {"sequence", FIELD_WHOLE, ANY, 0},
    {"generation", FIELD_WHOLE, ANY, 0},
    {"position", FIELD_WHOLE, POSITION, 0},
    {"ids", FIELD_WHOLE, TOKEN, CANDIDATES_MAX},
    {"logits", FIELD_REAL, -INFINITY, INFINITY, CANDIDATES_MAX},
    {"log_sum_exp", FIELD_REAL, -INFINITY, INFINITY, 0},
    {"is_draft_row", FIELD_WHOLE, 0, 1, 0},
    {"row_floats", FIELD_WHOLE, 0, ROW_MESSAGE_BYTES_MAX / 4, 0},
};
static const struct field_rule draft[] = {
    {"sequence", FIELD_WHOLE, ANY, 0},       {"generation", FIELD_WHOLE, ANY, 0}, {"from", FIELD_WHOLE, POSITION, 0},
    {"ids", FIELD_WHOLE, TOKEN, DRAFTS_MAX}, {"p", FIELD_REAL, 0, 1, DRAFTS_MAX},
};
static const struct field_rule progress[] = {
    {"sequence", FIELD_WHOLE, ANY, 0}, {"generation", FIELD_WHOLE, ANY, 0},       {"position", FIELD_WHOLE, POSITION, 0},
    {"stage", FIELD_WHOLE, STAGE, 0},  {"busy_us", FIELD_WHOLE, MICROSECONDS, 0}, {"disk_us", FIELD_WHOLE, MICROSECONDS, 0},
};
static const struct field_rule nack[] = {
    {"sequence", FIELD_WHOLE, ANY, 0},
    {"stage", FIELD_WHOLE, STAGE, 0},
    {"length", FIELD_WHOLE, LENGTH, 0},
    {"prefix_hash", FIELD_WHOLE, ANY, 0},
    {"reason", FIELD_WHOLE, 1, NACK_REASONS_END - 1, 0},
    {"generation", FIELD_WHOLE, ANY, 0},
};

#define RULES(message, rows)                                                                                                               \
    {                                                                                                                                      \
        &hearth__##message##__descriptor, rows, sizeof rows / sizeof *rows                                                                 \
    }
static const struct message_rules all_rules[] = {
    RULES(epoch, epoch),       RULES(numeric_class, numeric_class),
    RULES(hello, hello),       RULES(assign, assign),
    RULES(ready, ready),       RULES(heartbeat, heartbeat),
    RULES(drain, drain),       RULES(refuse, refuse),
    RULES(open, open_rows),    RULES(opened, opened),
    RULES(drop, drop),         RULES(step, step),
    RULES(cut, cut),           RULES(commit, commit),
    RULES(result, result),     RULES(draft, draft),
    RULES(progress, progress), RULES(nack, nack),
};

const struct message_rules *wire_rules_find(const ProtobufCMessageDescriptor *descriptor)
{
    for (size_t i = 0; i < sizeof all_rules / sizeof *all_rules; i++)
        if (all_rules[i].descriptor == descriptor)
            return &all_rules[i];
    return NULL;
}

/* ---- alphabets ---- */

static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

int wire_is_name(const char *text)
{
    size_t length = strspn(text, plain);
    return length && !text[length] && length <= NAME_BYTES_MAX;
}

int wire_is_key(const char *text)
{
    static const char z85[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
    return strlen(text) == KEY_TEXT_BYTES && strspn(text, z85) == KEY_TEXT_BYTES;
}

/* "[fd00::7]", "[fe80::7%eth0]": its length, 0 when it is something else. */
static size_t bracketed_bytes(const char *host)
{
    size_t address = strspn(host + 1, "0123456789abcdefABCDEF:."),
           zone = host[1 + address] == '%' ? 1 + strspn(host + 2 + address, plain) : 0;
    return address >= 2 && zone != 1 && host[1 + address + zone] == ']' ? address + zone + 2 : 0;
}

/* A host is a name, an IPv4 address, or an IPv6 address in brackets. */
int wire_is_endpoint(const char *text)
{
    if (strlen(text) > ENDPOINT_BYTES_MAX || strncmp(text, "tcp://", 6))
        return 0;
    const char *host = text + 6, *port;
    size_t length = *host == '[' ? bracketed_bytes(host) : strspn(host, plain);
    if (!length || host[length] != ':')
        return 0;
    port = host + length + 1;
    size_t digits = strspn(port, "0123456789");
    return digits && digits <= 5 && !port[digits] && atoi(port) >= 1 && atoi(port) <= UINT16_MAX;
}

static int is_identity(const char *text)
{
    return strlen(text) == 32 && strspn(text, "0123456789abcdef") == 32;
}

/* Control characters and the marks that change the direction of a line would let a peer write other people's logs. */
static int is_printable(uint32_t c)
{
    return c >= 0x20 && (c < 0x7f || c >= 0xa0) && !(c >= 0x202a && c <= 0x202e) && !(c >= 0x2066 && c <= 0x2069) && c != 0x2028 &&
           c != 0x2029 && c != 0x200e && c != 0x200f && c != 0xfeff;
}

/* Shortest form, no surrogates, nothing above U+10FFFF. */
static int is_printable_utf8(const char *text)
{
    static const uint32_t smallest[] = {0, 0x80, 0x800, 0x10000};
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        int more = *at < 0x80 ? 0 : *at >> 5 == 6 ? 1 : *at >> 4 == 14 ? 2 : *at >> 3 == 30 ? 3 : -1;
        if (more < 0)
            return 0;
        uint32_t c = more ? *at & (0x3fu >> more) : *at;
        for (int i = 1; i <= more; i++) {
            if (at[i] >> 6 != 2) /* the zero at the end too */
                return 0;
            c = c << 6 | (at[i] & 0x3f);
        }
        if (c < smallest[more] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff) || !is_printable(c))
            return 0;
        at += more + 1;
    }
    return 1;
}

/* ---- checking ---- */

static enum status check_number(const char *name, const struct field_rule *rule, double value, const char *shown, struct error *err)
{
    if (rule->kind == FIELD_REAL && !isfinite(value))
        return error_set(err, STATUS_INVALID, "%s: %s: %s is not finite", name, rule->field, shown);
    if (value < rule->min || value > rule->max)
        return error_set(err, STATUS_INVALID, "%s: %s: %s is outside %.0f to %.0f", name, rule->field, shown, rule->min, rule->max);
    return STATUS_OK;
}

static enum status check_whole(const char *name, const struct field_rule *rule, int is_signed, uint64_t value, struct error *err)
{
    char shown[32];
    snprintf(shown, sizeof shown, is_signed ? "%lld" : "%llu", (unsigned long long)value);
    return check_number(name, rule, is_signed ? (double)(int64_t)value : (double)value, shown, err);
}

static enum status check_real(const char *name, const struct field_rule *rule, double value, struct error *err)
{
    char shown[32];
    snprintf(shown, sizeof shown, "%g", value);
    return check_number(name, rule, value, shown, err);
}

/* The text itself is not shown: it may be anything. */
static enum status check_text(const char *name, const struct field_rule *rule, const char *text, struct error *err)
{
    size_t length = strlen(text);
    if (rule->kind != FIELD_KEY && (length < (size_t)rule->min || length > (size_t)rule->max))
        return error_set(err, STATUS_INVALID, "%s: %s: %zu bytes, allowed are %.0f to %.0f", name, rule->field, length, rule->min,
                         rule->max);
    const char *expected = NULL;
    if (rule->kind == FIELD_TEXT && !is_printable_utf8(text))
        expected = "printable UTF-8";
    if (rule->kind == FIELD_NAME && length && !wire_is_name(text))
        expected = "letters, digits, '-', '_' and '.'";
    if (rule->kind == FIELD_KEY && length && !wire_is_key(text))
        expected = "a key of 40 characters of Z85, or nothing";
    if (rule->kind == FIELD_ENDPOINT && !wire_is_endpoint(text))
        expected = "tcp://host:port";
    if (rule->kind == FIELD_IDENTITY && !is_identity(text))
        expected = "32 lower-case hexadecimal digits";
    return expected ? error_set(err, STATUS_INVALID, "%s: %s: %zu bytes that are not %s", name, rule->field, length, expected) : STATUS_OK;
}

static enum status check_element(const char *name, const struct field_rule *rule, ProtobufCType type, const void *at, struct error *err)
{
    switch (type) {
    case PROTOBUF_C_TYPE_UINT32:
        return check_whole(name, rule, 0, *(const uint32_t *)at, err);
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_ENUM:
        return check_whole(name, rule, 1, (uint64_t)(int64_t) * (const int32_t *)at, err);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        return check_whole(name, rule, 0, *(const uint64_t *)at, err);
    case PROTOBUF_C_TYPE_FLOAT:
        return check_real(name, rule, (double)*(const float *)at, err);
    case PROTOBUF_C_TYPE_DOUBLE:
        return check_real(name, rule, *(const double *)at, err);
    case PROTOBUF_C_TYPE_STRING:
        return check_text(name, rule, *(const char *const *)at, err);
    default:
        CHECK(0);
    }
}

static enum status check_list(const char *name, const struct field_rule *rule, const ProtobufCFieldDescriptor *field, const char *message,
                              struct error *err)
{
    size_t n = *(const size_t *)(message + field->quantifier_offset);
    const char *values = *(const char *const *)(message + field->offset);
    if (n > rule->list_max)
        return error_set(err, STATUS_INVALID, "%s: %s: %zu values, at most %u are allowed", name, rule->field, n, rule->list_max);
    for (size_t i = 0; i < n; i++) {
        enum status status = check_element(name, rule, field->type, values + 4 * i, err);
        if (status)
            return status;
    }
    return STATUS_OK;
}

enum status wire_rules_check(const ProtobufCMessage *message, const char *name, struct error *err)
{
    const struct message_rules *rules = wire_rules_find(message->descriptor);
    CHECK(rules && rules->n_fields == message->descriptor->n_fields);
    for (unsigned i = 0; i < rules->n_fields; i++) {
        const struct field_rule *rule = &rules->fields[i];
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const char *base = (const char *)message;
        CHECK(!strcmp(rule->field, field->name)); /* the rows follow the .proto files */
        enum status status = STATUS_OK;
        if (rule->kind == FIELD_MESSAGE) {
            const ProtobufCMessage *inner = *(const ProtobufCMessage *const *)(base + field->offset);
            status = inner ? wire_rules_check(inner, rule->field, err) : error_set(err, STATUS_INVALID, "%s is missing", rule->field);
            if (status)
                return error_wrap(err, "%s", name);
        } else if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            status = check_list(name, rule, field, base, err);
        } else {
            status = check_element(name, rule, field->type, base + field->offset, err);
        }
        if (status)
            return status;
    }
    return STATUS_OK;
}
