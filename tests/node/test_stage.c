/* Goal: a stage obeys the pipeline's rules: which rows it accepts, when it drops them, in which order it works, what it sends, and that
 * every token comes out as if the rows had gone through one process. Method: one to three real stages with hash engines, whose numbers
 * change when any row is missing, repeated, out of order or stale; each rule alone, then seeded schedules with drafts, cuts, duplicates and
 * foreign epochs. Give a seed as the first argument to replay one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

#include "model/head.h"
#include "node/stage_internal.h"
#include "tests/node/stage_pipe.h"

enum { TEXT_MAX = 400 };
static const uint32_t WANT = WANT_CANDIDATES | WANT_LOGITS;

static int tokens_of_test[TEXT_MAX];

static void make_tokens(void)
{
    for (int i = 0; i < TEXT_MAX; i++)
        tokens_of_test[i] = (i * 31 + i / 7) % (PIPE_VOCAB - 3);
}

/* The next message on a queue to the coordinator, which must be of this kind. */
static Hearth__Envelope *expect_body(struct pipe *p, enum channel channel, int body_case, struct outgoing *message)
{
    if (!p->out[channel].n)
        fail_msg("no message where one was expected (%d)", body_case);
    Hearth__Envelope *envelope = pop_decoded(&p->out[channel], message);
    if ((int)envelope->body_case != body_case)
        fail_msg("a %s where another message was expected", wire_message_name(envelope));
    return envelope;
}

static void done(Hearth__Envelope **envelope, struct outgoing *message)
{
    wire_free(envelope);
    free(message->bytes);
}

static void expect_n(struct pipe *p, enum channel channel, int body_case, int n)
{
    for (int i = 0; i < n; i++) {
        struct outgoing message;
        Hearth__Envelope *envelope = expect_body(p, channel, body_case, &message);
        done(&envelope, &message);
    }
}

static struct pipe *opened_rows(int n_stages, int positions, int max_rows, int unit_rows)
{
    make_tokens();
    struct pipe *p = pipe_new(n_stages, 4, 1024, max_rows, unit_rows, 1);
    pipe_open(p, 1, positions);
    pipe_settle(p);
    expect_n(p, CHANNEL_CONTROL, HEARTH__ENVELOPE__BODY_OPENED, n_stages);
    return p;
}

static struct pipe *opened(int n_stages, int positions)
{
    return opened_rows(n_stages, positions, 128, 16);
}

static void expect_nack(struct pipe *p, uint32_t reason, uint32_t length)
{
    struct outgoing message;
    Hearth__Envelope *envelope = expect_body(p, CHANNEL_CONTROL, HEARTH__ENVELOPE__BODY_NACK, &message);
    assert_int_equal(envelope->nack->reason, reason);
    assert_int_equal(envelope->nack->length, length);
    done(&envelope, &message);
}

static void expect_refuse(struct pipe *p, Hearth__Scope scope, uint32_t code, const char *says)
{
    struct outgoing message;
    Hearth__Envelope *envelope = expect_body(p, CHANNEL_CONTROL, HEARTH__ENVELOPE__BODY_REFUSE, &message);
    assert_int_equal(envelope->refuse->scope, scope);
    assert_int_equal(envelope->refuse->code, code);
    if (!strstr(envelope->refuse->sentence, says))
        fail_msg("'%s' does not say '%s'", envelope->refuse->sentence, says);
    done(&envelope, &message);
}

/* Logits of the row at `position` (or of the MTP row there) as one process computes them. */
static void reference_logits(const int *tokens, int position, int is_mtp, float *logits)
{
    struct hash_reference r;
    hash_reference_init(&r, PIPE_LAYERS, PIPE_VOCAB);
    int last = position + !!is_mtp;
    for (int i = 0; i <= last; i++)
        hash_reference_push(&r, tokens[i], i == last && !is_mtp ? logits : NULL, i == last && is_mtp ? logits : NULL);
    hash_reference_release(&r);
}

static void expect_result(struct pipe *p, const int *tokens, int position, int is_mtp)
{
    struct outgoing message;
    float want[PIPE_VOCAB];
    Hearth__Envelope *envelope = expect_body(p, CHANNEL_ROWS, HEARTH__ENVELOPE__BODY_RESULT, &message);
    const Hearth__Result *r = envelope->result;
    assert_int_equal(r->position, position);
    assert_int_equal(r->is_draft_row, is_mtp);
    reference_logits(tokens, position, is_mtp, want);
    assert_int_equal(message.rows_bytes, sizeof want);
    assert_memory_equal(message_rows(&message), want, sizeof want);
    if (!is_mtp) {
        assert_int_equal(r->n_ids, PIPE_VOCAB - 3);
        assert_int_equal(r->ids[0], largest_logit(want, PIPE_VOCAB - 3));
        for (size_t i = 0; i < r->n_ids; i++) {
            assert_true(r->logits[i] == want[r->ids[i]]);
            assert_true(!i || r->logits[i] < r->logits[i - 1] || (r->logits[i] == r->logits[i - 1] && r->ids[i] > r->ids[i - 1]));
        }
        double sum = log_sum_exp(want, PIPE_VOCAB - 3);
        assert_true(r->log_sum_exp > sum - 1e-9 && r->log_sum_exp < sum + 1e-9);
    }
    done(&envelope, &message);
}

static int count_out(const struct pipe *p, enum channel channel)
{
    return p->out[channel].n;
}

/* ---- one rule each ---- */

