#include "coordinator/pipeline.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "common/log.h"

#define SECOND_NS UINT64_C(1000000000)

enum {
    /* Chunks of one prompt that are inside or before a stage: one being computed, one waiting (protocol rule 15). */
    CHUNKS_WAITING_MAX = 2,
    REDONE_MAX = 16, /* a request whose rows get lost more often fails: something is wrong with the network */
};

/* All stages idle this long while rows should be under way: a message was lost. */
#define LOST_ROWS_NS (2 * SECOND_NS)
#define INCOMPLETE_WAIT_NS (10 * SECOND_NS)

static int n_stages(const struct cluster *c)
{
    return c->membership.n_stages;
}

static void broadcast_body(struct cluster *c, Hearth__Envelope *e, struct outbox *out)
{
    membership_broadcast(&c->membership, e, out);
}

static void open_sequence(struct cluster *c, struct request *r, struct outbox *out)
{
    Hearth__Epoch epoch;
    Hearth__Envelope e = membership_envelope(&c->membership, &epoch);
    Hearth__Open body = HEARTH__OPEN__INIT;
    body.sequence = r->id;
    body.positions = (uint32_t)r->positions;
    body.temperature = (float)r->ask.sampling.temperature;
    body.top_k = (uint32_t)r->ask.sampling.top_k;
    body.top_p = (float)r->ask.sampling.top_p;
    body.min_p = (float)r->ask.sampling.min_p;
    body.seed = r->ask.sampling.seed;
    body.row_width = (uint32_t)c->config.model->hidden_size;
    body.n_tokens = (uint32_t)c->config.n_tokens;
    e.body_case = HEARTH__ENVELOPE__BODY_OPEN;
    e.open = &body;
    broadcast_body(c, &e, out);
    request_set_state(r, REQUEST_OPENING);
}

void pipeline_drop(struct cluster *c, const struct request *r, struct outbox *out)
{
    Hearth__Epoch epoch;
    Hearth__Envelope e = membership_envelope(&c->membership, &epoch);
    Hearth__Drop body = HEARTH__DROP__INIT;
    body.sequence = r->id;
    e.body_case = HEARTH__ENVELOPE__BODY_DROP;
    e.drop = &body;
    broadcast_body(c, &e, out);
}

static void commit(struct cluster *c, const struct request *r, int position, struct outbox *out)
{
    Hearth__Epoch epoch;
    Hearth__Envelope e = membership_envelope(&c->membership, &epoch);
    Hearth__Commit body = HEARTH__COMMIT__INIT;
    body.sequence = r->id;
    body.generation = r->generation;
    body.position = (uint32_t)position;
    body.token = (uint32_t)r->tokens[position];
    e.body_case = HEARTH__ENVELOPE__BODY_COMMIT;
    e.commit = &body;
    broadcast_body(c, &e, out);
}

/* The next rows of the log, up to a chunk of them. */
static void send_step(struct cluster *c, struct request *r, uint64_t now_ns, struct outbox *out)
{
    uint32_t ids[STEP_ROWS_MAX];
    int first = r->sent, n = r->n_tokens - first, most = membership_chunk_rows(&c->membership);
    n = n < most ? n : most;
    CHECK(n > 0);
    for (int i = 0; i < n; i++)
        ids[i] = (uint32_t)r->tokens[first + i];
    int is_last = first + n == r->n_tokens;
    Hearth__Epoch epoch;
    Hearth__Envelope e = membership_envelope(&c->membership, &epoch);
    Hearth__Step body = HEARTH__STEP__INIT;
    body.sequence = r->id;
    body.generation = r->generation;
    body.cut_from = r->cut_from;
    body.first_position = (uint32_t)first;
    body.n_rows = (uint32_t)n;
    body.kind = n == 1 && r->state == REQUEST_DECODE ? HEARTH__STEP_KIND__STEP_DECODE : HEARTH__STEP_KIND__STEP_PREFILL;
    body.chunk_first = (uint32_t)first;
    body.chunk_rows = (uint32_t)n;
    body.n_token_ids = (size_t)n;
    body.token_ids = ids;
    body.next_token = is_last ? -1 : r->tokens[first + n];
    body.want = is_last || r->ask.teacher_forced ? request_want(r) : 0;
    body.prefix_hash = r->hashes[first];
    uint64_t left_ms = r->deadline_ns > now_ns ? (r->deadline_ns - now_ns) / 1000000 : 1;
    body.remaining_ms = (uint32_t)(left_ms < MILLISECONDS_MAX ? left_ms : MILLISECONDS_MAX);
    e.body_case = HEARTH__ENVELOPE__BODY_STEP;
    e.step = &body;
    outbox_put(out, PEER_NEXT, CHANNEL_ROWS, &e, NULL, 0);
    r->cut_from = NO_CUT;
    r->sent += n;
    r->moved_ns = now_ns;
}

