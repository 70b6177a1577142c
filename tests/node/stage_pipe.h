/* Stages with hash engines in a row, and the messages between them as bytes in queues: what the stage tests drive by hand or by seed. */
#ifndef HEARTH_TESTS_STAGE_PIPE_H
#define HEARTH_TESTS_STAGE_PIPE_H

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/memory.h"
#include "node/stage.h"
#include "tests/sim/hash_engine.h"

enum { PIPE_STAGES_MAX = 3, PIPE_LAYERS = 6, PIPE_VOCAB = 53, PIPE_QUEUE_MAX = 4096, PIPE_EPOCH = 7 };

struct manual_clock {
    struct clock base;
    uint64_t now_ns, step_ns; /* every reading takes a step */
};

static uint64_t manual_now(struct clock *clock)
{
    struct manual_clock *c = (struct manual_clock *)clock;
    return c->now_ns += c->step_ns;
}

struct message_queue {
    struct outgoing messages[PIPE_QUEUE_MAX];
    int first, n;
};

struct pipe {
    int n_stages;
    struct hash_engine *engines[PIPE_STAGES_MAX];
    struct stage *stages[PIPE_STAGES_MAX];
    struct message_queue in[PIPE_STAGES_MAX][N_CHANNELS]; /* to the stages */
    struct message_queue out[N_CHANNELS];                 /* to the coordinator */
    struct outbox box;
    struct manual_clock clock;
};

static inline void queue_push(struct message_queue *q, const struct outgoing *message)
{
    CHECK(q->n < PIPE_QUEUE_MAX);
    q->messages[(q->first + q->n++) % PIPE_QUEUE_MAX] = *message;
}

static inline struct outgoing queue_pop(struct message_queue *q)
{
    CHECK(q->n > 0);
    struct outgoing message = q->messages[q->first];
    q->first = (q->first + 1) % PIPE_QUEUE_MAX;
    q->n--;
    return message;
}

static inline void queue_clear(struct message_queue *q)
{
    while (q->n) {
        struct outgoing message = queue_pop(q);
        free(message.bytes);
    }
}

static inline const float *message_rows(const struct outgoing *m)
{
    return m->rows_bytes ? (const float *)(m->bytes + ((m->header_bytes + 7) & ~(size_t)7)) : NULL;
}