static void rows_pass_in_order_and_give_the_numbers_of_one_process(void **state)
{
    (void)state;
    for (int n_stages = 1; n_stages <= 3; n_stages++) {
        struct pipe *p = opened(n_stages, 100);
        pipe_step(p, 0,
                  &(struct test_step){1, .first = 0, .n = 20, .tokens = tokens_of_test, .next_token = tokens_of_test[20], .want = WANT});
        pipe_step(p, 0,
                  &(struct test_step){1, .first = 20, .n = 30, .tokens = tokens_of_test, .next_token = -1, .want = WANT | WANT_EVERY_ROW});
        pipe_settle(p);
        expect_result(p, tokens_of_test, 19, 0);
        for (int q = 20; q < 50; q++)
            expect_result(p, tokens_of_test, q, 0);
        assert_int_equal(count_out(p, CHANNEL_ROWS), 0);
        assert_int_equal(stage_counters(p->stages[n_stages - 1])->rows_done, 50);
        pipe_free(&p);
    }
}

static void mtp_rows_come_from_prompt_ids_and_commits_each_once(void **state)
{
    (void)state;
    struct pipe *p = opened(2, 100);
    struct hash_engine *tail = p->engines[1];
    pipe_step(p, 0, &(struct test_step){1, .first = 0, .n = 10, .tokens = tokens_of_test, .next_token = tokens_of_test[10]});
    pipe_settle(p);
    assert_int_equal(tail->base.mtp_length(&tail->base, 0), 10);
    pipe_step(p, 0,
              &(struct test_step){1, .first = 10, .n = 5, .tokens = tokens_of_test, .next_token = -1,
                                  .want = WANT_DRAFT_LOGITS | WANT_EVERY_ROW});
    pipe_settle(p);
    assert_int_equal(tail->base.mtp_length(&tail->base, 0), 14);
    for (int q = 10; q < 14; q++)
        expect_result(p, tokens_of_test, q, 1);
    assert_int_equal(count_out(p, CHANNEL_ROWS), 0);
    /* The decode row's id is not enough: the order comes with its Commit. */
    pipe_step(p, 0,
              &(struct test_step){1, .first = 15, .n = 1, .tokens = tokens_of_test, .next_token = -1, .kind = ROW_DECODE, .want = WANT});
    pipe_settle(p);
    assert_int_equal(tail->base.mtp_length(&tail->base, 0), 14);
    expect_result(p, tokens_of_test, 15, 0);
    for (int twice = 0; twice < 2; twice++) {
        pipe_commit(p, 1, 15, tokens_of_test[15]);
        pipe_settle(p);
        assert_int_equal(tail->base.mtp_length(&tail->base, 0), 15);
    }
    expect_result(p, tokens_of_test, 14, 1);
    assert_int_equal(count_out(p, CHANNEL_ROWS), 0);
    expect_n(p, CHANNEL_CONTROL, HEARTH__ENVELOPE__BODY_PROGRESS, p->out[CHANNEL_CONTROL].n); /* no Nack */
    pipe_commit(p, 1, 18, 3);
    pipe_settle(p);
    expect_nack(p, NACK_GAP, 16);
    expect_nack(p, NACK_GAP, 16);
    pipe_free(&p);
}

static void a_cut_between_units_drops_void_rows_and_keeps_those_below(void **state)
{
    (void)state;
    struct pipe *p = opened_rows(1, 100, 64, 4);
    pipe_step(p, 0, &(struct test_step){1, .first = 0, .n = 16, .tokens = tokens_of_test, .next_token = -1, .want = WANT | WANT_EVERY_ROW});
    pipe_deliver(p, 0, CHANNEL_ROWS);
    pipe_unit(p, 0);
    pipe_unit(p, 0);
    pipe_cut(p, 1, 1, 6);
    pipe_settle(p);
    for (int q = 0; q < 6; q++)
        expect_result(p, tokens_of_test, q, 0);
    assert_int_equal(count_out(p, CHANNEL_ROWS), 0);
    assert_int_equal(stage_counters(p->stages[0])->rows_cut, 10);
    /* An old row is void, a new one with another id goes on from there. */
    int other[TEXT_MAX];
    memcpy(other, tokens_of_test, sizeof other);
    other[6] = (other[6] + 1) % (PIPE_VOCAB - 3);
    pipe_step(p, 0, &(struct test_step){1, .first = 6, .n = 1, .tokens = tokens_of_test, .next_token = -1, .want = WANT});
    pipe_settle(p);
    assert_int_equal(stage_counters(p->stages[0])->steps_void, 1);
    pipe_step(p, 0,
              &(struct test_step){1, .generation = 1, .has_cut = 1, .cut_from = 6, .first = 6, .n = 3, .tokens = other, .next_token = -1,
                                  .want = WANT});
    pipe_settle(p);
    expect_result(p, other, 8, 0);
    pipe_free(&p);
}

static void a_late_cut_is_harmless(void **state)
{
    (void)state;
    struct pipe *p = opened(1, 100);
    pipe_step(p, 0, &(struct test_step){1, .first = 0, .n = 10, .tokens = tokens_of_test, .next_token = -1});
    pipe_settle(p);
    int other[TEXT_MAX];
    memcpy(other, tokens_of_test, sizeof other);
    other[7] = (other[7] + 1) % (PIPE_VOCAB - 3);
    pipe_step(p, 0,
              &(struct test_step){1, .generation = 1, .has_cut = 1, .cut_from = 7, .first = 7, .n = 3, .tokens = other, .next_token = -1,
                                  .want = WANT});
    pipe_deliver(p, 0, CHANNEL_ROWS);
    pipe_unit(p, 0);
    pipe_cut(p, 1, 1, 7);
    pipe_settle(p);
    expect_result(p, other, 9, 0);
    pipe_step(p, 0,
              &(struct test_step){1, .generation = 1, .has_cut = 1, .cut_from = 7, .first = 10, .n = 2, .tokens = other, .next_token = -1,
                                  .want = WANT});
    pipe_settle(p);
    expect_result(p, other, 11, 0);
    pipe_free(&p);
}