/* Rows at and above `from` are void everywhere and are sent again from the log: exact, because a row's numbers depend on that row alone. A request that needs
 * it too often ends instead: r is gone then. */
static void redo_from(struct cluster *c, struct request *r, int from, uint64_t now_ns, struct outbox *out)
{
    if (++r->n_redone > REDONE_MAX) {
        cluster_end_request(c, r, REQUEST_FAILED, STATUS_IO, "rows were lost again and again between the nodes; see the nodes' logs", out);
        return;
    }
    c->counters.redone++;
    r->generation++;
    r->cut_from = (uint32_t)from;
    r->sent = from;
    for (int s = 0; s < n_stages(c); s++)
        r->left[s] = r->left[s] < from ? r->left[s] : from;
    Hearth__Epoch epoch;
    Hearth__Envelope e = membership_envelope(&c->membership, &epoch);
    Hearth__Cut body = HEARTH__CUT__INIT;
    body.sequence = r->id;
    body.generation = r->generation;
    body.from = (uint32_t)from;
    e.body_case = HEARTH__ENVELOPE__BODY_CUT;
    e.cut = &body;
    broadcast_body(c, &e, out);
    r->moved_ns = now_ns;
}

static void finish_request(struct cluster *c, struct request *r, int is_length, uint64_t now_ns, struct outbox *out)
{
    double seconds = (double)(now_ns - r->started_ns) / 1e9;
    c->answer_seconds = c->answer_seconds > 0 ? 0.8 * c->answer_seconds + 0.2 * seconds : seconds;
    cluster_push_event(c, (struct cluster_event){.request = r->id, .kind = EVENT_DONE, .is_length = is_length}, NULL);
    cluster_end_request(c, r, REQUEST_DONE, STATUS_OK, NULL, out);
}

static int is_stop(const struct request *r, int token)
{
    for (int i = 0; i < r->ask.n_stop_ids; i++)
        if (r->ask.stop_ids[i] == token)
            return 1;
    return 0;
}

static void on_token(struct cluster *c, struct request *r, int token, uint64_t now_ns, struct outbox *out)
{
    request_append(r, token);
    if (r->state == REQUEST_PREFILL)
        request_set_state(r, REQUEST_DECODE);
    int stops = is_stop(r, token);
    cluster_push_event(c, (struct cluster_event){.request = r->id, .kind = EVENT_TOKEN, .token = token, .is_stop = stops}, NULL);
    if (stops || r->n_new == r->ask.max_new) {
        finish_request(c, r, !stops, now_ns, out);
        return;
    }
    commit(c, r, r->n_tokens - 1, out);
    send_step(c, r, now_ns, out);
}

/* Candidates as a row of logits: ids outside them can never be chosen (request_want). */
static const float *dense_row(struct cluster *c, const Hearth__Result *result)
{
    for (int i = 0; i < c->config.n_tokens; i++)
        c->logits[i] = -INFINITY;
    for (size_t i = 0; i < result->n_ids; i++)
        if (result->ids[i] < (uint32_t)c->config.n_tokens)
            c->logits[result->ids[i]] = result->logits[i];
    return c->logits;
}

