/* The work of a stage: which unit is next, and what happens to its rows (docs/spec/pipeline_protocol.md, rules 7 to 9, 12, 13). */
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "node/stage_internal.h"

/* "Prefill units are split so that none takes more than about 50 ms" (rule 7): decode rows and cuts wait that long at most. The smallest
 * unit still shares each weight that it reads among a few rows. */
enum { PREFILL_UNIT_NS = 50000000, PREFILL_ROWS_MIN = 4 };

/* Rows of MTP units whose logits are wanted: one message each. */
enum { LOGITS_ROWS_MAX = STAGE_UNIT_MESSAGES_MAX / 2 };

enum { PREFILL_CLASS = 2 };

/* A smaller class goes first (rule 9). MTP rows for committed tokens are class 0 and no rows of the pool. */
static uint32_t row_class(const struct stage_row *row)
{
    switch (row->kind) {
    case ROW_DECODE:
        return 1;
    case ROW_PREFILL:
        return PREFILL_CLASS;
    case ROW_DRAFT:
        break;
    }
    return row->depth < UINT32_MAX - 3 ? 3 + row->depth : UINT32_MAX;
}

/* ---- which unit ---- */

/* Rule 8: a row may enter its layer when the row before it has left that layer. */
static int may_enter(const struct stage_row *before, const struct stage_row *row)
{
    return !before || before->row.next_layer > row->row.next_layer;
}

/* Rule 7: where an expert is read once for all rows of a set, a chunk starts when all of it is here. */
static int waits_for_chunk(const struct stage *s, const struct stage_row *row)
{
    return s->engine->set_rows_max && row->kind == ROW_PREFILL && row->row.next_layer == s->engine->layer_begin &&
           s->table.sequences[row->slot].length < (int)(row->chunk_first + row->chunk_rows);
}

static int may_run(const struct stage *s, const struct stage_row *before, const struct stage_row *row)
{
    return !row->is_paused && may_enter(before, row) && !waits_for_chunk(s, row);
}

static int goes_before(const struct stage_row *a, const struct stage_row *b)
{
    uint32_t class_a = row_class(a), class_b = row_class(b);
    return class_a != class_b ? class_a < class_b : a->arrived_ns < b->arrived_ns;
}

/* Of the rows that may enter their layer: by class, then who came first, then who is furthest. */
static const struct stage_row *choose_row(const struct stage *s)
{
    const struct stage_row *best = NULL;
    for (int i = 0; i < s->table.max; i++) {
        const struct stage_row *before = NULL;
        for (const struct stage_row *row = s->table.sequences[i].first; row; before = row, row = row->next)
            if (may_run(s, before, row) && (!best || goes_before(row, best)))
                best = row;
    }
    return best;
}

int stage_has_work(const struct stage *s)
{
    for (int i = 0; i < s->table.max; i++)
        if (stage_mtp_pending(s, &s->table.sequences[i]))
            return 1;
    return s->n_paused || choose_row(s);
}

/* A unit while it is put together. `messages` bounds what it can lead to; piece: rows of the Step that is being formed. */
struct unit {
    int layer, n, rows_max, messages, piece;
    uint32_t class;
    int is_leaving;
};

/* Adds a row if what it leads to still fits: at the tail a Result, elsewhere a Step unless it joins the one before; Progress and Refuse of
 * its sequence. */
static int add_row(struct stage *s, struct unit *unit, struct stage_row *row, int is_first_of_sequence)
{
    int messages = is_first_of_sequence || unit->n % s->config.unit_rows_max == 0 ? 2 : 0; /* large units finish in blocks */
    int joins = !is_first_of_sequence && unit->piece < s->step_rows_max && stage_step_extends(s->unit[unit->n - 1], row);
    if (unit->is_leaving)
        messages += s->engine->is_tail ? !!(row->want & (WANT_CANDIDATES | WANT_LOGITS)) : !joins;
    if (unit->n == unit->rows_max || unit->messages + messages > STAGE_UNIT_MESSAGES_MAX)
        return 0;
    unit->messages += messages;
    unit->piece = joins ? unit->piece + 1 : 1;
    s->unit[unit->n++] = row;
    return 1;
}

