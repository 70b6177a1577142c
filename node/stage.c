#include "node/stage_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"

_Static_assert((int)ROW_PREFILL == HEARTH__STEP_KIND__STEP_PREFILL && (int)ROW_DECODE == HEARTH__STEP_KIND__STEP_DECODE &&
                   (int)ROW_DRAFT == HEARTH__STEP_KIND__STEP_DRAFT,
               "kinds of rows are those of the wire");

/* ---- life ---- */

static enum status check_config(const struct stage_config *c, const struct row_engine *e, struct error *err)
{
    if (c->n_stages < 1 || c->n_stages > STAGES_MAX || c->stage < 0 || c->stage >= c->n_stages)
        return error_set(err, STATUS_INVALID, "stage %d of %d: at most %d stages", c->stage, c->n_stages, STAGES_MAX);
    if (e->is_head != (c->stage == 0) || e->is_tail != (c->stage == c->n_stages - 1))
        return error_set(err, STATUS_INVALID, "layers %d-%d cannot be stage %d of %d", e->layer_begin, e->layer_end, c->stage, c->n_stages);
    if (c->max_positions < 1 || c->max_positions > POSITIONS_MAX)
        return error_set(err, STATUS_INVALID, "max_positions %d is outside 1 to %d", c->max_positions, POSITIONS_MAX);
    if (c->max_sequences < 1 || c->max_sequences > SEQUENCES_MAX)
        return error_set(err, STATUS_INVALID, "max_sequences %d is outside 1 to %d", c->max_sequences, SEQUENCES_MAX);
    if (c->max_rows_in_flight < 1 || c->max_rows_in_flight > ROWS_IN_FLIGHT_MAX)
        return error_set(err, STATUS_INVALID, "max_rows_in_flight %d is outside 1 to %d", c->max_rows_in_flight, ROWS_IN_FLIGHT_MAX);
    size_t widest = sizeof(float) * (size_t)(e->vocab_size > e->row_width ? e->vocab_size : e->row_width);
    if (widest > ROW_MESSAGE_BYTES_MAX)
        return error_set(err, STATUS_UNSUPPORTED, "one row or its logits take %zu bytes, a message holds %d", widest,
                         ROW_MESSAGE_BYTES_MAX);
    return STATUS_OK;
}

static void allocate(struct stage *s)
{
    const struct stage_config *c = &s->config;
    const struct row_engine *e = s->engine;
    size_t n = (size_t)c->max_rows_in_flight, width = (size_t)e->row_width, capacity = (size_t)e->selection_capacity;
    sequence_table_init(&s->table, c->max_sequences, c->max_positions);
    s->rows = xcalloc(n, sizeof *s->rows);
    s->residuals = xcalloc(n * width, sizeof(float));
    s->selections = xcalloc(n * capacity + 1, sizeof(int));
    for (size_t i = n; i-- > 0;) {
        s->rows[i].row.residual = s->residuals + i * width;
        s->rows[i].row.selection.positions = s->selections + i * capacity;
        s->rows[i].next = s->free_rows;
        s->free_rows = &s->rows[i];
    }
    s->n_free_rows = c->max_rows_in_flight;
    s->unit_capacity = e->set_rows_max > c->unit_rows_max ? e->set_rows_max : c->unit_rows_max;
    s->unit = xcalloc((size_t)s->unit_capacity, sizeof *s->unit);
    s->paused = xcalloc((size_t)s->unit_capacity, sizeof *s->paused);
    s->logits = xcalloc((size_t)c->unit_rows_max, sizeof *s->logits);
    s->tokens = xcalloc((size_t)c->unit_rows_max, sizeof *s->tokens);
    size_t fits = ROW_MESSAGE_BYTES_MAX / (width * sizeof(float));
    s->step_rows_max = fits < STEP_ROWS_MAX ? (int)fits : STEP_ROWS_MAX;
    s->step_rows = xcalloc((size_t)s->step_rows_max * width, sizeof(float));
    s->step_tokens = xcalloc(STEP_ROWS_MAX, sizeof *s->step_tokens);
    if (e->is_tail)
        candidates_init(&s->candidates, e->vocab_size);
}