static void on_sampling_result(struct cluster *c, struct request *r, const Hearth__Result *result, const float *rows, uint64_t now_ns, struct outbox *out)
{
    if ((int)result->position != r->n_tokens - 1) {
        c->counters.stale++;
        return;
    }
    int has_row = rows && result->row_floats == (uint32_t)c->config.model->vocab_size;
    struct error err;
    struct sampled_token token;
    struct sampler_context context = {r->counts.list, r->counts.n, (uint32_t)r->n_tokens};
    if (!has_row && !result->n_ids) {
        cluster_end_request(c, r, REQUEST_FAILED, STATUS_CORRUPT, "the tail sent neither candidates nor logits", out);
        return;
    }
    if (sampler_pick(&r->ask.sampling, &context, has_row ? rows : dense_row(c, result), c->config.n_tokens, c->scratch, 0, &token, &err)) {
        cluster_end_request(c, r, REQUEST_FAILED, err.status, err.text, out);
        return;
    }
    on_token(c, r, token.id, now_ns, out);
}

static void on_teacher_result(struct cluster *c, struct request *r, const Hearth__Result *result, const float *rows, uint64_t now_ns, struct outbox *out)
{
    int *count = result->is_draft_row ? &r->n_draft_logits : &r->n_logits;
    if (!rows || result->row_floats != (uint32_t)c->config.model->vocab_size || (int)result->position != *count) {
        c->counters.stale++; /* rows come in ascending order, each once; a row that was sent again is known already */
        return;
    }
    ++*count;
    cluster_push_event(c, (struct cluster_event){.request = r->id, .kind = EVENT_LOGITS, .position = (int)result->position,
                                                 .is_draft_row = result->is_draft_row != 0},
                       rows);
    int drafts = r->ask.want_drafts && c->config.model->n_mtp_layers ? r->n_tokens - 1 : 0;
    if (r->n_logits == r->n_tokens && r->n_draft_logits == drafts)
        finish_request(c, r, 0, now_ns, out);
}

void pipeline_on_rows(struct cluster *c, const char *key, const Hearth__Envelope *e, const float *rows, uint64_t now_ns, struct outbox *out)
{
    struct membership *m = &c->membership;
    if (e->body_case != HEARTH__ENVELOPE__BODY_RESULT || !membership_is_present_epoch(m, e) ||
        strcmp(m->members[m->by_stage[m->n_stages - 1]].row_key, key)) {
        c->counters.stale++;
        return;
    }
    struct request *r = cluster_find(c, e->result->sequence);
    if (!r || e->result->generation != r->generation || (r->state != REQUEST_PREFILL && r->state != REQUEST_DECODE) ||
        (int)e->result->position >= r->sent) { /* of a row that nobody was given */
        c->counters.stale++;
        return;
    }
    r->moved_ns = now_ns;
    if (!e->result->is_draft_row && r->left[m->n_stages - 1] <= (int)e->result->position)
        r->left[m->n_stages - 1] = (int)e->result->position + 1;
    (r->ask.teacher_forced ? on_teacher_result : on_sampling_result)(c, r, e->result, rows, now_ns, out);
}

static void on_opened(struct cluster *c, struct request *r, int stage)
{
    r->opened |= 1u << stage;
    if (r->state == REQUEST_OPENING && r->opened == (1u << n_stages(c)) - 1) {
        request_set_state(r, REQUEST_PREFILL);
        cluster_push_event(c, (struct cluster_event){.request = r->id, .kind = EVENT_ADMITTED}, NULL);
    }
}

static void on_progress(struct cluster *c, struct request *r, int stage, const Hearth__Progress *progress)
{
    int left = (int)progress->position + 1;
    if (progress->generation != r->generation || left > r->sent) {
        c->counters.stale++;
        return;
    }
    r->left[stage] = left > r->left[stage] ? left : r->left[stage];
}