/* The rows from `row` on that are ready for the unit's layer. */
static void gather(struct stage *s, struct unit *unit, struct stage_row *row)
{
    for (int n = 0; row && row->row.next_layer == unit->layer && row_class(row) == unit->class && !waits_for_chunk(s, row) && add_row(s, unit, row, !n);
         row = row->next)
        n++;
}

static struct stage_row *entering(const struct stage *s, const struct stage_sequence *sequence, const struct unit *unit)
{
    const struct stage_row *before = NULL;
    for (struct stage_row *row = sequence->first; row; before = row, row = row->next)
        if (row->row.next_layer == unit->layer)
            return may_run(s, before, row) && row_class(row) == unit->class ? row : NULL;
    return NULL;
}

/* The chosen row, those behind it, and those of other sequences that stand before the same layer in the same class. */
static struct unit choose_unit(struct stage *s)
{
    const struct stage_row *chosen = choose_row(s);
    struct unit unit = {.messages = 1}; /* one for an expired sequence */
    if (!chosen || (s->n_paused && row_class(chosen) >= PREFILL_CLASS))
        return unit;
    unit.layer = chosen->row.next_layer;
    unit.class = row_class(chosen);
    unit.rows_max = chosen->kind != ROW_PREFILL ? s->config.unit_rows_max : s->engine->set_rows_max ? s->unit_capacity : s->prefill_rows;
    unit.is_leaving = unit.layer == s->engine->layer_end - 1;
    for (int i = 0; i < s->table.max; i++) {
        const struct stage_sequence *sequence = &s->table.sequences[(chosen->slot + i) % s->table.max];
        struct stage_row *row = entering(s, sequence, &unit);
        if (row)
            gather(s, &unit, row);
    }
    CHECK(unit.n >= 1);
    return unit;
}

/* ---- failures ---- */

static struct stage_sequence *sequence_of(struct stage *s, const struct stage_row *row)
{
    return &s->table.sequences[row->slot];
}

/* The rows of a sequence leave the unit and the stage. */
static void fail_in_unit(struct stage *s, struct unit *unit, struct stage_sequence *sequence, const char *sentence, struct outbox *out)
{
    int kept = 0;
    for (int i = 0; i < unit->n; i++)
        if (s->unit[i]->slot != sequence->slot)
            s->unit[kept++] = s->unit[i];
    unit->n = kept;
    stage_fail(s, sequence, REFUSE_INTERNAL, sentence, out);
}

static void fail_unit(struct stage *s, struct unit *unit, const char *sentence, struct outbox *out)
{
    while (unit->n)
        fail_in_unit(s, unit, sequence_of(s, s->unit[0]), sentence, out);
}

static void drop_rows_not_finite(struct stage *s, struct unit *unit, struct outbox *out)
{
    for (int i = 0; i < unit->n;) {
        const struct stage_row *row = s->unit[i];
        if (row->row.is_finite) {
            i++;
            continue;
        }
        char text[TEXT_BYTES_MAX];
        snprintf(text, sizeof text, "stage %d, layer %d, position %d: a value is not finite", s->config.stage, unit->layer,
                 row->row.position);
        fail_in_unit(s, unit, sequence_of(s, row), text, out);
        i = 0;
    }
}

/* At most one a unit; the others come with the next ones. */
void stage_expire(struct stage *s, uint64_t now_ns, struct outbox *out)
{
    for (int i = 0; i < s->table.max; i++) {
        struct stage_sequence *sequence = &s->table.sequences[s->next_expiry];
        s->next_expiry = (s->next_expiry + 1) % s->table.max;
        if (!sequence->first || sequence->first->deadline_ns > now_ns)
            continue;
        char text[TEXT_BYTES_MAX];
        snprintf(text, sizeof text, "stage %d, position %d: the request's deadline has passed", s->config.stage,
                 sequence->first->row.position);
        stage_fail(s, sequence, REFUSE_INTERNAL, text, out);
        return;
    }
}

/* ---- leaving the range ---- */

/* Of the first n_rows rows of the unit, those from `at` on that belong to the same sequence. */
static int same_sequence(const struct stage *s, int n_rows, int at)
{
    int n = 1;
    while (at + n < n_rows && s->unit[at + n]->slot == s->unit[at]->slot)
        n++;
    return n;
}