uint64_t stage_bytes(const struct stage_config *c, int row_width, int selection_capacity, int vocab_size)
{
    uint64_t rows = (uint64_t)c->max_rows_in_flight, width = (uint64_t)row_width * sizeof(float);
    return rows * (sizeof(struct stage_row) + width + (uint64_t)selection_capacity * sizeof(int)) + ROW_MESSAGE_BYTES_MAX +
           ((uint64_t)c->max_positions + (uint64_t)c->max_sequences) * sizeof(struct position_record) +
           (uint64_t)c->max_sequences * sizeof(struct stage_sequence) + (uint64_t)vocab_size * sizeof(double) +
           /* What a full outbox of one unit holds: rows once more, or logits. */
           (uint64_t)c->unit_rows_max * (width > (uint64_t)vocab_size * sizeof(float) ? width : (uint64_t)vocab_size * sizeof(float));
}

enum status stage_new(struct stage **out, const struct stage_config *config, struct row_engine *engine, struct error *err)
{
    *out = NULL;
    CHECK(config->unit_rows_max >= 1 && engine->row_width >= 1 && engine->layer_begin < engine->layer_end);
    enum status status = check_config(config, engine, err);
    if (status)
        return status;
    struct stage *s = xcalloc(1, sizeof *s);
    s->config = *config;
    s->engine = engine;
    s->prefill_rows = config->unit_rows_max;
    allocate(s);
    *out = s;
    return STATUS_OK;
}

static void close_sequence(struct stage *s, struct stage_sequence *sequence)
{
    stage_drop_rows(s, sequence, 0);
    s->engine->drop(s->engine, sequence->slot);
    sequence_table_close(&s->table, sequence);
}

void stage_free(struct stage **stage)
{
    struct stage *s = *stage;
    if (!s)
        return;
    for (int i = 0; i < s->table.max; i++)
        if (s->table.sequences[i].is_open)
            close_sequence(s, &s->table.sequences[i]);
    CHECK(s->n_free_rows == s->config.max_rows_in_flight);
    sequence_table_release(&s->table);
    candidates_release(&s->candidates);
    free(s->rows);
    free(s->residuals);
    free(s->selections);
    free(s->unit);
    free(s->paused);
    free(s->logits);
    free(s->tokens);
    free(s->step_rows);
    free(s->step_tokens);
    free(s);
    *stage = NULL;
}

const struct stage_counters *stage_counters(const struct stage *stage)
{
    return &stage->counters;
}

int stage_free_positions(const struct stage *stage)
{
    return stage->table.free_positions;
}

/* ---- rows under way ---- */

static struct stage_row *take_row(struct stage *s)
{
    struct stage_row *row = s->free_rows;
    CHECK(row && s->n_free_rows > 0);
    s->free_rows = row->next;
    s->n_free_rows--;
    struct row empty = {.residual = row->row.residual, .selection.positions = row->row.selection.positions, .is_finite = 1};
    *row = (struct stage_row){.row = empty};
    return row;
}

static void give_row(struct stage *s, struct stage_row *row)
{
    row->next = s->free_rows;
    s->free_rows = row;
    s->n_free_rows++;
    CHECK(s->n_free_rows <= s->config.max_rows_in_flight);
}

void stage_free_first(struct stage *s, struct stage_sequence *sequence)
{
    struct stage_row *row = sequence->first;
    sequence->first = row->next;
    if (!sequence->first)
        sequence->last = NULL;
    give_row(s, row);
}

void stage_drop_rows(struct stage *s, struct stage_sequence *sequence, int from)
{
    struct stage_row **link = &sequence->first;
    sequence->last = NULL;
    while (*link && (*link)->row.position < from) {
        sequence->last = *link;
        link = &(*link)->next;
    }
    for (struct stage_row *row = *link, *next; row; row = next) {
        next = row->next;
        s->counters.rows_cut++;
        if (row->is_paused)
            stage_forget_paused(s, row);
        give_row(s, row);
    }
    *link = NULL;
    if (sequence->last && sequence->last->row.position == from - 1)
        sequence->last->next_token = -1;
}