static void a_late_cut_of_an_old_generation_spares_newer_rows(void **state)
{
    (void)state;
    struct pipe *p = opened(1, 100);
    pipe_step(p, 0, &(struct test_step){1, .first = 0, .n = 7, .tokens = tokens_of_test, .next_token = -1});
    pipe_step(p, 0, &(struct test_step){1, .generation = 2, .first = 7, .n = 3, .tokens = tokens_of_test, .next_token = -1, .want = WANT});
    pipe_settle(p);
    expect_result(p, tokens_of_test, 9, 0);
    pipe_cut(p, 1, 1, 7);
    pipe_step(p, 0, &(struct test_step){1, .generation = 2, .first = 10, .n = 1, .tokens = tokens_of_test, .next_token = -1, .want = WANT});
    pipe_settle(p);
    expect_result(p, tokens_of_test, 10, 0);
    pipe_free(&p);
}

static void ids_above_a_cut_are_forgotten_everywhere(void **state)
{
    (void)state;
    int other[TEXT_MAX];
    make_tokens();
    memcpy(other, tokens_of_test, sizeof other);
    for (int q = 5; q < TEXT_MAX; q++)
        other[q] = (other[q] + 1) % (PIPE_VOCAB - 3);
    /* The row below the cut is still on its way and must not carry the old id behind it. */
    struct pipe *p = opened(2, 100);
    struct row_engine *tail = &p->engines[1]->base;
    pipe_step(p, 0, &(struct test_step){1, .first = 0, .n = 10, .tokens = tokens_of_test, .next_token = tokens_of_test[10]});
    pipe_deliver(p, 0, CHANNEL_ROWS);
    pipe_cut(p, 1, 1, 5);
    pipe_settle(p);
    assert_int_equal(tail->mtp_length(tail, 0), 4);
    pipe_step(p, 0,
              &(struct test_step){1, .generation = 1, .has_cut = 1, .cut_from = 5, .first = 5, .n = 4, .tokens = other, .next_token = -1,
                                  .want = WANT_DRAFT_LOGITS});
    pipe_settle(p);
    assert_int_equal(tail->mtp_length(tail, 0), 8);
    /* Ids that were true are not any more: rows of other ids order nothing until they are committed. */
    pipe_cut(p, 1, 2, 5);
    pipe_step(p, 0,
              &(struct test_step){1, .generation = 2, .first = 5, .n = 4, .tokens = tokens_of_test, .next_token = -1, .kind = ROW_DRAFT,
                                  .depth = 1});
    pipe_settle(p);
    assert_int_equal(tail->mtp_length(tail, 0), 4);
    pipe_commit(p, 1, 5, tokens_of_test[5]);
    pipe_settle(p);
    assert_int_equal(tail->mtp_length(tail, 0), 5);
    pipe_free(&p);
}

static void a_cut_through_a_step_on_its_way_keeps_the_rows_below(void **state)
{
    (void)state;
    struct pipe *p = opened(2, 100);
    pipe_step(p, 0, &(struct test_step){1, .first = 0, .n = 10, .tokens = tokens_of_test, .next_token = -1, .want = WANT});
    pipe_deliver(p, 0, CHANNEL_ROWS);
    while (stage_has_work(p->stages[0]))
        pipe_unit(p, 0);
    pipe_cut(p, 1, 2, 4);
    pipe_settle(p); /* control first: the step meets the cut at stage 1 */
    pipe_step(p, 0,
              &(struct test_step){1, .generation = 2, .has_cut = 1, .cut_from = 4, .first = 4, .n = 3, .tokens = tokens_of_test,
                                  .next_token = -1, .want = WANT});
    pipe_settle(p);
    expect_result(p, tokens_of_test, 6, 0);
    assert_int_equal(count_out(p, CHANNEL_ROWS), 0);
    pipe_free(&p);
}

static void generations_decide_which_rows_are_valid(void **state)
{
    (void)state;
    struct pipe *p = opened(1, 100);
    pipe_step(p, 0, &(struct test_step){1, .first = 0, .n = 10, .tokens = tokens_of_test, .next_token = -1});
    pipe_cut(p, 1, 3, 8);
    pipe_cut(p, 1, 5, 9);
    pipe_settle(p);
    expect_n(p, CHANNEL_CONTROL, HEARTH__ENVELOPE__BODY_PROGRESS, p->out[CHANNEL_CONTROL].n);
    /* Control came first: rows 8 and 9 of generation 0 never were. 8 may come from 3 or 5, 9 only from 5. */
    pipe_step(p, 0, &(struct test_step){1, .generation = 2, .first = 8, .n = 1, .tokens = tokens_of_test, .next_token = -1, .want = WANT});
    pipe_settle(p);
    assert_int_equal(count_out(p, CHANNEL_ROWS), 0);
    pipe_step(p, 0,
              &(struct test_step){1, .generation = 3, .first = 8, .n = 2, .tokens = tokens_of_test, .next_token = -1,
                                  .want = WANT | WANT_EVERY_ROW});
    pipe_settle(p);
    expect_result(p, tokens_of_test, 8, 0);
    assert_int_equal(count_out(p, CHANNEL_ROWS), 0);
    pipe_step(p, 0, &(struct test_step){1, .generation = 4, .first = 9, .n = 1, .tokens = tokens_of_test, .next_token = -1, .want = WANT});
    pipe_step(p, 0, &(struct test_step){1, .generation = 5, .first = 9, .n = 1, .tokens = tokens_of_test, .next_token = -1, .want = WANT});
    pipe_settle(p);
    expect_result(p, tokens_of_test, 9, 0);
    assert_int_equal(stage_counters(p->stages[0])->steps_void, 2);
    pipe_free(&p);
}