static void send_steps(struct stage *s, int at, int n, uint64_t now_ns, struct outbox *out)
{
    for (int end = at + n, piece; at < end; at += piece) {
        piece = stage_step_length(s, s->unit[at], end - at);
        stage_send_step(s, s->unit[at], piece, now_ns, out);
    }
}

static enum status send_results(struct stage *s, int at, int n, struct outbox *out, struct error *err)
{
    enum status status = STATUS_OK;
    for (int i = at; i < at + n && !status; i++)
        if (s->unit[i]->want & (WANT_CANDIDATES | WANT_LOGITS))
            status = stage_send_result(s, sequence_of(s, s->unit[i]), s->unit[i], s->logits[i], out, err);
    return status;
}

/* The first n rows of the unit leave; 0: they have all failed. */
static int leave_block(struct stage *s, struct unit *unit, int n_block, uint64_t now_ns, struct outbox *out)
{
    struct error err;
    if (s->engine->is_tail && s->engine->finish(s->engine, s->unit, n_block, s->logits, &err)) {
        fail_unit(s, unit, err.text, out);
        return 0;
    }
    for (int at = 0, n; at < n_block; at += n) {
        n = same_sequence(s, n_block, at);
        struct stage_sequence *sequence = sequence_of(s, s->unit[at]);
        if (sequence->is_failed)
            continue; /* in an earlier block */
        CHECK(sequence->first == s->unit[at]);
        if (!s->engine->is_tail)
            send_steps(s, at, n, now_ns, out);
        else if (send_results(s, at, n, out, &err)) {
            stage_fail(s, sequence, REFUSE_INTERNAL, err.text, out);
            continue;
        }
        stage_send_progress(s, sequence, s->unit[at + n - 1], out);
        sequence->finished = s->unit[at + n - 1]->row.position + 1;
        s->counters.rows_done += (uint64_t)n;
        for (int i = 0; i < n; i++)
            stage_free_first(s, sequence);
    }
    return 1;
}

/* The rows of the unit have passed the last layer here. They are the first ones of their sequences (rule 8). */
static void leave(struct stage *s, struct unit *unit, uint64_t now_ns, struct outbox *out)
{
    while (unit->n) {
        int n = s->engine->is_tail && unit->n > s->config.unit_rows_max ? s->config.unit_rows_max : unit->n;
        if (!leave_block(s, unit, n, now_ns, out))
            return;
        unit->n -= n;
        memmove(s->unit, s->unit + n, (size_t)unit->n * sizeof *s->unit);
    }
}

/* ---- units ---- */

static void count_waiting(struct stage *s, const struct unit *unit, uint64_t now_ns)
{
    if (unit->layer != s->engine->layer_begin)
        return;
    for (int i = 0; i < unit->n; i++)
        s->counters.queue_ns += now_ns - s->unit[i]->arrived_ns;
}

/* The next prefill units are halved when this one took too long, and doubled when twice as many rows would still be in time. */
static void adapt_prefill(struct stage *s, const struct unit *unit, uint64_t took_ns)
{
    if (took_ns > PREFILL_UNIT_NS && unit->n > PREFILL_ROWS_MIN)
        s->prefill_rows = unit->n / 2 > PREFILL_ROWS_MIN ? unit->n / 2 : PREFILL_ROWS_MIN;
    else if (took_ns < PREFILL_UNIT_NS / 2 && unit->n == s->prefill_rows)
        s->prefill_rows *= 2;
    if (s->prefill_rows > s->config.unit_rows_max)
        s->prefill_rows = s->config.unit_rows_max;
}

/* ---- the interrupted unit ---- */

static void pause_unit(struct stage *s, const struct unit *unit)
{
    s->n_paused = unit->n;
    s->paused_layer = unit->layer;
    memcpy(s->paused, s->unit, (size_t)unit->n * sizeof *s->unit);
    for (int i = 0; i < unit->n; i++)
        s->paused[i]->is_paused = 1;
}