void stage_fail(struct stage *s, struct stage_sequence *sequence, uint32_t code, const char *sentence, struct outbox *out)
{
    stage_drop_rows(s, sequence, 0);
    sequence->is_failed = 1;
    stage_send_refuse(s, sequence->id, HEARTH__SCOPE__SCOPE_SEQUENCE, code, sentence, out);
}

int stage_mtp_pending(const struct stage *s, const struct stage_sequence *sequence)
{
    if (!s->engine->is_tail || !s->engine->has_mtp || !sequence->is_open || sequence->is_failed)
        return 0;
    int target = sequence->ordered - 1 < sequence->finished ? sequence->ordered - 1 : sequence->finished;
    int have = s->engine->mtp_length(s->engine, sequence->slot);
    return target > have ? target - have : 0;
}

/* ---- Open, Drop ---- */

static const char *wrong_open(const struct stage *s, const Hearth__Open *m, char text[TEXT_BYTES_MAX])
{
    if (m->row_width != (uint32_t)s->engine->row_width)
        snprintf(text, TEXT_BYTES_MAX, "open: row_width %u, rows here have %d floats", m->row_width, s->engine->row_width);
    else if (m->n_tokens < 1 || m->n_tokens > (uint32_t)s->engine->vocab_size)
        snprintf(text, TEXT_BYTES_MAX, "open: n_tokens %u is outside 1 to %d", m->n_tokens, s->engine->vocab_size);
    else if (m->positions < 1 || m->positions > POSITIONS_MAX)
        snprintf(text, TEXT_BYTES_MAX, "open: positions %u is outside 1 to %d", m->positions, POSITIONS_MAX);
    else if (!isfinite(m->temperature) || m->temperature < 0)
        snprintf(text, TEXT_BYTES_MAX, "open: temperature %g is no temperature", (double)m->temperature);
    else
        return NULL;
    return text;
}

static void on_open(struct stage *s, const Hearth__Open *m, struct outbox *out)
{
    char text[TEXT_BYTES_MAX];
    if (wrong_open(s, m, text)) {
        stage_send_refuse(s, m->sequence, HEARTH__SCOPE__SCOPE_SEQUENCE, REFUSE_MALFORMED, text, out);
        return;
    }
    struct stage_sequence *sequence = sequence_table_find(&s->table, m->sequence);
    if (sequence && (uint32_t)sequence->promised == m->positions && !sequence->is_failed) {
        stage_send_opened(s, m->sequence, out); /* asked twice */
        return;
    }
    struct error err;
    if (sequence)
        snprintf(err.text, sizeof err.text, "sequence %" PRIu64 " is open here already", m->sequence);
    else if (!(sequence = sequence_table_open(&s->table, m->sequence, (int)m->positions)))
        snprintf(err.text, sizeof err.text, "stage %d: %u positions asked for, %d are free; at most %d sequences", s->config.stage,
                 m->positions, s->table.free_positions, s->config.max_sequences);
    else if (s->engine->open(s->engine, sequence->slot, (int)m->positions, &err))
        sequence_table_close(&s->table, sequence);
    else {
        sequence->temperature = m->temperature;
        sequence->n_tokens = (int)m->n_tokens;
        stage_send_opened(s, m->sequence, out);
        return;
    }
    stage_send_refuse(s, m->sequence, HEARTH__SCOPE__SCOPE_SEQUENCE, REFUSE_MEMORY, err.text, out);
}

static void on_drop(struct stage *s, const Hearth__Drop *m)
{
    struct stage_sequence *sequence = sequence_table_find(&s->table, m->sequence);
    if (sequence)
        close_sequence(s, sequence);
}

/* ---- Cut ---- */

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

/* "Rows at >= from of older generations are void, rows below stay valid" (rule 4). Rows that a newer generation has brought already stay,
 * so that a late Cut is harmless; what is undone is only a length (rule 6). */