static void on_nack(struct cluster *c, struct request *r, int stage, const Hearth__Nack *nack, uint64_t now_ns, struct outbox *out)
{
    char sentence[200];
    const char *node = c->membership.members[c->membership.by_stage[stage]].name;
    if (nack->reason != NACK_SEQUENCE && nack->generation != r->generation)
        return; /* about rows that are void already */
    if (nack->reason == NACK_GAP && (int)nack->length <= r->sent) {
        redo_from(c, r, (int)nack->length, now_ns, out);
        return;
    }
    snprintf(sentence, sizeof sentence, "node '%s' cannot go on with this answer (%s)", node,
             nack->reason == NACK_PREFIX     ? "its tokens are others"
             : nack->reason == NACK_SEQUENCE ? "it does not know the sequence"
                                             : "it has no room for the rows");
    cluster_end_request(c, r, REQUEST_FAILED, STATUS_IO, sentence, out);
}

static void on_refuse(struct cluster *c, struct request *r, int stage, const Hearth__Refuse *refuse, struct outbox *out)
{
    char sentence[TEXT_BYTES_MAX];
    snprintf(sentence, sizeof sentence, "node '%s': %.*s", c->membership.members[c->membership.by_stage[stage]].name,
             membership_whole_characters(refuse->sentence, SENTENCE_BYTES_SHOWN), refuse->sentence);
    cluster_end_request(c, r, REQUEST_FAILED, refuse->code == REFUSE_MEMORY ? STATUS_NO_MEMORY : STATUS_IO, sentence, out);
}

void pipeline_on_control(struct cluster *c, int stage, const Hearth__Envelope *e, uint64_t now_ns, struct outbox *out)
{
    uint64_t id = e->body_case == HEARTH__ENVELOPE__BODY_OPENED     ? e->opened->sequence
                  : e->body_case == HEARTH__ENVELOPE__BODY_PROGRESS ? e->progress->sequence
                  : e->body_case == HEARTH__ENVELOPE__BODY_NACK     ? e->nack->sequence
                  : e->body_case == HEARTH__ENVELOPE__BODY_REFUSE   ? e->refuse->sequence
                                                                    : 0;
    struct request *r = id ? cluster_find(c, id) : NULL;
    if (!r || !request_is_running(r))
        return;
    r->moved_ns = now_ns;
    if (e->body_case == HEARTH__ENVELOPE__BODY_OPENED)
        on_opened(c, r, stage);
    else if (e->body_case == HEARTH__ENVELOPE__BODY_PROGRESS)
        on_progress(c, r, stage, e->progress);
    else if (e->body_case == HEARTH__ENVELOPE__BODY_NACK)
        on_nack(c, r, stage, e->nack, now_ns, out);
    else if (e->refuse->scope == HEARTH__SCOPE__SCOPE_SEQUENCE)
        on_refuse(c, r, stage, e->refuse, out);
}

/* Positions are promised in whole cache blocks. */
static int promised(const struct request *r)
{
    return (r->positions + 63) & ~63;
}

static void admit(struct cluster *c, uint64_t now_ns, struct outbox *out)
{
    int running = 0, positions = 0;
    for (struct request *r = c->requests; r; r = r->next)
        if (request_is_running(r)) {
            running++;
            positions += promised(r);
        }
    for (struct request *r = c->requests; r && cluster_is_ready(c); r = r->next) {
        if (r->state != REQUEST_QUEUED)
            continue;
        if (running >= c->config.max_sequences || (running && positions + promised(r) > c->config.max_positions))
            return; /* in the order of arrival: nobody overtakes a long request for ever */
        open_sequence(c, r, out);
        r->started_ns = r->moved_ns = now_ns;
        running++;
        positions += promised(r);
    }
}