static void steps_that_do_not_fit_are_answered(void **state)
{
    (void)state;
    struct pipe *p = opened_rows(1, 100, 32, 16);
    struct test_step step = {1, .first = 0, .n = 10, .tokens = tokens_of_test, .next_token = -1};
    pipe_step(p, 0, &step);
    pipe_step(p, 0, &step);
    pipe_deliver(p, 0, CHANNEL_ROWS);
    pipe_deliver(p, 0, CHANNEL_ROWS);
    assert_int_equal(stage_counters(p->stages[0])->steps_duplicate, 1);
    assert_int_equal(count_out(p, CHANNEL_CONTROL), 0);
    step.first = 12;
    pipe_step(p, 0, &step);
    pipe_deliver(p, 0, CHANNEL_ROWS);
    expect_nack(p, NACK_GAP, 10);
    step.first = 10;
    step.wrong_prefix = 1;
    pipe_step(p, 0, &step);
    pipe_deliver(p, 0, CHANNEL_ROWS);
    expect_nack(p, NACK_PREFIX, 10);
    step.wrong_prefix = 0;
    step.n = 23;
    pipe_step(p, 0, &step);
    pipe_deliver(p, 0, CHANNEL_ROWS);
    expect_nack(p, NACK_FULL, 10);
    step.sequence = 9;
    pipe_step(p, 0, &step);
    pipe_deliver(p, 0, CHANNEL_ROWS);
    expect_nack(p, NACK_SEQUENCE, 0);
    step = (struct test_step){1, .first = 10, .n = 5, .tokens = tokens_of_test, .next_token = -1, .wrong_epoch = 1};
    pipe_step(p, 0, &step);
    pipe_deliver(p, 0, CHANNEL_ROWS);
    assert_int_equal(count_out(p, CHANNEL_CONTROL), 0);
    assert_int_equal(stage_counters(p->stages[0])->steps_stale, 1);
    step.wrong_epoch = 0;
    step.first = 90;
    step.n = 20;
    pipe_step(p, 0, &step);
    pipe_deliver(p, 0, CHANNEL_ROWS);
    expect_refuse(p, HEARTH__SCOPE__SCOPE_MESSAGE, REFUSE_MALFORMED, "100 positions were promised");
    assert_int_equal(stage_counters(p->stages[0])->nacks, 4);
    pipe_free(&p);
}

static void committed_rows_go_before_prefill_and_prefill_before_drafts(void **state)
{
    (void)state;
    struct pipe *p = opened(1, 200);
    pipe_open(p, 2, 100);
    pipe_open(p, 3, 100);
    pipe_settle(p);
    for (uint64_t s = 2; s <= 3; s++)
        pipe_step(p, 0, &(struct test_step){s, .first = 0, .n = 5, .tokens = tokens_of_test, .next_token = tokens_of_test[5]});
    pipe_settle(p);
    expect_n(p, CHANNEL_CONTROL, HEARTH__ENVELOPE__BODY_OPENED, 2);
    expect_n(p, CHANNEL_CONTROL, HEARTH__ENVELOPE__BODY_PROGRESS, p->out[CHANNEL_CONTROL].n);
    pipe_step(p, 0,
              &(struct test_step){3, .first = 5, .n = 1, .tokens = tokens_of_test, .next_token = -1, .kind = ROW_DRAFT, .depth = 1,
                                  .want = WANT});
    pipe_step(p, 0, &(struct test_step){1, .first = 0, .n = 8, .tokens = tokens_of_test, .next_token = -1, .want = WANT});
    pipe_deliver(p, 0, CHANNEL_ROWS);
    pipe_deliver(p, 0, CHANNEL_ROWS);
    pipe_unit(p, 0); /* of the prefill: it came later than the draft, and goes first */
    pipe_step(p, 0,
              &(struct test_step){2, .first = 5, .n = 1, .tokens = tokens_of_test, .next_token = -1, .kind = ROW_DECODE, .want = WANT});
    pipe_settle(p);
    struct outgoing message;
    const uint64_t order[] = {2, 1, 3};
    for (int i = 0; i < 3; i++) {
        Hearth__Envelope *envelope = expect_body(p, CHANNEL_ROWS, HEARTH__ENVELOPE__BODY_RESULT, &message);
        assert_int_equal(envelope->result->sequence, order[i]);
        done(&envelope, &message);
    }
    pipe_free(&p);
}

static void a_commit_makes_a_draft_row_committed(void **state)
{
    (void)state;
    struct pipe *p = opened(1, 200);
    pipe_open(p, 2, 100);
    pipe_settle(p);
    pipe_step(p, 0, &(struct test_step){1, .first = 0, .n = 5, .tokens = tokens_of_test, .next_token = -1});
    pipe_settle(p);
    pipe_step(p, 0,
              &(struct test_step){1, .first = 5, .n = 1, .tokens = tokens_of_test, .next_token = -1, .kind = ROW_DRAFT, .depth = 1,
                                  .want = WANT});
    pipe_step(p, 0, &(struct test_step){2, .first = 0, .n = 5, .tokens = tokens_of_test, .next_token = -1, .want = WANT});
    pipe_deliver(p, 0, CHANNEL_ROWS);
    pipe_deliver(p, 0, CHANNEL_ROWS);
    pipe_commit(p, 1, 5, tokens_of_test[5]);
    pipe_settle(p);
    expect_result(p, tokens_of_test, 5, 0);
    expect_result(p, tokens_of_test, 4, 0);
    pipe_free(&p);
}