static void apply_cut(struct stage *s, struct stage_sequence *sequence, uint32_t generation, uint32_t from)
{
    if (generation > sequence->generation)
        sequence->generation = generation;
    if (!sequence_add_cut(sequence, generation, from))
        return;
    int length = sequence_length_after(sequence, generation, from);
    if (length == sequence->length && from != (uint32_t)length)
        return; /* nothing of an older generation is at or above it */
    stage_drop_rows(s, sequence, length);
    sequence->length = length;
    sequence->known = smaller(sequence->known, length);
    sequence->ordered = smaller(sequence->ordered, length);
    sequence->finished = smaller(sequence->finished, length);
    s->engine->truncate(s->engine, sequence->slot, length);
}

static void on_cut(struct stage *s, const Hearth__Cut *m)
{
    struct stage_sequence *sequence = sequence_table_find(&s->table, m->sequence);
    if (sequence && !sequence->is_failed && m->from != NO_CUT)
        apply_cut(s, sequence, m->generation, m->from);
}

/* ---- Commit ---- */

static int says_otherwise(const struct stage_sequence *sequence, int position, int token)
{
    return position < larger(sequence->length, sequence->known) && sequence->at[position].token != token;
}

static void on_commit(struct stage *s, const Hearth__Commit *m, struct outbox *out)
{
    struct stage_sequence *sequence = sequence_table_find(&s->table, m->sequence);
    if (!sequence) {
        stage_send_nack(s, m->sequence, NULL, NACK_SEQUENCE, out);
        return;
    }
    if (sequence->is_failed)
        return;
    char text[TEXT_BYTES_MAX];
    if (m->position > (uint32_t)sequence->promised || m->token >= (uint32_t)s->engine->vocab_size) {
        snprintf(text, sizeof text, "commit: position %u, token %u; %d positions were promised, the vocabulary has %d ids", m->position,
                 m->token, sequence->promised, s->engine->vocab_size);
        stage_send_refuse(s, m->sequence, HEARTH__SCOPE__SCOPE_MESSAGE, REFUSE_MALFORMED, text, out);
        return;
    }
    int position = (int)m->position, token = (int)m->token;
    if (position > sequence->known || says_otherwise(sequence, position, token)) {
        stage_send_nack(s, m->sequence, sequence, position > sequence->known ? NACK_GAP : NACK_PREFIX, out);
        return;
    }
    sequence->at[position].token = token;
    sequence->known = larger(sequence->known, position + 1);
    sequence->ordered = larger(sequence->ordered, position + 1);
    for (struct stage_row *row = sequence->first; row && row->row.position <= position; row = row->next)
        if (row->kind == ROW_DRAFT)
            row->kind = ROW_DECODE;
}

/* ---- Step ---- */

/* NULL: the step's fields make sense here. */
static const char *wrong_step(const struct stage *s, const struct stage_sequence *sequence, const Hearth__Step *m, const float *rows,
                              char text[TEXT_BYTES_MAX])
{
    int vocab = s->engine->vocab_size;
    if (m->n_rows < 1 || m->n_rows > STEP_ROWS_MAX || m->n_token_ids != m->n_rows)
        snprintf(text, TEXT_BYTES_MAX, "step: %u rows with %zu token ids, at most %d rows", m->n_rows, m->n_token_ids, STEP_ROWS_MAX);
    else if (m->first_position > (uint32_t)sequence->promised || m->n_rows > (uint32_t)sequence->promised - m->first_position)
        snprintf(text, TEXT_BYTES_MAX, "step: %u rows at position %u, %d positions were promised", m->n_rows, m->first_position,
                 sequence->promised);
    else if (!rows != !!s->engine->is_head)
        snprintf(text, TEXT_BYTES_MAX, "step: stage %d takes steps %s rows", s->config.stage, s->engine->is_head ? "without" : "with");
    else if (m->kind > HEARTH__STEP_KIND__STEP_DRAFT || m->next_token < -1 || m->next_token >= vocab || m->want & ~(uint32_t)WANT_ALL)
        snprintf(text, TEXT_BYTES_MAX, "step: kind %d, next_token %d, want %u", (int)m->kind, m->next_token, m->want);
    else {
        for (size_t i = 0; i < m->n_token_ids; i++)
            if (m->token_ids[i] >= (uint32_t)vocab) {
                snprintf(text, TEXT_BYTES_MAX, "step: token id %u, the vocabulary has %d", m->token_ids[i], vocab);
                return text;
            }
        return NULL;
    }
    return text;
}