/* Whether a further chunk of this prompt may go: few wait at any stage, and the agreed number of rows is never passed. */
static int may_feed(const struct cluster *c, const struct request *r, int in_flight)
{
    if ((r->state != REQUEST_PREFILL && r->state != REQUEST_DECODE) || r->sent >= r->n_tokens)
        return 0;
    int chunk = membership_chunk_rows(&c->membership), rows = r->n_tokens - r->sent < chunk ? r->n_tokens - r->sent : chunk;
    /* One row of every sequence stays free for decode, which is never held back. */
    return in_flight + rows <= c->config.max_rows_in_flight - c->config.max_sequences && r->sent - r->left[0] < CHUNKS_WAITING_MAX * chunk;
}

/* Prompts in turn: the first request after the one that was fed last that may be fed. */
static struct request *next_to_feed(struct cluster *c, int in_flight)
{
    struct request *first = NULL;
    for (struct request *r = c->requests; r; r = r->next) {
        if (!may_feed(c, r, in_flight))
            continue;
        if (r->id > c->turn)
            return r;
        first = first ? first : r;
    }
    return first;
}

static void feed(struct cluster *c, uint64_t now_ns, struct outbox *out)
{
    for (;;) {
        int in_flight = 0, at_head = 0;
        for (struct request *r = c->requests; r; r = r->next)
            if (request_is_running(r)) {
                in_flight += request_rows_in_flight(r, n_stages(c));
                at_head += r->sent - r->left[0];
            }
        struct request *r = next_to_feed(c, in_flight);
        if (!r || at_head >= CHUNKS_WAITING_MAX * membership_chunk_rows(&c->membership))
            return;
        c->turn = r->id;
        send_step(c, r, now_ns, out);
    }
}

/* The first row that is not known to have passed the tail, or whose result has not come. */
static int first_unanswered(const struct cluster *c, const struct request *r)
{
    int from = r->left[n_stages(c) - 1] < r->n_tokens - 1 ? r->left[n_stages(c) - 1] : r->n_tokens - 1;
    if (!r->ask.teacher_forced)
        return from;
    from = r->n_logits < from ? r->n_logits : from;
    return r->ask.want_drafts && c->config.model->n_mtp_layers && r->n_draft_logits < from ? r->n_draft_logits : from;
}

static void check_time(struct cluster *c, struct request *r, uint64_t now_ns, struct outbox *out)
{
    if (now_ns >= r->deadline_ns) {
        cluster_end_request(c, r, REQUEST_FAILED, STATUS_TIMEOUT, "the answer took longer than the request's deadline", out);
        return;
    }
    int should_move = r->state == REQUEST_PREFILL || r->state == REQUEST_DECODE;
    if (should_move && r->sent > first_unanswered(c, r) && now_ns - r->moved_ns > LOST_ROWS_NS && membership_is_idle(&c->membership, now_ns, LOST_ROWS_NS))
        redo_from(c, r, first_unanswered(c, r), now_ns, out); /* may end the request */
    else if (r->state == REQUEST_OPENING && now_ns - r->moved_ns > 5 * SECOND_NS)
        cluster_end_request(c, r, REQUEST_FAILED, STATUS_TIMEOUT, "not every node answered that it has room for the request", out);
}

/* Requests that wait for a place also wait for the cluster, but not for long: their askers have no answer yet and can come again. */
static void fail_waiting(struct cluster *c, uint64_t now_ns, struct outbox *out)
{
    char missing[TEXT_BYTES_MAX];
    if (now_ns - c->membership.incomplete_since_ns < INCOMPLETE_WAIT_NS)
        return;
    membership_missing(&c->membership, now_ns, missing);
    for (struct request *r = c->requests, *next; r; r = next) {
        next = r->next;
        if (r->state == REQUEST_QUEUED)
            cluster_end_request(c, r, REQUEST_FAILED, STATUS_UNSUPPORTED, missing, out);
    }
}

void pipeline_tick(struct cluster *c, uint64_t now_ns, struct outbox *out)
{
    for (struct request *r = c->requests, *next; r; r = next) {
        next = r->next;
        check_time(c, r, now_ns, out);
    }
    if (!cluster_is_ready(c))
        fail_waiting(c, now_ns, out);
    if (!n_stages(c))
        return;
    admit(c, now_ns, out);
    feed(c, now_ns, out);
}
