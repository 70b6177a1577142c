/* What leaves a stage. */
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "node/stage_internal.h"

enum { NS_PER_MS = 1000000 };

static void put(struct stage *s, int peer, enum channel channel, Hearth__Envelope *envelope, const void *rows, size_t rows_bytes,
                struct outbox *out)
{
    Hearth__Epoch epoch = HEARTH__EPOCH__INIT;
    epoch.instance = s->config.epoch_instance;
    epoch.counter = s->config.epoch_counter;
    envelope->protocol = PROTOCOL_VERSION;
    envelope->epoch = &epoch;
    outbox_put(out, peer, channel, envelope, rows, rows_bytes);
}

void stage_send_refuse(struct stage *s, uint64_t sequence, Hearth__Scope scope, uint32_t code, const char *sentence, struct outbox *out)
{
    char text[TEXT_BYTES_MAX];
    snprintf(text, sizeof text, "%s", sentence);
    Hearth__Refuse body = HEARTH__REFUSE__INIT;
    body.code = code;
    body.sentence = text;
    body.scope = scope;
    body.sequence = sequence;
    Hearth__Envelope envelope = HEARTH__ENVELOPE__INIT;
    envelope.body_case = HEARTH__ENVELOPE__BODY_REFUSE;
    envelope.refuse = &body;
    put(s, PEER_COORDINATOR, CHANNEL_CONTROL, &envelope, NULL, 0, out);
}

void stage_send_nack(struct stage *s, uint64_t id, const struct stage_sequence *sequence, uint32_t reason, struct outbox *out)
{
    s->counters.nacks++;
    Hearth__Nack body = HEARTH__NACK__INIT;
    body.sequence = id;
    body.stage = (uint32_t)s->config.stage;
    body.length = sequence ? (uint32_t)sequence->length : 0;
    body.prefix_hash = sequence ? sequence->at[sequence->length].hash : WIRE_HASH_EMPTY;
    body.reason = reason;
    body.generation = sequence ? sequence->generation : 0;
    Hearth__Envelope envelope = HEARTH__ENVELOPE__INIT;
    envelope.body_case = HEARTH__ENVELOPE__BODY_NACK;
    envelope.nack = &body;
    put(s, PEER_COORDINATOR, CHANNEL_CONTROL, &envelope, NULL, 0, out);
}

void stage_send_opened(struct stage *s, uint64_t id, struct outbox *out)
{
    Hearth__Opened body = HEARTH__OPENED__INIT;
    body.sequence = id;
    body.stage = (uint32_t)s->config.stage;
    Hearth__Envelope envelope = HEARTH__ENVELOPE__INIT;
    envelope.body_case = HEARTH__ENVELOPE__BODY_OPENED;
    envelope.opened = &body;
    put(s, PEER_COORDINATOR, CHANNEL_CONTROL, &envelope, NULL, 0, out);
}

void stage_send_progress(struct stage *s, struct stage_sequence *sequence, const struct stage_row *last, struct outbox *out)
{
    Hearth__Progress body = HEARTH__PROGRESS__INIT;
    uint64_t busy_us = sequence->busy_ns / 1000;
    body.sequence = sequence->id;
    body.generation = last->generation;
    body.position = (uint32_t)last->row.position;
    body.stage = (uint32_t)s->config.stage;
    body.busy_us = busy_us < UINT32_MAX ? (uint32_t)busy_us : UINT32_MAX;
    sequence->busy_ns = 0;
    Hearth__Envelope envelope = HEARTH__ENVELOPE__INIT;
    envelope.body_case = HEARTH__ENVELOPE__BODY_PROGRESS;
    envelope.progress = &body;
    put(s, PEER_COORDINATOR, CHANNEL_CONTROL, &envelope, NULL, 0, out);
}

/* ---- Step ---- */

/* `want` speaks of the last row, or of all. */
int stage_step_extends(const struct stage_row *a, const struct stage_row *b)
{
    int wants_fit = a->want ? a->want & WANT_EVERY_ROW && a->want == b->want : !(b->want & WANT_EVERY_ROW);
    return wants_fit && a->sequence == b->sequence && b->row.position == a->row.position + 1 && a->generation == b->generation &&
           a->cut_from == b->cut_from && a->kind == b->kind && a->depth == b->depth && a->chunk_first == b->chunk_first &&
           a->chunk_rows == b->chunk_rows;
}