/* Ids that contradict what is known to be true here. */
static int contradicts(const struct stage_sequence *sequence, const Hearth__Step *m, int n)
{
    int first = (int)m->first_position;
    for (int i = 0; i < n && first + i < sequence->known; i++)
        if (sequence->at[first + i].token != (int)m->token_ids[i])
            return 1;
    return n == (int)m->n_rows && m->next_token >= 0 && first + n < sequence->known && sequence->at[first + n].token != m->next_token;
}

static int first_not_finite(const float *rows, int n_rows, int width)
{
    for (int i = 0; i < n_rows; i++)
        for (int j = 0; j < width; j++)
            if (!isfinite(rows[(size_t)i * (size_t)width + (size_t)j]))
                return i;
    return -1;
}

/* Prompt ids are true as they are, and order MTP rows (rule 12); the id of a decode row is true, but the order comes with its Commit. */
static void learn_ids(struct stage_sequence *sequence, const Hearth__Step *m, int n)
{
    int first = (int)m->first_position, end = first + n;
    if (first > sequence->known || m->kind == HEARTH__STEP_KIND__STEP_DRAFT)
        return;
    if (n == (int)m->n_rows && m->next_token >= 0 && m->kind == HEARTH__STEP_KIND__STEP_PREFILL)
        sequence->at[end++].token = m->next_token;
    sequence->known = larger(sequence->known, end);
    if (m->kind == HEARTH__STEP_KIND__STEP_PREFILL)
        sequence->ordered = larger(sequence->ordered, end);
}

static struct stage_row *row_of(struct stage *s, const struct stage_sequence *sequence, const Hearth__Step *m, int i, int n,
                                uint64_t now_ns)
{
    struct stage_row *row = take_row(s);
    int is_last = i == (int)m->n_rows - 1;
    row->row.position = (int)m->first_position + i;
    row->row.next_layer = s->engine->layer_begin;
    row->sequence = sequence->id;
    row->slot = sequence->slot;
    row->generation = m->generation;
    row->cut_from = m->cut_from;
    row->kind = (enum row_kind)m->kind;
    row->depth = m->depth;
    row->token = (int)m->token_ids[i];
    row->next_token = is_last ? m->next_token : i + 1 < n ? (int)m->token_ids[i + 1] : -1;
    row->want = is_last || m->want & WANT_EVERY_ROW ? m->want : 0;
    row->chunk_first = m->chunk_first;
    row->chunk_rows = m->chunk_rows;
    row->deadline_ns = now_ns + (uint64_t)m->remaining_ms * 1000000;
    row->arrived_ns = now_ns;
    return row;
}

/* The first n rows of the step are valid and fit. */
static void accept_rows(struct stage *s, struct stage_sequence *sequence, const Hearth__Step *m, int n, const float *rows, uint64_t now_ns,
                        struct outbox *out)
{
    size_t width = (size_t)s->engine->row_width;
    for (int i = 0; i < n; i++) {
        struct stage_row *row = row_of(s, sequence, m, i, n, now_ns);
        if (rows)
            memcpy(row->row.residual, rows + (size_t)i * width, width * sizeof(float));
        if (sequence->last)
            sequence->last->next = row;
        else
            sequence->first = row;
        sequence->last = row;
        sequence_append(sequence, m->generation, row->token);
        sequence->at[row->row.position].want = (uint8_t)(row->want & WANT_DRAFT_LOGITS);
        struct error err;
        if (s->engine->enter(s->engine, row, &err)) {
            stage_fail(s, sequence, REFUSE_INTERNAL, err.text, out);
            return;
        }
    }
    learn_ids(sequence, m, n);
}

/* Rows here whose MTP rows are not ordered yet, once the first n rows of the step are in: the tail keeps h of each of them, and has room
 * for as many as may be in flight. */