static void a_row_that_is_not_finite_fails_its_sequence_alone(void **state)
{
    (void)state;
    struct pipe *p = opened(2, 100);
    pipe_open(p, 2, 100);
    pipe_settle(p);
    expect_n(p, CHANNEL_CONTROL, HEARTH__ENVELOPE__BODY_OPENED, 2);
    p->engines[0]->options.bad_token = PIPE_VOCAB - 4;
    p->engines[0]->options.bad_layer = 1;
    int bad[8];
    memcpy(bad, tokens_of_test, sizeof bad);
    bad[3] = PIPE_VOCAB - 4;
    pipe_step(p, 0, &(struct test_step){1, .first = 0, .n = 6, .tokens = bad, .next_token = -1, .want = WANT});
    pipe_step(p, 0, &(struct test_step){2, .first = 0, .n = 6, .tokens = tokens_of_test, .next_token = -1, .want = WANT});
    pipe_settle(p);
    expect_refuse(p, HEARTH__SCOPE__SCOPE_SEQUENCE, REFUSE_INTERNAL, "layer 1, position 3");
    expect_result(p, tokens_of_test, 5, 0);
    /* Until it is dropped, nothing has an effect on it. */
    expect_n(p, CHANNEL_CONTROL, HEARTH__ENVELOPE__BODY_PROGRESS, p->out[CHANNEL_CONTROL].n);
    pipe_step(p, 0, &(struct test_step){1, .first = 6, .n = 1, .tokens = bad, .next_token = -1, .want = WANT});
    pipe_deliver(p, 0, CHANNEL_ROWS);
    pipe_settle(p);
    assert_int_equal(count_out(p, CHANNEL_CONTROL) + count_out(p, CHANNEL_ROWS), 0);
    /* One that arrives from elsewhere is stopped at the door. */
    float rows[HASH_ROW_WIDTH] = {1, 2, __builtin_inff(), 4};
    pipe_drop(p, 2);
    pipe_open(p, 2, 100);
    pipe_settle(p);
    expect_n(p, CHANNEL_CONTROL, HEARTH__ENVELOPE__BODY_OPENED, 2);
    pipe_step(p, 1, &(struct test_step){2, .first = 0, .n = 1, .tokens = tokens_of_test, .next_token = -1, .rows = rows});
    pipe_settle(p);
    expect_refuse(p, HEARTH__SCOPE__SCOPE_SEQUENCE, REFUSE_INTERNAL, "layer 3, position 0");
    pipe_free(&p);
}

static void a_passed_deadline_ends_the_sequence_here(void **state)
{
    (void)state;
    struct pipe *p = opened(1, 100);
    pipe_step(p, 0,
              &(struct test_step){1, .first = 0, .n = 6, .tokens = tokens_of_test, .next_token = -1, .want = WANT, .remaining_ms = 5});
    pipe_deliver(p, 0, CHANNEL_ROWS);
    pipe_unit(p, 0);
    p->clock.now_ns += 5000000;
    pipe_settle(p);
    expect_refuse(p, HEARTH__SCOPE__SCOPE_SEQUENCE, REFUSE_INTERNAL, "deadline");
    assert_int_equal(count_out(p, CHANNEL_ROWS), 0);
    pipe_free(&p);
}

static void open_reserves_or_refuses_and_drop_frees_everything(void **state)
{
    (void)state;
    make_tokens();
    struct pipe *p = pipe_new(2, 3, 256, 64, 16, 1);
    assert_int_equal(stage_free_positions(p->stages[0]), 256);
    for (int round = 0; round < 20; round++) {
        pipe_open(p, 1, 100);
        pipe_open(p, 1, 100); /* asked twice, answered twice, reserved once */
        pipe_open(p, 2, 64);
        pipe_open(p, 3, 65);
        pipe_settle(p);
        assert_int_equal(stage_free_positions(p->stages[1]), 64);
        expect_n(p, CHANNEL_CONTROL, HEARTH__ENVELOPE__BODY_OPENED, 3);
        expect_refuse(p, HEARTH__SCOPE__SCOPE_SEQUENCE, REFUSE_MEMORY, "65 positions asked for, 64 are free");
        expect_n(p, CHANNEL_CONTROL, HEARTH__ENVELOPE__BODY_OPENED, 3);
        expect_refuse(p, HEARTH__SCOPE__SCOPE_SEQUENCE, REFUSE_MEMORY, "65 positions asked for, 64 are free");
        pipe_step(p, 0, &(struct test_step){1, .first = 0, .n = 40, .tokens = tokens_of_test, .next_token = -1, .want = WANT});
        pipe_deliver(p, 0, CHANNEL_ROWS);
        for (int i = 0; i < round; i++)
            if (stage_has_work(p->stages[0]))
                pipe_unit(p, 0);
        pipe_drop(p, 1);
        pipe_drop(p, 2);
        pipe_drop(p, 3);
        pipe_settle(p);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(stage_free_positions(p->stages[i]), 256);
            assert_int_equal(p->engines[i]->free_positions, 256);
            assert_false(stage_has_work(p->stages[i]));
        }
        queue_clear(&p->out[0]);
        queue_clear(&p->out[1]);
    }
    assert_int_equal(pipe_violations(p), 0);
    pipe_free(&p);
}

/* ---- schedules by seed ---- */

enum { SEQUENCES = 3, LENGTH = 48 };

static uint32_t draw(uint32_t *seed, uint32_t n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(*seed >> 8) * n >> 24);
}

/* What the coordinator of the test knows of a sequence. */
struct dialogue {
    uint64_t id;
    int expected[LENGTH + 2]; /* prompt, then what one process answers */
    int n_prompt;
    int fed[LENGTH + 2]; /* ids of the rows that were sent: prompt, committed, drafts */
    int n_fed, n_committed;
    uint32_t generation_of[LENGTH + 2];
    uint32_t generation;
    int cut_from;
    int is_done;
};

