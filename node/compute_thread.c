#include "node/compute_thread.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/budget.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/memory.h"
#include "kernels/parallel.h"
#include "model/layer_pass.h"
#include "node/expert_slots.h"

enum {
    UNIT_ROWS_MAX = 64,
    RUNTIME_BYTES = 64 << 20, /* libraries, stacks, queues */
    PUBLISH_NS = 100000000,
    IDLE_MS = 100,            /* how long the thread sleeps at most before it looks at should_stop */
};

char *const compute_state_names[] = {
    [COMPUTE_WAITING] = "waiting", [COMPUTE_LOADING] = "loading", [COMPUTE_READY] = "ready", [COMPUTE_FAILED] = "failed"};

void stage_message_free(struct stage_message **message)
{
    wire_free(&(*message)->envelope);
    free((*message)->rows);
    free(*message);
    *message = NULL;
}

/* The net thread empties both queues, that of rows as fast as the next stage takes them (and with a deadline), so waiting for room ends; 0:
 * the process stops, nothing was put. */
static int put_out(struct compute_thread *c, struct message_queue *queue, struct queue_item item)
{
    while (!message_queue_put(queue, item)) {
        if (atomic_load(&c->should_stop))
            return 0;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return 1;
}

/* Hands messages to the net thread. */
static void hand_out(struct compute_thread *c, struct outbox *out)
{
    for (int i = 0; i < out->n; i++) {
        struct outgoing *copy = xcalloc(1, sizeof *copy);
        *copy = out->messages[i];
        if (put_out(c, copy->channel == CHANNEL_ROWS ? &c->rows_out : &c->out,
                    (struct queue_item){NET_OUTGOING, copy, copy->header_bytes + copy->rows_bytes}))
            continue;
        free(copy->bytes);
        free(copy);
    }
    out->n = 0; /* the bytes belong to the copies now */
}

static void end_stage(struct compute_thread *c)
{
    if (c->stage) {
        const struct stage_counters *counters = stage_counters(c->stage);
        c->rows_before += counters->rows_done;
        c->busy_before_ns += counters->busy_ns;
        c->queue_before_ns += counters->queue_ns;
        c->answers.n_open = 0;
        stage_free(&c->stage);
    }
    if (c->forward)
        stage_forward_free(&c->forward);
}

static void put_refuse(const Hearth__Envelope *assign, uint32_t code, char *sentence, struct outbox *out)
{
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Refuse body = HEARTH__REFUSE__INIT;
    e.protocol = PROTOCOL_VERSION;
    e.epoch = assign->epoch;
    body.code = code;
    body.sentence = sentence;
    body.scope = HEARTH__SCOPE__SCOPE_NODE;
    e.body_case = HEARTH__ENVELOPE__BODY_REFUSE;
    e.refuse = &body;
    outbox_put(out, PEER_COORDINATOR, CHANNEL_CONTROL, &e, NULL, 0);
}

static void put_ready(const struct compute_thread *c, const Hearth__Envelope *assign, struct outbox *out)
{
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Ready body = HEARTH__READY__INIT;
    e.protocol = PROTOCOL_VERSION;
    e.epoch = assign->epoch;
    body.layer_begin = assign->assign->layer_begin;
    body.layer_end = assign->assign->layer_end;
    body.free_positions = (uint64_t)stage_free_positions(c->stage);
    body.chunk_rows = (uint32_t)stage_forward_engine(c->forward)->set_rows_max;
    e.body_case = HEARTH__ENVELOPE__BODY_READY;
    e.ready = &body;
    outbox_put(out, PEER_COORDINATOR, CHANNEL_CONTROL, &e, NULL, 0);
}

/* A node may be told to own nothing else than its --layers. */
static enum status check_range(const struct compute_thread *c, int begin, int end, struct error *err)
{
    int own_begin, own_end;
    if (c->options->layers && (sscanf(c->options->layers, "%d-%d", &own_begin, &own_end) != 2 || begin != own_begin || end != own_end))
        return error_set(err, STATUS_INVALID, "this node owns layers %s only (--layers) and was given %d-%d: change one of the two",
                         c->options->layers, begin, end);
    return stage_range_check(weights_source_config(c->source), begin, end, err);
}

/* All but experts and the rows of a set. */
static enum status other_accounts(const struct compute_thread *c, int begin, int end, const struct stage_forward_sizes *sizes,
                                  struct budget *budget, struct error *err)
{
    *budget = (struct budget){0};
    budget_add(budget, "weights", stage_weights_dense_bytes(c->source, begin, end), "give this node fewer layers");
    stage_forward_budget(budget, c->source, begin, end, sizes);
    budget_add(budget, "runtime", RUNTIME_BYTES, NULL);
    return memory_plan_limit((uint64_t)c->options->memory, &budget->limit, err);
}

/* Summed and refused before anything is allocated. has_weights: they are there already, and an expert store with as many slots as it has. */
static enum status plan_memory(struct compute_thread *c, int begin, int end, const struct stage_forward_sizes *sizes, int has_weights, struct memory_plan *plan,
                               struct error *err)
{
    struct budget budget;
    enum status status = other_accounts(c, begin, end, sizes, &budget, err);
    if (status)
        return status;
    struct expert_options options = c->options->experts;
    if (has_weights && c->weights.store) {
        struct expert_stats stats;
        expert_store_stats(c->weights.store, &stats, NULL);
        options.slots = (int64_t)stats.slots;
    }
    status = stage_weights_plan(plan, &budget, c->source, begin, end, &options, err);
    memory_plan_log(plan, &budget);
    node_metrics_publish_memory(c->metrics, &budget);
    return status;
}

static uint64_t set_bytes(const struct model_config *config, int rows)
{
    return layer_pass_bytes(config, rows);
}

/* Where experts stream, a prompt's rows go through a layer together, as many as the memory allows, pay, and the coordinator sends in a chunk: reading each expert once for all of them
 * is what its speed depends on (docs/PERFORMANCE.md, "Prompts"). */
static int set_rows(const struct compute_thread *c, const Hearth__Assign *a, const struct stage_forward_sizes *sizes)
{
    struct budget others;
    struct error ignored;
    if (!weights_source_pack(c->source) || a->chunk_rows_max <= UNIT_ROWS_MAX ||
        other_accounts(c, (int)a->layer_begin, (int)a->layer_end, sizes, &others, &ignored))
        return 0;
    int useful = memory_plan_useful_rows(c->source, &c->options->experts, NULL), most = (int)a->chunk_rows_max;
    return memory_plan_prefill_rows(&others, set_bytes, weights_source_config(c->source), useful < most ? useful : most);
}

/* Weights and caches for the range; weights of the same range are kept. */
static enum status prepare_engine(struct compute_thread *c, const Hearth__Assign *a, struct error *err)
{
    int begin = (int)a->layer_begin, end = (int)a->layer_end;
    struct stage_forward_sizes sizes = {(int)a->max_positions, (int)a->max_sequences, (int)a->max_rows_in_flight, UNIT_ROWS_MAX, 0};
    int has_weights = c->weights.source && c->weights.layer_begin == begin && c->weights.layer_end == end;
    struct memory_plan plan = {0};
    sizes.set_rows_max = set_rows(c, a, &sizes);
    if (c->weights.source && !has_weights)
        stage_weights_release(&c->weights);
    enum status status = plan_memory(c, begin, end, &sizes, has_weights, &plan, err);
    if (has_weights && (status || plan.streams != (c->weights.store != NULL))) { /* what is new does not fit beside them: anew */
        stage_weights_release(&c->weights);
        has_weights = 0;
        status = plan_memory(c, begin, end, &sizes, 0, &plan, err);
    }
    if (!status && !has_weights)
        status = stage_weights_load(&c->weights, c->source, begin, end, &plan, &c->options->experts, err);
    if (!status && !c->weights.store)
        sizes.set_rows_max = 0; /* everything is in RAM: short units are better */
    return status ? status : stage_forward_new(&c->forward, &c->weights, &c->kernels, &sizes, err);
}

static void on_assign(struct compute_thread *c, const Hearth__Envelope *e, struct outbox *out)
{
    const Hearth__Assign *a = e->assign;
    struct error err;
    end_stage(c);
    atomic_store(&c->state, COMPUTE_LOADING);
    log_line(LOG_INFO, "epoch %u: layers %u-%u, stage %u of %u", e->epoch->counter, a->layer_begin, a->layer_end, a->stage + 1,
             a->n_stages);
    struct stage_config config = {.epoch_instance = e->epoch->instance,
                                  .epoch_counter = e->epoch->counter,
                                  .stage = (int)a->stage,
                                  .n_stages = (int)a->n_stages,
                                  .max_positions = (int)a->max_positions,
                                  .max_sequences = (int)a->max_sequences,
                                  .max_rows_in_flight = (int)a->max_rows_in_flight,
                                  .unit_rows_max = UNIT_ROWS_MAX};
    uint32_t code = REFUSE_RANGE;
    enum status status = check_range(c, (int)a->layer_begin, (int)a->layer_end, &err);
    if (!status) {
        status = prepare_engine(c, a, &err);
        code = status == STATUS_NO_MEMORY ? REFUSE_MEMORY : REFUSE_INTERNAL;
    }
    if (!status)
        status = stage_new(&c->stage, &config, stage_forward_engine(c->forward), &err);
    if (status) {
        log_line(LOG_ERROR, "%s", err.text);
        put_refuse(e, code, err.text, out);
        atomic_store(&c->state, COMPUTE_FAILED);
        end_stage(c);
        hand_out(c, out);
        put_out(c, &c->out, (struct queue_item){NET_FAILED, NULL, 0});
        return;
    }
    put_ready(c, e, out);
    atomic_store(&c->state, COMPUTE_READY);
    log_line(LOG_INFO, "ready");
}

static void note_answer(struct compute_thread *c, const Hearth__Envelope *e)
{
    if (e->body_case != HEARTH__ENVELOPE__BODY_OPEN && e->body_case != HEARTH__ENVELOPE__BODY_DROP)
        return;
    const struct stage_counters *counters = stage_counters(c->stage);
    struct answer_figures figures = {.now_ns = clock_now_ns(clock_monotonic()), .rows = counters->rows_done, .busy_ns = counters->busy_ns};
    if (c->weights.store)
        expert_store_stats(c->weights.store, &figures.experts, NULL);
    if (e->body_case == HEARTH__ENVELOPE__BODY_OPEN)
        answer_log_begin(&c->answers, e->open->sequence, &figures);
    else
        answer_log_end(&c->answers, e->drop->sequence, &figures);
}

static void handle_item(struct compute_thread *c, struct queue_item *item, struct outbox *out)
{
    struct stage_message *message = item->data;
    if (item->kind == COMPUTE_FORGET) {
        end_stage(c);
        if (atomic_load(&c->state) != COMPUTE_FAILED) /* heartbeats go on saying so */
            atomic_store(&c->state, COMPUTE_WAITING);
    } else if (item->kind == COMPUTE_ASSIGN)
        on_assign(c, message->envelope, out);
    else if (c->stage) {
        note_answer(c, message->envelope);
        stage_handle(c->stage, message->envelope, message->rows, clock_now_ns(clock_monotonic()), out);
    }
    if (message)
        stage_message_free(&message);
    hand_out(c, out);
}

/* Now and then, and when there is nothing to do. */
static void publish_experts(struct compute_thread *c)
{
    uint64_t now_ns = clock_now_ns(clock_monotonic());
    if (now_ns - c->published_ns < PUBLISH_NS)
        return;
    c->published_ns = now_ns;
    struct expert_stats sum, layers[LAYERS_MAX + 1] = {0};
    if (!c->weights.store) {
        node_metrics_publish_experts(c->metrics, NULL, NULL, 0, 0);
        return;
    }
    expert_store_stats(c->weights.store, &sum, layers);
    node_metrics_publish_experts(c->metrics, &sum, layers, c->weights.layer_begin, c->weights.layers_end - c->weights.layer_begin);
}

static void run_unit(struct compute_thread *c, struct outbox *out)
{
    atomic_store(&c->unit_start_ns, clock_now_ns(clock_monotonic()));
    if (c->options->slow_unit_ms)
        nanosleep(&(struct timespec){c->options->slow_unit_ms / 1000, c->options->slow_unit_ms % 1000 * 1000000}, NULL);
    stage_run_unit(c->stage, clock_monotonic(), out);
    atomic_store(&c->unit_start_ns, 0);
    atomic_fetch_add(&c->progress, 1);
    publish_experts(c);
    const struct stage_counters *counters = stage_counters(c->stage);
    atomic_store(&c->rows, c->rows_before + counters->rows_done);
    atomic_store(&c->busy_ns, c->busy_before_ns + counters->busy_ns);
    atomic_store(&c->queue_ns, c->queue_before_ns + counters->queue_ns);
    hand_out(c, out);
}

static void *run(void *argument)
{
    struct compute_thread *c = argument;
    struct outbox out;
    outbox_init(&out, 4 * STAGE_UNIT_MESSAGES_MAX);
    while (!atomic_load(&c->should_stop)) {
        struct queue_item item;
        while (message_queue_take(&c->in, &item))
            handle_item(c, &item, &out);
        if (c->stage && stage_has_work(c->stage)) {
            run_unit(c, &out);
            continue;
        }
        publish_experts(c);
        if (c->weights.store)
            expert_store_idle(c->weights.store);
        struct pollfd fd = {c->in.event_fd, POLLIN, 0};
        poll(&fd, 1, IDLE_MS);
        if (c->stage) {
            stage_expire(c->stage, clock_now_ns(clock_monotonic()), &out);
            hand_out(c, &out);
        }
    }
    end_stage(c);
    if (c->weights.source)
        stage_weights_release(&c->weights);
    outbox_release(&out);
    atomic_store(&c->has_ended, 1);
    return NULL;
}

enum status compute_thread_start(struct compute_thread *c, const struct node_options *options, struct weights_source *source,
                                 const struct kernels *kernels, struct node_metrics *metrics, struct error *err)
{
    c->kernels = *kernels;
    c->options = options;
    c->source = source;
    c->metrics = metrics;
    parallel_set_threads(options->threads ? (int)options->threads : parallel_cores());
    if (!message_queue_init(&c->in) || !message_queue_init(&c->out) || !message_queue_init(&c->rows_out))
        return error_errno(err, STATUS_IO, "eventfd");
    if (pthread_create(&c->thread, NULL, run, c))
        return error_set(err, STATUS_NO_MEMORY, "no thread to be had for computing");
    return STATUS_OK;
}

int compute_thread_stop(struct compute_thread *c, int deadline_ms)
{
    struct queue_item item;
    atomic_store(&c->should_stop, 1);
    for (int waited = 0; !atomic_load(&c->has_ended); waited++) {
        if (waited == deadline_ms)
            return 0;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    pthread_join(c->thread, NULL);
    while (message_queue_take(&c->in, &item)) {
        struct stage_message *message = item.data;
        if (message)
            stage_message_free(&message);
    }
    while (message_queue_take(&c->out, &item) || message_queue_take(&c->rows_out, &item))
        if (item.kind == NET_OUTGOING) {
            free(((struct outgoing *)item.data)->bytes);
            free(item.data);
        }
    message_queue_release(&c->in);
    message_queue_release(&c->out);
    message_queue_release(&c->rows_out);
    return 1;
}