static int uncommitted_after(const struct stage_sequence *sequence, const Hearth__Step *m, int n)
{
    int end = sequence->length + n;
    if (m->kind == HEARTH__STEP_KIND__STEP_PREFILL && (int)m->first_position <= sequence->known)
        return 0;
    return end - sequence->ordered;
}

/* Rule 5: accepted iff the rows are valid and first_position is the length after cuts. */
static void on_valid_step(struct stage *s, struct stage_sequence *sequence, const Hearth__Step *m, const float *rows, uint64_t now_ns,
                          struct outbox *out)
{
    if (m->generation > sequence->generation) {
        sequence->generation = m->generation;
        if (m->cut_from != NO_CUT)
            apply_cut(s, sequence, m->generation, m->cut_from);
    }
    uint32_t limit = sequence_row_limit(sequence, m->generation), first = m->first_position;
    if (first >= limit) {
        s->counters.steps_void++;
        return;
    }
    int n = limit - first < m->n_rows ? (int)(limit - first) : (int)m->n_rows;
    if (first < (uint32_t)sequence->length) {
        s->counters.steps_duplicate++;
        return;
    }
    uint32_t reason = 0;
    if (first > (uint32_t)sequence->length)
        reason = NACK_GAP;
    else if (m->prefix_hash != sequence->at[first].hash || contradicts(sequence, m, n))
        reason = NACK_PREFIX;
    else if (n > s->n_free_rows || uncommitted_after(sequence, m, n) > s->config.max_rows_in_flight)
        reason = NACK_FULL;
    if (reason) {
        stage_send_nack(s, m->sequence, sequence, reason, out);
        return;
    }
    int bad = rows ? first_not_finite(rows, n, s->engine->row_width) : -1;
    if (bad >= 0) {
        char text[TEXT_BYTES_MAX];
        snprintf(text, sizeof text, "stage %d, layer %d, position %d: a value of the row that arrived is not finite", s->config.stage,
                 s->engine->layer_begin, (int)first + bad);
        stage_fail(s, sequence, REFUSE_INTERNAL, text, out);
        return;
    }
    accept_rows(s, sequence, m, n, rows, now_ns, out);
}

static void on_step(struct stage *s, const Hearth__Step *m, const float *rows, uint64_t now_ns, struct outbox *out)
{
    struct stage_sequence *sequence = sequence_table_find(&s->table, m->sequence);
    char text[TEXT_BYTES_MAX];
    if (!sequence)
        stage_send_nack(s, m->sequence, NULL, NACK_SEQUENCE, out);
    else if (sequence->is_failed)
        s->counters.steps_void++;
    else if (wrong_step(s, sequence, m, rows, text))
        stage_send_refuse(s, m->sequence, HEARTH__SCOPE__SCOPE_MESSAGE, REFUSE_MALFORMED, text, out);
    else
        on_valid_step(s, sequence, m, rows, now_ns, out);
}

/* ---- messages ---- */

static int is_own_epoch(const struct stage *s, const Hearth__Envelope *envelope)
{
    return envelope->epoch && envelope->epoch->instance == s->config.epoch_instance && envelope->epoch->counter == s->config.epoch_counter;
}

void stage_handle(struct stage *s, const Hearth__Envelope *envelope, const float *rows, uint64_t now_ns, struct outbox *out)
{
    if (!is_own_epoch(s, envelope)) {
        s->counters.steps_stale++;
        return;
    }
    switch (envelope->body_case) {
    case HEARTH__ENVELOPE__BODY_OPEN:
        on_open(s, envelope->open, out);
        break;
    case HEARTH__ENVELOPE__BODY_DROP:
        on_drop(s, envelope->drop);
        break;
    case HEARTH__ENVELOPE__BODY_STEP:
        on_step(s, envelope->step, rows, now_ns, out);
        break;
    case HEARTH__ENVELOPE__BODY_CUT:
        on_cut(s, envelope->cut);
        break;
    case HEARTH__ENVELOPE__BODY_COMMIT:
        on_commit(s, envelope->commit, out);
        break;
    default:
        break; /* the loop keeps the rest for itself */
    }
}
