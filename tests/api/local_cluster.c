#include "tests/api/local_cluster.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"

enum { QUEUE_ROOM = 64 };

struct local_request {
    uint64_t id;
    int *prompt, n_prompt, max_new, n_new;
    struct sampler_params sampling;
    struct token_bias *bias;
    int stop_ids[CLUSTER_STOP_IDS_MAX], n_stop_ids;
    int teacher_forced, want_drafts;
    int is_running;
    struct sequence_state sequence;
    int next; /* the token whose row comes next, once the prompt is in */
    struct token_count *counts;
    size_t n_counts;
    struct local_request *after;
};

struct cluster {
    struct local_cluster_options options;
    struct local_request *requests; /* in the order of their coming */
    uint64_t last_id, next_step_ns;
    int is_complete, is_draining;
    struct cluster_event *events;
    char **sentences; /* beside events */
    size_t n_events, first_event, room;
    float *logits, *hidden;
    float *given; /* logits of the event handed out last */
    void *scratch;
    int n_done, n_cancelled, n_failed;
};

static void push(struct cluster *c, struct cluster_event event)
{
    if (c->n_events == c->room) {
        c->room = c->room ? 2 * c->room : QUEUE_ROOM;
        c->events = xrealloc(c->events, c->room * sizeof *c->events);
        c->sentences = xrealloc(c->sentences, c->room * sizeof *c->sentences);
    }
    c->sentences[c->n_events] = event.sentence ? xstrdup(event.sentence) : NULL;
    c->events[c->n_events++] = event;
}

static void request_free(struct local_request *r)
{
    if (r->sequence.cache)
        sequence_state_release(&r->sequence);
    free(r->prompt);
    free(r->bias);
    free(r->counts);
    free(r);
}

static void unlink_request(struct cluster *c, struct local_request *r)
{
    struct local_request **at = &c->requests;
    while (*at != r)
        at = &(*at)->after;
    *at = r->after;
    request_free(r);
}

static void fail(struct cluster *c, struct local_request *r, enum status status, const char *sentence)
{
    push(c, (struct cluster_event){.request = r->id, .kind = EVENT_FAILED, .status = status, .sentence = sentence});
    c->n_failed++;
    unlink_request(c, r);
}

struct cluster *local_cluster_new(const struct local_cluster_options *options)
{
    struct cluster *c = xcalloc(1, sizeof *c);
    c->options = *options;
    c->is_complete = 1;
    c->logits = xcalloc((size_t)options->model->config->vocab_size, sizeof(float));
    c->scratch = xcalloc(1, sampler_scratch_bytes(options->n_tokens));
    return c;
}

void local_cluster_free(struct cluster **slot)
{
    struct cluster *c = *slot;
    if (!c)
        return;
    while (c->requests)
        unlink_request(c, c->requests);
    for (size_t i = c->first_event; i < c->n_events; i++) {
        free(c->sentences[i]);
        free((float *)c->events[i].logits);
    }
    free(c->events);
    free(c->sentences);
    free(c->given);
    free(c->logits);
    free(c->scratch);
    free(c);
    *slot = NULL;
}

void local_cluster_set_complete(struct cluster *c, int is_complete)
{
    c->is_complete = is_complete;
    while (!is_complete && c->requests)
        fail(c, c->requests, STATUS_IO, "layers 0-11 went away: node 'local' does not answer");
}

static int count(const struct cluster *c, int is_running)
{
    int n = 0;
    for (const struct local_request *r = c->requests; r; r = r->after)
        n += r->is_running == is_running;
    return n;
}

enum submit_refusal cluster_submit(struct cluster *c, const struct cluster_request *request, uint64_t now_ns, uint64_t *id,
                                   int *retry_after_s, struct error *err)
{
    (void)now_ns;
    *retry_after_s = 3;
    if (c->is_draining) {
        error_set(err, STATUS_BUSY, "the coordinator is shutting down");
        return SUBMIT_DRAINING;
    }
    if (!c->is_complete) {
        error_set(err, STATUS_BUSY, "layers 0-11 are missing");
        return SUBMIT_INCOMPLETE;
    }
    if (request->n_prompt + !request->teacher_forced > c->options.model->max_positions) {
        error_set(err, STATUS_INVALID, "%d tokens do not fit %d positions", request->n_prompt, c->options.model->max_positions);
        return SUBMIT_TOO_LONG;
    }
    if (count(c, 0) >= c->options.queue_max && (c->options.never_admits || count(c, 1) >= c->options.max_sequences)) {
        error_set(err, STATUS_BUSY, "%d requests are waiting already", count(c, 0));
        return SUBMIT_QUEUE_FULL;
    }
    struct local_request *r = xcalloc(1, sizeof *r), **at = &c->requests;
    *r = (struct local_request){.id = *id = ++c->last_id,
                                .n_prompt = request->n_prompt,
                                .max_new = request->max_new,
                                .sampling = request->sampling,
                                .n_stop_ids = request->n_stop_ids,
                                .teacher_forced = request->teacher_forced,
                                .want_drafts = request->want_drafts};
    r->prompt = xcalloc((size_t)r->n_prompt, sizeof *r->prompt);
    memcpy(r->prompt, request->prompt, (size_t)r->n_prompt * sizeof *r->prompt);
    memcpy(r->stop_ids, request->stop_ids, sizeof r->stop_ids);
    r->bias = xcalloc(request->sampling.n_bias + 1, sizeof *r->bias);
    if (request->sampling.n_bias)
        memcpy(r->bias, request->sampling.bias, request->sampling.n_bias * sizeof *r->bias);
    r->sampling.bias = r->bias;
    if (r->max_new > c->options.model->max_positions - r->n_prompt)
        r->max_new = c->options.model->max_positions - r->n_prompt;
    while (*at)
        at = &(*at)->after;
    *at = r;
    return SUBMIT_OK;
}