static void begin_dialogue(struct dialogue *d, uint64_t id, uint32_t *seed)
{
    *d = (struct dialogue){.id = id, .n_prompt = 1 + (int)draw(seed, LENGTH / 2), .cut_from = -1};
    struct hash_reference r;
    float logits[PIPE_VOCAB];
    hash_reference_init(&r, PIPE_LAYERS, PIPE_VOCAB);
    for (int q = 0; q <= LENGTH; q++) {
        if (q < d->n_prompt)
            d->expected[q] = (int)draw(seed, PIPE_VOCAB - 3);
        hash_reference_push(&r, d->expected[q], logits, NULL);
        d->expected[q + 1] = largest_logit(logits, PIPE_VOCAB - 3);
    }
    hash_reference_release(&r);
    d->n_committed = d->n_prompt;
}

static void feed(struct pipe *p, struct dialogue *d, int n, enum row_kind kind, uint32_t depth, uint32_t *seed)
{
    int first = d->n_fed, end = first + n;
    for (int q = first; q < end; q++)
        d->generation_of[q] = d->generation;
    uint32_t want = end >= d->n_prompt ? WANT : 0;
    want |= draw(seed, 3) ? 0 : WANT_DRAFT_LOGITS;
    int next = kind == ROW_PREFILL && end < d->n_prompt && draw(seed, 2) ? d->fed[end] : -1;
    struct test_step step = {d->id, d->generation, d->cut_from >= 0, d->cut_from, first, n, d->fed, next, kind,
                             depth, want,          .remaining_ms = 0};
    pipe_step(p, 0, &step);
    if (!draw(seed, 8))
        pipe_step(p, 0, &step);
    if (!draw(seed, 8)) {
        step.wrong_epoch = 1;
        step.first++;
        pipe_step(p, 0, &step);
    }
    d->n_fed = end;
}

static void feed_prompt(struct pipe *p, struct dialogue *d, uint32_t *seed)
{
    memcpy(d->fed, d->expected, (size_t)d->n_prompt * sizeof(int));
    while (d->n_fed < d->n_prompt) {
        int n = 1 + (int)draw(seed, 12), left = d->n_prompt - d->n_fed;
        feed(p, d, n < left ? n : left, ROW_PREFILL, 0, seed);
    }
}

static void revise(struct pipe *p, struct dialogue *d, int from)
{
    d->generation++;
    d->cut_from = from;
    d->n_fed = from;
    pipe_cut(p, d->id, d->generation, from);
}

/* Guesses, right ones more often than not. */
static void feed_drafts(struct pipe *p, struct dialogue *d, uint32_t *seed)
{
    while (d->n_fed < LENGTH && d->n_fed - d->n_committed < 4 && draw(seed, 3)) {
        int q = d->n_fed;
        d->fed[q] = draw(seed, 4) ? d->expected[q] : (int)draw(seed, PIPE_VOCAB - 3);
        feed(p, d, 1, ROW_DRAFT, (uint32_t)(q - d->n_committed + 1), seed);
    }
    if (d->n_fed > d->n_committed + 1 && !draw(seed, 6)) /* a fresher draft contradicts */
        revise(p, d, d->n_committed + 1 + (int)draw(seed, (uint32_t)(d->n_fed - d->n_committed - 1)));
}

static void commit_next(struct pipe *p, struct dialogue *d, int token, uint32_t *seed)
{
    int q = d->n_committed;
    assert_int_equal(token, d->expected[q]);
    if (q >= LENGTH) {
        d->is_done = 1;
        pipe_drop(p, d->id);
        return;
    }
    if (d->n_fed > q && d->fed[q] != token)
        revise(p, d, q);
    d->n_committed = q + 1;
    if (d->n_fed == q) {
        d->fed[q] = token;
        if (draw(seed, 2)) { /* Step and Commit travel on different sockets: either may be first */
            feed(p, d, 1, ROW_DECODE, 0, seed);
            pipe_commit(p, d->id, q, token);
        } else {
            pipe_commit(p, d->id, q, token);
            feed(p, d, 1, ROW_DECODE, 0, seed);
        }
    } else
        pipe_commit(p, d->id, q, token);
    feed_drafts(p, d, seed);
}

static void on_result(struct pipe *p, struct dialogue *dialogues, const Hearth__Result *r, const float *rows, uint32_t *seed)
{
    struct dialogue *d = NULL;
    for (int i = 0; i < SEQUENCES; i++)
        if (dialogues[i].id == r->sequence)
            d = &dialogues[i];
    int q = (int)r->position;
    float want[PIPE_VOCAB];
    if (!d || d->is_done)
        return;
    if (r->is_draft_row) {
        assert_true(q + 1 < d->n_committed + 1);
        reference_logits(d->expected, q, 1, want);
        assert_memory_equal(rows, want, sizeof want);
    } else if (q == d->n_committed - 1 && q < d->n_fed && d->generation_of[q] == r->generation) {
        reference_logits(d->expected, q, 0, want);
        assert_memory_equal(rows, want, sizeof want);
        commit_next(p, d, (int)r->ids[0], seed);
    }
}

static void take_result(struct pipe *p, struct dialogue *dialogues, uint32_t *seed)
{
    struct outgoing message;
    Hearth__Envelope *envelope = pop_decoded(&p->out[CHANNEL_ROWS], &message);
    assert_int_equal(envelope->body_case, HEARTH__ENVELOPE__BODY_RESULT);
    on_result(p, dialogues, envelope->result, message_rows(&message), seed);
    done(&envelope, &message);
}