/* It becomes the present unit again. */
static struct unit take_paused(struct stage *s)
{
    struct unit unit = {.layer = s->paused_layer, .n = s->n_paused, .class = PREFILL_CLASS};
    unit.is_leaving = unit.layer == s->engine->layer_end - 1;
    memcpy(s->unit, s->paused, (size_t)unit.n * sizeof *s->unit);
    for (int i = 0; i < unit.n; i++)
        s->unit[i]->is_paused = 0;
    s->n_paused = 0;
    return unit;
}

void stage_forget_paused(struct stage *s, struct stage_row *row)
{
    int kept = 0;
    for (int i = 0; i < s->n_paused; i++)
        if (s->paused[i] != row)
            s->paused[kept++] = s->paused[i];
    CHECK(kept == s->n_paused - 1);
    s->n_paused = kept;
    s->engine->forget(s->engine, row);
}

static void run_rows(struct stage *s, struct unit *unit, int is_resumed, uint64_t start_ns, struct clock *clock, struct outbox *out)
{
    struct error err;
    int is_done = 1;
    uint64_t until_ns = start_ns + PREFILL_UNIT_NS;
    if (!is_resumed)
        count_waiting(s, unit, start_ns);
    enum status status = is_resumed ? s->engine->resume(s->engine, until_ns, &is_done, &err)
                                    : s->engine->run_unit(s->engine, unit->layer, s->unit, unit->n, until_ns, &is_done, &err);
    if (status) {
        fail_unit(s, unit, err.text, out);
        return;
    }
    uint64_t now_ns = clock_now_ns(clock), took_ns = now_ns - start_ns;
    for (int i = 0; i < unit->n; i++)
        sequence_of(s, s->unit[i])->busy_ns += took_ns / (uint64_t)unit->n;
    if (!is_done) {
        pause_unit(s, unit);
        return;
    }
    if (unit->class == PREFILL_CLASS && !s->engine->set_rows_max)
        adapt_prefill(s, unit, took_ns);
    drop_rows_not_finite(s, unit, out);
    if (unit->is_leaving && unit->n)
        leave(s, unit, now_ns, out);
}

/* True MTP rows of a sequence, in ascending order and exactly once: those whose logits are wanted apart from those that only leave cache
 * entries. */
static void run_mtp(struct stage *s, struct stage_sequence *sequence, int pending, struct outbox *out)
{
    struct row_engine *e = s->engine;
    struct error err;
    int first = e->mtp_length(e, sequence->slot), wanted = sequence->at[first].want != 0, n = 0;
    int most = wanted && s->config.unit_rows_max > LOGITS_ROWS_MAX ? LOGITS_ROWS_MAX : s->config.unit_rows_max;
    for (; n < pending && n < most && (sequence->at[first + n].want != 0) == wanted; n++)
        s->tokens[n] = sequence->at[first + n + 1].token;
    enum status status = e->mtp_rows(e, sequence->slot, first, s->tokens, n, wanted ? s->logits : NULL, &err);
    for (int i = 0; i < n && wanted && !status; i++) {
        sequence->at[first + i].want = 0;
        status = stage_send_draft_logits(s, sequence, first + i, s->logits[i], out, &err);
    }
    if (status)
        stage_fail(s, sequence, REFUSE_INTERNAL, err.text, out);
    else
        CHECK(e->mtp_length(e, sequence->slot) == first + n);
}

void stage_run_unit(struct stage *s, struct clock *clock, struct outbox *out)
{
    uint64_t start_ns = clock_now_ns(clock);
    stage_expire(s, start_ns, out);
    struct stage_sequence *for_mtp = NULL;
    int pending = 0;
    for (int i = 0; i < s->table.max && !pending; i++) {
        for_mtp = &s->table.sequences[i];
        pending = stage_mtp_pending(s, for_mtp);
    }
    if (pending) {
        run_mtp(s, for_mtp, pending, out);
    } else {
        struct unit unit = choose_unit(s);
        int is_resumed = !unit.n && s->n_paused;
        if (is_resumed)
            unit = take_paused(s);
        if (!unit.n)
            return;
        run_rows(s, &unit, is_resumed, start_ns, clock, out);
    }
    s->counters.units++;
    s->counters.busy_ns += clock_now_ns(clock) - start_ns;
}