void cluster_cancel(struct cluster *c, uint64_t id, uint64_t now_ns, struct outbox *out)
{
    (void)now_ns, (void)out;
    for (size_t i = c->first_event; i < c->n_events; i++)
        if (c->events[i].request == id)
            c->events[i].request = 0; /* no event follows */
    for (struct local_request *r = c->requests; r; r = r->after)
        if (r->id == id) {
            c->n_cancelled++;
            unlink_request(c, r);
            return;
        }
}

void cluster_drain(struct cluster *c)
{
    c->is_draining = 1;
}

int cluster_n_running(const struct cluster *c)
{
    return count(c, 1) + count(c, 0);
}

int cluster_next_event(struct cluster *c, struct cluster_event *event)
{
    static char sentence[ERROR_TEXT_BYTES];
    free(c->given);
    c->given = NULL;
    while (c->first_event < c->n_events) {
        size_t i = c->first_event++;
        *event = c->events[i];
        c->given = (float *)event->logits;
        if (c->sentences[i]) {
            snprintf(sentence, sizeof sentence, "%s", c->sentences[i]);
            event->sentence = sentence;
            free(c->sentences[i]);
        }
        if (event->request)
            return 1;
        free(c->given);
        c->given = NULL;
    }
    c->first_event = c->n_events = 0;
    return 0;
}

int cluster_is_ready(const struct cluster *c)
{
    return c->is_complete && !c->is_draining;
}

/* The same keys as the real one, as far as they have a meaning here. */
json_t *cluster_status(const struct cluster *c, uint64_t now_ns)
{
    (void)now_ns;
    return json_pack("{s:b, s:s, s:f, s:i, s:i, s:i, s:i, s:i, s:[{s:s, s:s, s:[i, i], s:i, s:{s:i, s:i, s:I, s:i, s:i, s:i}}]}", "ready", c->is_complete, "missing",
                     c->is_complete ? "" : "layers 0-10", "since_s", 1.0, "running", count(c, 1), "queued", count(c, 0), "done", c->n_done,
                     "failed", c->n_failed, "cancelled", c->n_cancelled, "nodes", "name", "local", "state",
                     c->is_complete ? "READY" : "LOST", "layers", 0, c->options.model->config->n_layers, "busy_ms", 2000, "experts", "hits", 975, "misses", 25,
                     "read_bytes", (json_int_t)12345678901, "wait_ms", 30, "slots_used", 63, "slots", 64);
}

/* ---- steps ---- */

static void count_token(struct local_request *r, int id, int in_answer)
{
    for (size_t i = 0; i < r->n_counts; i++)
        if (r->counts[i].id == id) {
            r->counts[i].n_in_answer += (uint32_t)in_answer;
            return;
        }
    r->counts = xrealloc(r->counts, (r->n_counts + 1) * sizeof *r->counts);
    r->counts[r->n_counts++] = (struct token_count){id, (uint32_t)in_answer};
}