/* Decodes the oldest message of a queue; the caller frees *envelope and message->bytes. */
static inline Hearth__Envelope *pop_decoded(struct message_queue *q, struct outgoing *message)
{
    *message = queue_pop(q);
    Hearth__Envelope *envelope;
    struct error err;
    if (wire_decode(&envelope, message->bytes, message->header_bytes, message_rows(message), message->rows_bytes, HASH_ROW_WIDTH, &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return envelope;
}

static inline struct pipe *pipe_new(int n_stages, int max_sequences, int max_positions, int max_rows, int unit_rows, int has_mtp)
{
    struct pipe *p = xcalloc(1, sizeof *p);
    p->n_stages = n_stages;
    p->clock = (struct manual_clock){.base.now_ns = manual_now, .now_ns = 1000000, .step_ns = 1000};
    outbox_init(&p->box, STAGE_UNIT_MESSAGES_MAX);
    for (int i = 0; i < n_stages; i++) {
        p->engines[i] = hash_engine_new(&(struct hash_engine_options){.layer_begin = i * PIPE_LAYERS / n_stages,
                                                                      .layer_end = (i + 1) * PIPE_LAYERS / n_stages,
                                                                      .n_layers = PIPE_LAYERS,
                                                                      .has_mtp = has_mtp,
                                                                      .vocab_size = PIPE_VOCAB,
                                                                      .max_sequences = max_sequences,
                                                                      .max_positions = max_positions,
                                                                      .bad_token = -1,
                                                                      .bad_layer = -1});
        struct stage_config config = {.epoch_instance = PIPE_EPOCH,
                                      .epoch_counter = 1,
                                      .stage = i,
                                      .n_stages = n_stages,
                                      .max_positions = max_positions,
                                      .max_sequences = max_sequences,
                                      .max_rows_in_flight = max_rows,
                                      .unit_rows_max = unit_rows};
        struct error err;
        CHECK(stage_new(&p->stages[i], &config, &p->engines[i]->base, &err) == STATUS_OK);
    }
    return p;
}

static inline int pipe_violations(const struct pipe *p)
{
    int n = 0;
    for (int i = 0; i < p->n_stages; i++) {
        n += p->engines[i]->n_violations;
        if (p->engines[i]->n_violations)
            fprintf(stderr, "stage %d: %s\n", i, p->engines[i]->violation);
    }
    return n;
}

static inline void pipe_free(struct pipe **pipe)
{
    struct pipe *p = *pipe;
    for (int i = 0; i < p->n_stages; i++) {
        stage_free(&p->stages[i]);
        CHECK(p->engines[i]->n_violations == 0);
        hash_engine_free(&p->engines[i]);
        queue_clear(&p->in[i][0]);
        queue_clear(&p->in[i][1]);
    }
    queue_clear(&p->out[0]);
    queue_clear(&p->out[1]);
    outbox_release(&p->box);
    free(p);
    *pipe = NULL;
}

/* Moves what a stage wants to send into the queues. */
static inline void pipe_move(struct pipe *p, int stage)
{
    for (int i = 0; i < p->box.n; i++) {
        struct outgoing *m = &p->box.messages[i];
        if (m->peer == PEER_COORDINATOR || stage == p->n_stages - 1)
            queue_push(&p->out[m->channel], m);
        else
            queue_push(&p->in[stage + 1][m->channel], m);
    }
    p->box.n = 0;
}

/* Gives a stage its oldest message of a channel. */
static inline void pipe_deliver(struct pipe *p, int stage, enum channel channel)
{
    struct outgoing message;
    Hearth__Envelope *envelope = pop_decoded(&p->in[stage][channel], &message);
    stage_handle(p->stages[stage], envelope, message_rows(&message), clock_now_ns(&p->clock.base), &p->box);
    wire_free(&envelope);
    free(message.bytes);
    pipe_move(p, stage);
}

static inline void pipe_unit(struct pipe *p, int stage)
{
    stage_run_unit(p->stages[stage], &p->clock.base, &p->box);
    pipe_move(p, stage);
}

/* Everything moves until nothing does. */
static inline void pipe_settle(struct pipe *p)
{
    for (int moved = 1; moved;) {
        moved = 0;
        for (int i = 0; i < p->n_stages; i++) {
            for (int c = 0; c < N_CHANNELS; c++)
                for (; p->in[i][c].n; moved = 1)
                    pipe_deliver(p, i, (enum channel)c);
            for (; stage_has_work(p->stages[i]); moved = 1)
                pipe_unit(p, i);
        }
    }
}

/* ---- what the coordinator sends ---- */

static inline Hearth__Envelope pipe_envelope(Hearth__Epoch *epoch)
{
    hearth__epoch__init(epoch);
    epoch->instance = PIPE_EPOCH;
    epoch->counter = 1;
    Hearth__Envelope envelope = HEARTH__ENVELOPE__INIT;
    envelope.protocol = PROTOCOL_VERSION;
    envelope.epoch = epoch;
    return envelope;
}

static inline void pipe_send(struct pipe *p, int stage, enum channel channel, const Hearth__Envelope *envelope, const float *rows,
                             size_t rows_bytes)
{
    outbox_put(&p->box, PEER_NEXT, channel, envelope, rows, rows_bytes);
    queue_push(&p->in[stage][channel], &p->box.messages[0]);
    p->box.n = 0;
}

static inline void pipe_send_all(struct pipe *p, const Hearth__Envelope *envelope)
{
    for (int i = 0; i < p->n_stages; i++)
        pipe_send(p, i, CHANNEL_CONTROL, envelope, NULL, 0);
}

static inline void pipe_open(struct pipe *p, uint64_t sequence, int positions)
{
    Hearth__Epoch epoch;
    Hearth__Envelope envelope = pipe_envelope(&epoch);
    Hearth__Open body = HEARTH__OPEN__INIT;
    body.sequence = sequence;
    body.positions = (uint32_t)positions;
    body.temperature = 1;
    body.top_p = 1;
    body.row_width = HASH_ROW_WIDTH;
    body.n_tokens = PIPE_VOCAB - 3;
    envelope.body_case = HEARTH__ENVELOPE__BODY_OPEN;
    envelope.open = &body;
    pipe_send_all(p, &envelope);
}

static inline void pipe_drop(struct pipe *p, uint64_t sequence)
{
    Hearth__Epoch epoch;
    Hearth__Envelope envelope = pipe_envelope(&epoch);
    Hearth__Drop body = HEARTH__DROP__INIT;
    body.sequence = sequence;
    envelope.body_case = HEARTH__ENVELOPE__BODY_DROP;
    envelope.drop = &body;
    pipe_send_all(p, &envelope);
}

static inline void pipe_cut(struct pipe *p, uint64_t sequence, uint32_t generation, int from)
{
    Hearth__Epoch epoch;
    Hearth__Envelope envelope = pipe_envelope(&epoch);
    Hearth__Cut body = HEARTH__CUT__INIT;
    body.sequence = sequence;
    body.generation = generation;
    body.from = (uint32_t)from;
    envelope.body_case = HEARTH__ENVELOPE__BODY_CUT;
    envelope.cut = &body;
    pipe_send_all(p, &envelope);
}

static inline void pipe_commit(struct pipe *p, uint64_t sequence, int position, int token)
{
    Hearth__Epoch epoch;
    Hearth__Envelope envelope = pipe_envelope(&epoch);
    Hearth__Commit body = HEARTH__COMMIT__INIT;
    body.sequence = sequence;
    body.position = (uint32_t)position;
    body.token = (uint32_t)token;
    envelope.body_case = HEARTH__ENVELOPE__BODY_COMMIT;
    envelope.commit = &body;
    pipe_send_all(p, &envelope);
}

struct test_step {
    uint64_t sequence;
    uint32_t generation;
    int has_cut, cut_from;
    int first, n;
    const int *tokens; /* of the whole sequence, from position 0 */
    int next_token;    /* 0: the one behind in tokens; else -1 */
    enum row_kind kind;
    uint32_t depth, want;
    int wrong_epoch, wrong_prefix;
    uint32_t remaining_ms; /* 0: an hour */
    const float *rows;     /* for stages after the head */
};

static inline void pipe_step(struct pipe *p, int stage, const struct test_step *t)
{
    Hearth__Epoch epoch;
    Hearth__Envelope envelope = pipe_envelope(&epoch);
    Hearth__Step body = HEARTH__STEP__INIT;
    uint32_t ids[STEP_ROWS_MAX];
    uint64_t hash = WIRE_HASH_EMPTY;
    for (int i = 0; i < t->first; i++)
        hash = wire_hash_next(hash, (uint32_t)t->tokens[i]);
    for (int i = 0; i < t->n; i++)
        ids[i] = (uint32_t)t->tokens[t->first + i];
    epoch.counter += (uint32_t)t->wrong_epoch;
    body.sequence = t->sequence;
    body.generation = t->generation;
    body.cut_from = t->has_cut ? (uint32_t)t->cut_from : NO_CUT;
    body.first_position = (uint32_t)t->first;
    body.n_rows = (uint32_t)t->n;
    body.kind = (Hearth__StepKind)t->kind;
    body.depth = t->depth;
    body.chunk_first = (uint32_t)t->first;
    body.chunk_rows = (uint32_t)t->n;
    body.n_token_ids = (size_t)t->n;
    body.token_ids = ids;
    body.next_token = t->next_token;
    body.want = t->want;
    body.prefix_hash = hash ^ (uint64_t)t->wrong_prefix;
    body.remaining_ms = t->remaining_ms ? t->remaining_ms : 3600000;
    envelope.body_case = HEARTH__ENVELOPE__BODY_STEP;
    envelope.step = &body;
    pipe_send(p, stage, CHANNEL_ROWS, &envelope, t->rows, t->rows ? (size_t)t->n * HASH_ROW_WIDTH * sizeof(float) : 0);
}

#endif