static void take_control(struct pipe *p)
{
    struct outgoing message;
    Hearth__Envelope *envelope = pop_decoded(&p->out[CHANNEL_CONTROL], &message);
    if (envelope->body_case == HEARTH__ENVELOPE__BODY_REFUSE)
        fail_msg("refused: %s", envelope->refuse->sentence);
    if (envelope->body_case == HEARTH__ENVELOPE__BODY_NACK && envelope->nack->reason != NACK_SEQUENCE)
        fail_msg("nack %u by stage %u at %u", envelope->nack->reason, envelope->nack->stage, envelope->nack->length);
    done(&envelope, &message);
}

/* One thing that may happen now, at random. */
static void happen(struct pipe *p, struct dialogue *dialogues, uint32_t *seed)
{
    int what = (int)draw(seed, 8), stage = (int)draw(seed, (uint32_t)p->n_stages);
    if (what < 2 && p->in[stage][CHANNEL_CONTROL].n)
        pipe_deliver(p, stage, CHANNEL_CONTROL);
    else if (what < 4 && p->in[stage][CHANNEL_ROWS].n)
        pipe_deliver(p, stage, CHANNEL_ROWS);
    else if (what < 6 && stage_has_work(p->stages[stage]))
        pipe_unit(p, stage);
    else if (what == 6 && p->out[CHANNEL_ROWS].n)
        take_result(p, dialogues, seed);
    else if (what == 7 && p->out[CHANNEL_CONTROL].n)
        take_control(p);
}

static void one_schedule(uint32_t first_seed)
{
    uint32_t seed = first_seed;
    struct pipe *p = pipe_new(1 + (int)draw(&seed, 3), SEQUENCES, SEQUENCES * 64, 128, 1 + (int)draw(&seed, 12), 1);
    struct dialogue dialogues[SEQUENCES];
    for (int i = 0; i < SEQUENCES; i++) {
        begin_dialogue(&dialogues[i], (uint64_t)i + 1, &seed);
        pipe_open(p, (uint64_t)i + 1, LENGTH + 1);
    }
    for (int i = 0; i < p->n_stages; i++) /* rule 1: Open reaches every stage before the first Step */
        while (p->in[i][CHANNEL_CONTROL].n)
            pipe_deliver(p, i, CHANNEL_CONTROL);
    for (int i = 0; i < SEQUENCES; i++)
        feed_prompt(p, &dialogues[i], &seed);
    int steps = 0, is_done = 0;
    for (; !is_done && steps < 2000000; steps++) {
        happen(p, dialogues, &seed);
        is_done = 1;
        for (int i = 0; i < SEQUENCES; i++)
            is_done = is_done && dialogues[i].is_done;
    }
    if (!is_done || pipe_violations(p))
        fail_msg("the answers did not end (replay: node_stage %u)", first_seed);
    pipe_settle(p);
    for (int i = 0; i < p->n_stages; i++)
        assert_int_equal(stage_free_positions(p->stages[i]), SEQUENCES * 64);
    pipe_free(&p);
}

/* ---- hostile peers ---- */

static uint32_t odd_number(uint32_t *seed)
{
    static const uint32_t odd[] = {0, 1, 63, 64, 65, 511, POSITIONS_MAX - 1, UINT32_MAX - 1, UINT32_MAX};
    return draw(seed, 12) ? draw(seed, 70) : odd[draw(seed, sizeof odd / sizeof *odd)];
}

static void hand_over(struct pipe *p, int stage, const Hearth__Envelope *envelope, const float *rows)
{
    stage_handle(p->stages[stage], envelope, rows, clock_now_ns(&p->clock.base), &p->box);
    pipe_move(p, stage);
}

static void hostile_step(struct pipe *p, int stage, uint64_t sequence, uint32_t *seed)
{
    Hearth__Epoch epoch;
    Hearth__Envelope envelope = pipe_envelope(&epoch);
    Hearth__Step body = HEARTH__STEP__INIT;
    struct stage_sequence *s = sequence_table_find(&p->stages[stage]->table, sequence);
    int fits = s && draw(seed, 4); /* mostly one that gets through the first doors */
    uint32_t ids[STEP_ROWS_MAX];
    float rows[8 * HASH_ROW_WIDTH];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        rows[i] = (float)draw(seed, 65536);
    if (!draw(seed, 40))
        rows[draw(seed, HASH_ROW_WIDTH)] = __builtin_nanf("");
    body.sequence = sequence;
    body.generation = fits && draw(seed, 3) ? s->generation : odd_number(seed);
    body.cut_from = draw(seed, 2) ? NO_CUT : odd_number(seed);
    body.first_position = fits ? (uint32_t)s->length : odd_number(seed);
    body.n_rows = 1 + draw(seed, 8);
    body.n_token_ids = draw(seed, 20) ? body.n_rows : draw(seed, 9);
    for (size_t i = 0; i < 8; i++)
        ids[i] = draw(seed, 30) ? draw(seed, PIPE_VOCAB) : odd_number(seed);
    body.token_ids = ids;
    body.kind = (Hearth__StepKind)draw(seed, 3);
    body.depth = odd_number(seed);
    body.next_token = (int32_t)draw(seed, PIPE_VOCAB + 2) - 1;
    body.want = draw(seed, WANT_ALL + 1);
    body.prefix_hash = fits ? s->at[s->length].hash : draw(seed, 5);
    body.remaining_ms = draw(seed, 30) ? 1000 : 0;
    envelope.body_case = HEARTH__ENVELOPE__BODY_STEP;
    envelope.step = &body;
    hand_over(p, stage, &envelope, draw(seed, 20) ? (stage ? rows : NULL) : (stage ? NULL : rows));
}

