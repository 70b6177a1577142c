/* The facade: messages to their handlers, time to the scheduler, events to the people who asked. */
#include "coordinator/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/json.h"
#include "common/log.h"
#include "common/memory.h"
#include "coordinator/cluster_state.h"
#include "coordinator/pipeline.h"

#define SECOND_NS UINT64_C(1000000000)

struct cluster *cluster_new(const struct cluster_config *config)
{
    CHECK(config->n_nodes >= 1 && config->n_nodes <= CLUSTER_NODES_MAX && config->chunk_rows >= 0 && config->chunk_rows <= STEP_ROWS_MAX);
    CHECK(config->max_sequences >= 1 && config->max_sequences <= CLUSTER_SEQUENCES_MAX);
    struct cluster *c = xcalloc(1, sizeof *c);
    c->config = *config;
    if (!c->config.request_deadline_ns)
        c->config.request_deadline_ns = 3600 * SECOND_NS;
    if (!c->config.suspect_ns)
        c->config.suspect_ns = SECOND_NS;
    if (!c->config.lost_ns)
        c->config.lost_ns = 2 * SECOND_NS;
    membership_init(&c->membership, &c->config);
    c->next_id = config->instance << 20 | 1; /* sequences of another instance never meet ours */
    c->logits = xcalloc((size_t)config->model->vocab_size, sizeof *c->logits);
    c->scratch = xcalloc(1, sampler_scratch_bytes(config->n_tokens));
    return c;
}

void cluster_free(struct cluster **cluster)
{
    struct cluster *c = *cluster;
    struct cluster_event event;
    while (c->requests) {
        struct request *r = c->requests;
        c->requests = r->next;
        request_free(&r);
    }
    while (cluster_next_event(c, &event))
        ;
    free(c->event_floats);
    free(c->events);
    free(c->logits);
    free(c->scratch);
    free(c);
    *cluster = NULL;
}

void cluster_push_event(struct cluster *c, struct cluster_event event, const float *logits)
{
    if (c->n_events == c->events_capacity) {
        c->events_capacity = c->events_capacity ? 2 * c->events_capacity : 64;
        c->events = xrealloc(c->events, c->events_capacity * sizeof *c->events);
    }
    struct pending_event *pending = &c->events[c->n_events++];
    *pending = (struct pending_event){.event = event};
    if (event.sentence)
        snprintf(pending->sentence, sizeof pending->sentence, "%s", event.sentence);
    if (logits) {
        size_t bytes = (size_t)c->config.model->vocab_size * sizeof(float);
        pending->logits = xcalloc(1, bytes);
        memcpy(pending->logits, logits, bytes);
    }
}

int cluster_next_event(struct cluster *c, struct cluster_event *event)
{
    free(c->event_floats);
    c->event_floats = NULL;
    if (c->first_event == c->n_events) {
        c->first_event = c->n_events = 0;
        return 0;
    }
    struct pending_event *pending = &c->events[c->first_event++];
    *event = pending->event;
    snprintf(c->event_sentence, sizeof c->event_sentence, "%s", pending->sentence);
    event->sentence = pending->event.sentence ? c->event_sentence : NULL;
    event->logits = c->event_floats = pending->logits;
    return 1;
}

struct request *cluster_find(struct cluster *c, uint64_t id)
{
    for (struct request *r = c->requests; r; r = r->next)
        if (r->id == id)
            return r;
    return NULL;
}

/* Takes a finished request out of the list. */
static void forget(struct cluster *c, struct request *request)
{
    struct request **at = &c->requests;
    while (*at != request)
        at = &(*at)->next;
    *at = request->next;
    request_free(&request);
}

void cluster_end_request(struct cluster *c, struct request *r, enum request_state state, enum status status, const char *sentence, struct outbox *out)
{
    if (request_is_running(r))
        pipeline_drop(c, r, out);
    request_set_state(r, state);
    if (state == REQUEST_FAILED) {
        snprintf(c->last_failure, sizeof c->last_failure, "%s", sentence);
        cluster_push_event(c, (struct cluster_event){.request = r->id, .kind = EVENT_FAILED, .status = status, .sentence = sentence}, NULL);
    }
    c->counters.ended[state]++;
    forget(c, r);
}

/* Every running request fails: its rows are gone with the map. (Going on with them is a later step.) Queued ones keep waiting. */
static void fail_running(struct cluster *c, const char *why, struct outbox *out)
{
    log_line(LOG_ERROR, "%s", why);
    for (struct request *r = c->requests, *next; r; r = next) {
        next = r->next;
        if (request_is_running(r))
            cluster_end_request(c, r, REQUEST_FAILED, STATUS_IO, why, out);
    }
}

void cluster_on_message(struct cluster *c, int peer, const char *key, enum channel channel, const Hearth__Envelope *e, const float *rows, uint64_t now_ns,
                        struct outbox *out)
{
    char why[TEXT_BYTES_MAX];
    if (channel == CHANNEL_ROWS) {
        pipeline_on_rows(c, key, e, rows, now_ns, out);
        return;
    }
    if (membership_on_message(&c->membership, peer, key, e, now_ns, out, why)) {
        fail_running(c, why, out);
        return;
    }
    int stage = membership_stage_of(&c->membership, peer, e);
    if (stage >= 0)
        pipeline_on_control(c, stage, e, now_ns, out);
}