static void run_teacher_forced(struct cluster *c, struct local_request *r)
{
    size_t vocab = (size_t)c->options.model->config->vocab_size, width = (size_t)c->options.model->config->hidden_size,
           n = (size_t)r->n_prompt;
    struct error err;
    float *rows = xcalloc(n * vocab, sizeof(float)), *hidden = xcalloc(n * width, sizeof(float));
    enum status status =
        model_forward(c->options.model, &(struct model_input){&r->sequence, r->prompt, r->n_prompt, rows, hidden}, 1, &err);
    for (int is_draft = 0; is_draft < 1 + (r->want_drafts && n > 1) && !status; is_draft++) {
        if (is_draft)
            status = model_mtp_rows(c->options.model, &r->sequence, 0, r->prompt + 1, r->n_prompt - 1, hidden, rows, &err);
        for (size_t i = 0; i < n - (size_t)is_draft && !status; i++) {
            float *copy = xcalloc(vocab, sizeof(float));
            memcpy(copy, rows + i * vocab, vocab * sizeof(float));
            push(c, (struct cluster_event){
                        .request = r->id, .kind = EVENT_LOGITS, .position = (int)i, .is_draft_row = is_draft, .logits = copy});
        }
    }
    free(rows);
    free(hidden);
    if (status) {
        fail(c, r, status, err.text);
        return;
    }
    push(c, (struct cluster_event){.request = r->id, .kind = EVENT_DONE});
    unlink_request(c, r);
}

static int pick(struct cluster *c, struct local_request *r, int *token, struct error *err)
{
    if (c->options.script) {
        *token = r->n_new < c->options.n_script ? c->options.script[r->n_new] : r->stop_ids[0];
        return STATUS_OK;
    }
    struct sampled_token sampled;
    struct sampler_context context = {r->counts, r->n_counts, (uint32_t)r->sequence.length};
    enum status status = sampler_pick(&r->sampling, &context, c->logits, c->options.n_tokens, c->scratch, 0, &sampled, err);
    *token = status ? 0 : sampled.id;
    return status;
}

static void on_logits(struct cluster *c, struct local_request *r)
{
    struct error err;
    int token, is_stop = 0;
    if (pick(c, r, &token, &err)) {
        fail(c, r, STATUS_INVALID, err.text);
        return;
    }
    for (int i = 0; i < r->n_stop_ids; i++)
        is_stop |= r->stop_ids[i] == token;
    if (c->options.fail_after && r->n_new + 1 >= c->options.fail_after) {
        fail(c, r, STATUS_IO, "node 'local' was lost");
        return;
    }
    r->n_new++;
    r->next = token;
    count_token(r, token, 1);
    push(c, (struct cluster_event){.request = r->id, .kind = EVENT_TOKEN, .token = token, .is_stop = is_stop});
    if (!is_stop && r->n_new < r->max_new)
        return;
    push(c, (struct cluster_event){.request = r->id, .kind = EVENT_DONE, .is_length = !is_stop});
    c->n_done++;
    unlink_request(c, r);
}

static void step(struct cluster *c, struct local_request *r)
{
    if (r->teacher_forced) {
        run_teacher_forced(c, r);
        return;
    }
    struct error err;
    int at = r->sequence.length, left = r->n_prompt - at, n = left > c->options.chunk_rows ? c->options.chunk_rows : left;
    const int *tokens = left > 0 ? r->prompt + at : &r->next;
    int n_rows = left > 0 ? n : 1, has_end = left <= n;
    float *all = has_end ? xcalloc((size_t)n_rows * (size_t)c->options.model->config->vocab_size, sizeof(float)) : NULL;
    enum status status = model_forward(c->options.model, &(struct model_input){&r->sequence, tokens, n_rows, all, NULL}, 1, &err);
    if (all)
        memcpy(c->logits, all + (size_t)(n_rows - 1) * (size_t)c->options.model->config->vocab_size,
               (size_t)c->options.model->config->vocab_size * sizeof(float));
    free(all);
    if (status)
        fail(c, r, status, err.text);
    else if (has_end)
        on_logits(c, r);
}

static void admit(struct cluster *c, struct local_request *r)
{
    struct error err;
    if (model_sequence_init(c->options.model, &r->sequence, r->n_prompt + r->max_new, &err))
        return; /* waits until others have ended */
    for (int i = 0; i < r->n_prompt; i++)
        count_token(r, r->prompt[i], 0);
    r->is_running = 1;
    push(c, (struct cluster_event){.request = r->id, .kind = EVENT_ADMITTED});
}

void cluster_tick(struct cluster *c, uint64_t now_ns, struct outbox *out)
{
    (void)out;
    if (!c->requests || now_ns < c->next_step_ns)
        return;
    c->next_step_ns = now_ns + c->options.step_ns;
    for (struct local_request *r = c->requests, *after; r; r = after) {
        after = r->after;
        if (!r->is_running && !c->options.never_admits && count(c, 1) < c->options.max_sequences)
            admit(c, r);
        else if (r->is_running)
            step(c, r);
    }
}

uint64_t cluster_next_tick_ns(const struct cluster *c, uint64_t now_ns)
{
    if (!c->requests || (c->options.never_admits && !count(c, 1)))
        return now_ns + 50000000;
    return c->next_step_ns > now_ns ? c->next_step_ns : now_ns;
}