static void hostile_order(struct pipe *p, int stage, uint64_t sequence, uint32_t *seed)
{
    Hearth__Epoch epoch;
    Hearth__Envelope envelope = pipe_envelope(&epoch);
    Hearth__Cut cut = HEARTH__CUT__INIT;
    Hearth__Commit commit = HEARTH__COMMIT__INIT;
    Hearth__Drop drop = HEARTH__DROP__INIT;
    Hearth__Open open = HEARTH__OPEN__INIT;
    struct stage_sequence *s = sequence_table_find(&p->stages[stage]->table, sequence);
    switch (draw(seed, s ? 12 : 1)) {
    case 0:
        open.sequence = sequence;
        open.positions = odd_number(seed);
        open.temperature = draw(seed, 10) ? 1 : __builtin_inff();
        open.row_width = draw(seed, 10) ? HASH_ROW_WIDTH : odd_number(seed);
        open.n_tokens = draw(seed, 10) ? PIPE_VOCAB - 3 : odd_number(seed);
        envelope.body_case = HEARTH__ENVELOPE__BODY_OPEN;
        envelope.open = &open;
        break;
    case 1:
        drop.sequence = sequence;
        envelope.body_case = HEARTH__ENVELOPE__BODY_DROP;
        envelope.drop = &drop;
        break;
    case 2:
    case 3:
        cut.sequence = sequence;
        cut.generation = draw(seed, 2) ? s->generation + 1 : odd_number(seed);
        cut.from = draw(seed, 2) ? draw(seed, (uint32_t)s->length + 2) : odd_number(seed);
        envelope.body_case = HEARTH__ENVELOPE__BODY_CUT;
        envelope.cut = &cut;
        break;
    default:
        commit.sequence = sequence;
        commit.position = draw(seed, 4) ? (uint32_t)s->known : odd_number(seed);
        commit.token = s->known < s->length && draw(seed, 8) ? (uint32_t)s->at[s->known].token : odd_number(seed);
        envelope.body_case = HEARTH__ENVELOPE__BODY_COMMIT;
        envelope.commit = &commit;
    }
    hand_over(p, stage, &envelope, NULL);
}

/* The tail keeps h of rows at and above mtp_length in a ring of max_rows_in_flight + 1: it must never need more. */
static void assert_ring_holds(struct pipe *p, int max_rows)
{
    struct stage *tail = p->stages[p->n_stages - 1];
    for (int i = 0; i < tail->table.max; i++)
        if (tail->table.sequences[i].is_open)
            assert_true(tail->table.sequences[i].finished - tail->engine->mtp_length(tail->engine, i) <= max_rows + 1);
}

/* Goal: whatever a peer sends, no CHECK is reached, the engine's promises are kept and nothing is lost of the stage's memory. */
static void hostile_messages_reach_no_check(void **state)
{
    (void)state;
    for (uint32_t first_seed = 1; first_seed <= 60; first_seed++) {
        uint32_t seed = first_seed * 104729;
        struct pipe *p = pipe_new(3, 3, 160, 24, 1 + (int)draw(&seed, 9), 1);
        for (int i = 0; i < 4000; i++) {
            int stage = (int)draw(&seed, 3);
            uint64_t sequence = 1 + draw(&seed, 4);
            if (draw(&seed, 2))
                hostile_step(p, stage, sequence, &seed);
            else
                hostile_order(p, stage, sequence, &seed);
            if (draw(&seed, 2) && stage_has_work(p->stages[stage]))
                pipe_unit(p, stage);
            assert_ring_holds(p, 24);
            for (int c = 0; c < N_CHANNELS; c++) { /* what stages say to each other is lost on the way */
                queue_clear(&p->out[c]);
                queue_clear(&p->in[1][c]);
                queue_clear(&p->in[2][c]);
            }
        }
        for (int i = 0; i < 3; i++) /* some of it is work */
            assert_true(p->engines[i]->n_rows_run > 100);
        if (pipe_violations(p))
            fail_msg("broken promises with seed %u", first_seed);
        pipe_free(&p); /* CHECKs that every row came back */
    }
}

static uint32_t schedule_seed;

static void seeded_schedules_give_the_tokens_of_one_process(void **state)
{
    (void)state;
    if (schedule_seed) {
        one_schedule(schedule_seed);
        return;
    }
    for (uint32_t i = 1; i <= 400; i++)
        one_schedule(i * 7919);
}

int main(int argc, char **argv)
{
    schedule_seed = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_pass_in_order_and_give_the_numbers_of_one_process),
        cmocka_unit_test(mtp_rows_come_from_prompt_ids_and_commits_each_once),
        cmocka_unit_test(a_cut_between_units_drops_void_rows_and_keeps_those_below),
        cmocka_unit_test(a_late_cut_is_harmless),
        cmocka_unit_test(a_late_cut_of_an_old_generation_spares_newer_rows),
        cmocka_unit_test(ids_above_a_cut_are_forgotten_everywhere),
        cmocka_unit_test(a_cut_through_a_step_on_its_way_keeps_the_rows_below),
        cmocka_unit_test(generations_decide_which_rows_are_valid),
        cmocka_unit_test(steps_that_do_not_fit_are_answered),
        cmocka_unit_test(committed_rows_go_before_prefill_and_prefill_before_drafts),
        cmocka_unit_test(a_commit_makes_a_draft_row_committed),
        cmocka_unit_test(a_row_that_is_not_finite_fails_its_sequence_alone),
        cmocka_unit_test(a_passed_deadline_ends_the_sequence_here),
        cmocka_unit_test(open_reserves_or_refuses_and_drop_frees_everything),
        cmocka_unit_test(hostile_messages_reach_no_check),
        cmocka_unit_test(seeded_schedules_give_the_tokens_of_one_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