void cluster_tick(struct cluster *c, uint64_t now_ns, struct outbox *out)
{
    char why[TEXT_BYTES_MAX];
    if (membership_tick(&c->membership, now_ns, out, why))
        fail_running(c, why, out);
    pipeline_tick(c, now_ns, out);
}

uint64_t cluster_next_tick_ns(const struct cluster *c, uint64_t now_ns)
{
    (void)c;
    return now_ns + 50 * UINT64_C(1000000);
}

static int n_queued(const struct cluster *c)
{
    int n = 0;
    for (const struct request *r = c->requests; r; r = r->next)
        n += r->state == REQUEST_QUEUED;
    return n;
}

int cluster_n_running(const struct cluster *c)
{
    int n = 0;
    for (const struct request *r = c->requests; r; r = r->next)
        n++;
    return n;
}

/* Seconds until a place in the queue is free, from how long the last answers took. */
static int retry_after(const struct cluster *c)
{
    double seconds = c->answer_seconds > 0 ? c->answer_seconds * (n_queued(c) + 1) / c->config.max_sequences : 5;
    return seconds < 1 ? 1 : seconds > 600 ? 600 : (int)seconds;
}

enum submit_refusal cluster_submit(struct cluster *c, const struct cluster_request *ask, uint64_t now_ns, uint64_t *id, int *retry_after_s, struct error *err)
{
    char missing[TEXT_BYTES_MAX];
    CHECK(ask->n_prompt >= 1);
    *retry_after_s = retry_after(c);
    if (c->is_draining)
        return error_set(err, STATUS_UNSUPPORTED, "the coordinator is shutting down"), SUBMIT_DRAINING;
    if (!cluster_is_ready(c)) {
        membership_missing(&c->membership, now_ns, missing);
        return error_set(err, STATUS_UNSUPPORTED, "the cluster is not complete: %s", missing), SUBMIT_INCOMPLETE;
    }
    struct cluster_request fitted = *ask;
    int room = c->config.max_positions - ask->n_prompt;
    fitted.max_new = ask->teacher_forced ? 0 : ask->max_new < room ? ask->max_new : room;
    if (room < 0 || (!ask->teacher_forced && fitted.max_new < 1))
        return error_set(err, STATUS_INVALID, "the prompt has %d tokens, the cluster keeps %d positions", ask->n_prompt, c->config.max_positions),
               SUBMIT_TOO_LONG;
    if (n_queued(c) >= c->config.queue_max)
        return error_set(err, STATUS_BUSY, "%d requests are waiting already", n_queued(c)), SUBMIT_QUEUE_FULL;
    struct request *r =
        request_new(c->next_id++, &fitted, fitted.n_prompt + fitted.max_new, c->config.n_tokens, now_ns, now_ns + c->config.request_deadline_ns);
    struct request **end = &c->requests;
    while (*end)
        end = &(*end)->next;
    *end = r;
    *id = r->id;
    return SUBMIT_OK;
}

void cluster_cancel(struct cluster *c, uint64_t id, uint64_t now_ns, struct outbox *out)
{
    (void)now_ns;
    struct request *r = cluster_find(c, id);
    if (r)
        cluster_end_request(c, r, REQUEST_CANCELLED, STATUS_CANCELLED, NULL, out);
}

void cluster_drain(struct cluster *c)
{
    c->is_draining = 1;
}

uint32_t cluster_head(const struct cluster *c, const char **endpoint, const char **key)
{
    const struct membership *m = &c->membership;
    if (!m->n_stages)
        return 0;
    *endpoint = m->members[m->by_stage[0]].row_endpoint;
    *key = m->members[m->by_stage[0]].row_key;
    return m->epoch_counter;
}

int cluster_is_ready(const struct cluster *c)
{
    return membership_is_ready(&c->membership);
}

json_t *cluster_status(const struct cluster *c, uint64_t now_ns)
{
    char missing[TEXT_BYTES_MAX];
    membership_missing(&c->membership, now_ns, missing);
    uint64_t since_ns = c->membership.incomplete_since_ns ? c->membership.incomplete_since_ns : now_ns; /* asked before the first tick */
    int running = 0;
    for (const struct request *r = c->requests; r; r = r->next)
        running += request_is_running(r);
    json_t *status = json_pack("{s:b, s:o, s:f, s:{s:I, s:i}, s:i, s:i, s:I, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:I}", "ready", cluster_is_ready(c), "missing",
                               json_sentence(missing), "since_s", (double)(now_ns - since_ns) / 1e9, "epoch", "instance",
                               (json_int_t)(c->config.instance >> 1), "counter", (int)c->membership.epoch_counter, "running", running, "queued", n_queued(c),
                               "done", (json_int_t)c->counters.ended[REQUEST_DONE], "failed", (json_int_t)c->counters.ended[REQUEST_FAILED], "cancelled",
                               (json_int_t)c->counters.ended[REQUEST_CANCELLED], "nodes", membership_status(&c->membership, now_ns), "last_refusal",
                               json_sentence(c->membership.last_refusal), "last_failure", json_sentence(c->last_failure), "refused", (json_int_t)c->membership.refused, "stale_messages",
                               (json_int_t)(c->membership.stale + c->counters.stale), "redone", (json_int_t)c->counters.redone);
    return status;
}