int stage_step_length(const struct stage *s, const struct stage_row *first, int n)
{
    int length = 1;
    for (const struct stage_row *row = first; length < n && length < s->step_rows_max && stage_step_extends(row, row->next);
         row = row->next)
        length++;
    return length;
}

void stage_send_step(struct stage *s, const struct stage_row *first, int n, uint64_t now_ns, struct outbox *out)
{
    CHECK(n >= 1 && n <= s->step_rows_max);
    size_t width = (size_t)s->engine->row_width;
    const struct stage_sequence *sequence = &s->table.sequences[first->slot];
    const struct stage_row *row = first, *last = first;
    for (int i = 0; i < n; i++, row = row->next) {
        s->step_tokens[i] = (uint32_t)row->token;
        memcpy(s->step_rows + (size_t)i * width, row->row.residual, width * sizeof(float));
        last = row;
    }
    Hearth__Step body = HEARTH__STEP__INIT;
    body.sequence = first->sequence;
    body.generation = first->generation;
    body.cut_from = first->cut_from;
    body.first_position = (uint32_t)first->row.position;
    body.n_rows = (uint32_t)n;
    body.kind = (Hearth__StepKind)first->kind;
    body.depth = first->depth;
    body.chunk_first = first->chunk_first;
    body.chunk_rows = first->chunk_rows;
    body.n_token_ids = (size_t)n;
    body.token_ids = s->step_tokens;
    body.next_token = last->next_token;
    body.want = last->want;
    body.prefix_hash = sequence->at[first->row.position].hash;
    body.remaining_ms = last->deadline_ns > now_ns ? (uint32_t)((last->deadline_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS) : 0;
    Hearth__Envelope envelope = HEARTH__ENVELOPE__INIT;
    envelope.body_case = HEARTH__ENVELOPE__BODY_STEP;
    envelope.step = &body;
    put(s, PEER_NEXT, CHANNEL_ROWS, &envelope, s->step_rows, (size_t)n * width * sizeof(float), out);
}

/* ---- Result ---- */

static void put_result(struct stage *s, Hearth__Result *body, const float *logits, struct outbox *out)
{
    body->row_floats = logits ? (uint32_t)s->engine->vocab_size : 0;
    Hearth__Envelope envelope = HEARTH__ENVELOPE__INIT;
    envelope.body_case = HEARTH__ENVELOPE__BODY_RESULT;
    envelope.result = body;
    put(s, PEER_NEXT, CHANNEL_ROWS, &envelope, logits, body->row_floats * sizeof(float), out);
}

static enum status check_finite(const float *logits, int n, struct error *err)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += logits[i] * 0.0f; /* NaN for NaN and infinity */
    return sum == 0.0f ? STATUS_OK : error_set(err, STATUS_CORRUPT, "a logit is not finite");
}

enum status stage_send_result(struct stage *s, const struct stage_sequence *sequence, const struct stage_row *row, const float *logits,
                              struct outbox *out, struct error *err)
{
    CHECK(s->engine->is_tail && logits);
    Hearth__Result body = HEARTH__RESULT__INIT;
    body.sequence = sequence->id;
    body.generation = row->generation;
    body.position = (uint32_t)row->row.position;
    enum status status = check_finite(logits, s->engine->vocab_size, err);
    if (!status && row->want & WANT_CANDIDATES) {
        struct candidates *c = &s->candidates;
        status = candidates_choose(c, logits, sequence->n_tokens, (double)sequence->temperature, err);
        body.n_ids = body.n_logits = (size_t)c->n;
        body.ids = c->ids;
        body.logits = c->logits;
        body.log_sum_exp = c->log_sum_exp;
    }
    if (status)
        return error_wrap(err, "stage %d, head, position %d", s->config.stage, row->row.position);
    put_result(s, &body, row->want & WANT_LOGITS ? logits : NULL, out);
    return STATUS_OK;
}

enum status stage_send_draft_logits(struct stage *s, const struct stage_sequence *sequence, int position, const float *logits,
                                    struct outbox *out, struct error *err)
{
    if (check_finite(logits, s->engine->vocab_size, err))
        return error_wrap(err, "stage %d, MTP layer, position %d", s->config.stage, position);
    Hearth__Result body = HEARTH__RESULT__INIT;
    body.sequence = sequence->id;
    body.generation = sequence->at[position].generation;
    body.position = (uint32_t)position;
    body.is_draft_row = 1;
    put_result(s, &body, logits, out);
    return STATUS_OK;
}
