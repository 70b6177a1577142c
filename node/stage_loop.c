#include "node/stage_loop.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/budget.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/memory.h"
#include "kernels/kernels.h"
#include "kernels/parallel.h"
#include "model/numeric_class.h"
#include "node/compute_thread.h"
#include "node/metrics_endpoint.h"
#include "node/node_metrics.h"
#include "proto/endpoint.h"
#include "proto/wire_rules.h"
#include "proto/zmq_transport.h"

#define SECOND_NS UINT64_C(1000000000)
#define HELLO_NS (SECOND_NS / 2)   /* while nobody answers */
#define REFUSED_NS (5 * SECOND_NS) /* after a refusal: a person has to do something */
#define HEARTBEAT_NS (SECOND_NS / 2)
#define ROWS_HELD_NS (2 * SECOND_NS) /* without any movement */
#define SILENCE_NS (2 * SECOND_NS)   /* of the coordinator: it is gone */

enum {
    POLL_MS = 50,
    HELD_POLL_MS = 2, /* while rows wait for room */
    STOP_MS = 3000,   /* for the unit that runs when the process is asked to stop */
};

struct node {
    const struct node_options *options;
    struct weights_source *source;
    struct key_pair keys;
    struct zmq_transport *transport;
    struct compute_thread compute;
    struct node_metrics *metrics;
    struct metrics_endpoint *endpoint;
    char *row_endpoint;
    uint64_t boot, heard_ns, hello_ns, heartbeat_ns;
    int is_caught_up;        /* everything that has arrived was read: only then silence means anything */
    uint64_t epoch_instance; /* 0: not assigned */
    uint32_t epoch_counter;
    struct outbox out;
    struct outgoing *held_rows; /* taken from the compute thread, and the transport has no room yet */
    uint64_t rows_moved_ns;
};

static volatile sig_atomic_t asked_to_stop;

static void on_stop(int signal_number)
{
    (void)signal_number;
    asked_to_stop = 1;
}

static void put(struct node *n, Hearth__Envelope *e)
{
    Hearth__Epoch epoch = HEARTH__EPOCH__INIT;
    epoch.instance = n->epoch_instance;
    epoch.counter = n->epoch_counter;
    e->protocol = PROTOCOL_VERSION;
    e->epoch = &epoch;
    outbox_put(&n->out, PEER_COORDINATOR, CHANNEL_CONTROL, e, NULL, 0);
}

static void say_hello(struct node *n)
{
    const struct model_config *m = weights_source_config(n->source);
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Hello hello = HEARTH__HELLO__INIT;
    Hearth__NumericClass numeric = HEARTH__NUMERIC_CLASS__INIT;
    numeric.contract = NUMERIC_CONTRACT;
    numeric.activations = (char *)numeric_activations(n->source);
    numeric.cache = NUMERIC_CACHE;
    numeric.wire = NUMERIC_WIRE;
    numeric.model_identity = (char *)weights_source_identity(n->source);
    hello.protocol = PROTOCOL_VERSION;
    hello.node = (char *)n->options->name;
    hello.version = HEARTH_VERSION;
    hello.numeric = &numeric;
    hello.n_layers = (uint32_t)m->n_layers;
    hello.has_mtp = (uint32_t)m->n_mtp_layers;
    hello.row_endpoint = n->row_endpoint;
    hello.row_key = n->keys.public_key;
    hello.memory_bytes = n->options->memory ? (uint64_t)n->options->memory : memory_available_bytes();
    hello.threads = (uint32_t)(n->options->threads ? n->options->threads : parallel_cores());
    hello.boot = n->boot;
    e.body_case = HEARTH__ENVELOPE__BODY_HELLO;
    e.hello = &hello;
    put(n, &e);
}

static void put_experts(struct node *n, Hearth__Heartbeat *beat)
{
    struct expert_stats sum;
    node_metrics_experts(n->metrics, &sum);
    beat->expert_hits = sum.hits;
    beat->expert_misses = sum.misses;
    beat->expert_read_bytes = sum.bytes_read;
    beat->expert_wait_ms = sum.wait_ns / 1000000;
    beat->expert_slots_used = sum.slots_used;
    beat->expert_slots = sum.slots;
}

static void send_heartbeat(struct node *n, uint64_t now_ns)
{
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Heartbeat beat = HEARTH__HEARTBEAT__INIT;
    struct compute_thread *c = &n->compute;
    uint64_t unit_start_ns = atomic_load(&c->unit_start_ns);
    beat.progress = atomic_load(&c->progress);
    beat.unit_ms = unit_start_ns && now_ns > unit_start_ns ? (uint32_t)((now_ns - unit_start_ns) / 1000000) + 1 : 0;
    beat.unit_ms = beat.unit_ms < MILLISECONDS_MAX ? beat.unit_ms : MILLISECONDS_MAX;
    beat.state = compute_state_names[atomic_load(&c->state)];
    beat.rows = atomic_load(&c->rows);
    beat.busy_ms = atomic_load(&c->busy_ns) / 1000000;
    beat.queue_ms = atomic_load(&c->queue_ns) / 1000000;
    beat.boot = n->boot;
    put_experts(n, &beat);
    e.body_case = HEARTH__ENVELOPE__BODY_HEARTBEAT;
    e.heartbeat = &beat;
    put(n, &e);
}

/* To the compute thread. The net thread takes nothing from the network while that queue is half full, so there is always room. */
static void hand_in(struct node *n, enum compute_item kind, Hearth__Envelope **envelope, const void *rows, size_t rows_bytes)
{
    struct stage_message *message = NULL;
    if (envelope) {
        message = xcalloc(1, sizeof *message);
        message->envelope = *envelope;
        *envelope = NULL;
        if (rows_bytes) {
            message->rows = xcalloc(1, rows_bytes);
            memcpy(message->rows, rows, rows_bytes);
        }
    }
    CHECK(message_queue_put(&n->compute.in, (struct queue_item){kind, message, rows_bytes + sizeof *message}));
}

/* The coordinator is gone or does not want us: no epoch, no neighbours; the weights stay. */
static void leave(struct node *n, uint64_t hello_ns)
{
    struct error err;
    n->hello_ns = hello_ns;
    if (!n->epoch_instance)
        return;
    n->epoch_instance = n->epoch_counter = 0;
    node_metrics_publish_epoch(n->metrics, 0, 0, 0);
    zmq_transport_set_previous(n->transport, "");
    zmq_transport_set_next(n->transport, NULL, NULL, &err);
    hand_in(n, COMPUTE_FORGET, NULL, NULL, 0);
}

static void on_assign(struct node *n, Hearth__Envelope **envelope)
{
    const Hearth__Assign *a = (*envelope)->assign;
    struct error err;
    n->epoch_instance = (*envelope)->epoch->instance;
    n->epoch_counter = (*envelope)->epoch->counter;
    node_metrics_publish_epoch(n->metrics, n->epoch_counter, (int)a->layer_begin, (int)a->layer_end);
    zmq_transport_set_previous(n->transport, a->previous_key);
    if (zmq_transport_set_next(n->transport, a->next_endpoint, a->next_key, &err))
        log_line(LOG_ERROR, "%s", err.text);
    hand_in(n, COMPUTE_ASSIGN, envelope, NULL, 0);
}

static void on_control(struct node *n, Hearth__Envelope **envelope, uint64_t now_ns)
{
    const Hearth__Envelope *e = *envelope;
    n->heard_ns = now_ns;
    switch (e->body_case) {
    case HEARTH__ENVELOPE__BODY_ASSIGN:
        /* Of one coordinator only what is newer counts; another one (it was restarted) counts while we wait. */
        if (n->epoch_instance == 0 || (e->epoch->instance == n->epoch_instance && e->epoch->counter > n->epoch_counter))
            on_assign(n, envelope);
        break;
    case HEARTH__ENVELOPE__BODY_REFUSE:
        if (e->refuse->scope == HEARTH__SCOPE__SCOPE_NODE) {
            log_line(LOG_ERROR, "the coordinator refuses this node: %s", e->refuse->sentence);
            leave(n, now_ns + REFUSED_NS);
        } else {
            log_line(LOG_WARNING, "the coordinator refused a message: %s", e->refuse->sentence);
        }
        break;
    case HEARTH__ENVELOPE__BODY_HEARTBEAT:
        break;
    default:
        if (n->epoch_instance)
            hand_in(n, COMPUTE_MESSAGE, envelope, NULL, 0);
    }
}

static void receive(struct node *n, uint64_t now_ns)
{
    struct transport *transport = zmq_transport_base(n->transport);
    uint32_t width = (uint32_t)weights_source_config(n->source)->hidden_size;
    struct packet packet;
    while ((n->is_caught_up = message_queue_has_room(&n->compute.in)) && transport->receive(transport, &packet)) {
        Hearth__Envelope *envelope;
        struct error err;
        if (wire_decode(&envelope, packet.header, packet.header_bytes, packet.rows, packet.rows_bytes, width, &err)) {
            log_line(LOG_WARNING, "a message from %s was refused: %s",
                     packet.channel == CHANNEL_CONTROL ? "the coordinator" : "the stage before", err.text);
            continue;
        }
        if (packet.channel == CHANNEL_CONTROL)
            on_control(n, &envelope, now_ns);
        else if (n->epoch_instance && envelope->body_case == HEARTH__ENVELOPE__BODY_STEP)
            hand_in(n, COMPUTE_MESSAGE, &envelope, packet.rows, packet.rows_bytes);
        if (envelope)
            wire_free(&envelope);
    }
}

static enum status send_one(struct node *n, const struct outgoing *m, struct error *err)
{
    struct transport *transport = zmq_transport_base(n->transport);
    size_t offset = (m->header_bytes + 7) & ~(size_t)7;
    return transport->send(transport, m->peer, m->channel, m->bytes, m->header_bytes, m->rows_bytes ? m->bytes + offset : NULL,
                           m->rows_bytes, err);
}

static void free_outgoing(struct outgoing **m)
{
    free((*m)->bytes);
    free(*m);
    *m = NULL;
}

static void send_control(struct node *n, uint64_t now_ns)
{
    struct queue_item item;
    struct error err;
    outbox_flush(&n->out, zmq_transport_base(n->transport), NULL);
    while (message_queue_take(&n->compute.out, &item)) {
        struct outgoing *m = item.data;
        if (item.kind == NET_FAILED) {
            leave(n, now_ns + REFUSED_NS);
            continue;
        }
        if (send_one(n, m, &err))
            log_line(LOG_WARNING, "a message was dropped: %s", err.text); /* both sides find out by their deadlines */
        free_outgoing(&m);
    }
}

/* Rows wait here while the queue to the next stage is full: the queue behind them fills, and computing slows down to what the link takes.
 * When nothing moves for ROWS_HELD_NS, the next stage is as good as gone and rows are dropped until one is taken again. */
static void send_rows(struct node *n, uint64_t now_ns)
{
    struct queue_item item;
    struct error err;
    for (;;) {
        if (!n->held_rows && !message_queue_take(&n->compute.rows_out, &item))
            return;
        if (!n->held_rows)
            n->held_rows = item.data;
        int is_sent = !send_one(n, n->held_rows, &err);
        if (is_sent)
            n->rows_moved_ns = now_ns;
        else if (n->epoch_instance && now_ns - n->rows_moved_ns < ROWS_HELD_NS)
            return;
        else if (n->epoch_instance)
            log_line(LOG_WARNING, "rows were dropped: %s", err.text);
        free_outgoing(&n->held_rows);
    }
}

static void send_all(struct node *n, uint64_t now_ns)
{
    send_control(n, now_ns);
    send_rows(n, now_ns);
    if (!n->held_rows)
        n->rows_moved_ns = now_ns; /* nothing waits */
}

static void keep_time(struct node *n, uint64_t now_ns)
{
    if (!n->is_caught_up && n->epoch_instance)
        n->heard_ns = now_ns; /* what waits may be from the coordinator */
    if (n->epoch_instance && now_ns - n->heard_ns > SILENCE_NS) {
        log_line(LOG_WARNING, "the coordinator has been silent for %.1f s; waiting for it", (double)(now_ns - n->heard_ns) / 1e9);
        leave(n, now_ns);
    }
    if (!n->epoch_instance && now_ns >= n->hello_ns) {
        say_hello(n);
        n->hello_ns = now_ns + HELLO_NS;
    }
    if (now_ns - n->heartbeat_ns >= HEARTBEAT_NS) {
        send_heartbeat(n, now_ns);
        n->heartbeat_ns = now_ns;
    }
}

static void say_goodbye(struct node *n)
{
    Hearth__Envelope e = HEARTH__ENVELOPE__INIT;
    Hearth__Drain drain = HEARTH__DRAIN__INIT;
    e.body_case = HEARTH__ENVELOPE__BODY_DRAIN;
    e.drain = &drain;
    put(n, &e);
    send_all(n, clock_now_ns(clock_monotonic()));
    poll(NULL, 0, 2 * POLL_MS); /* ZeroMQ's thread sends it */
}

static void run_loop(struct node *n)
{
    while (!asked_to_stop) {
        struct pollfd fds[] = {{zmq_transport_fd(n->transport), POLLIN, 0},
                               {n->compute.out.event_fd, POLLIN, 0},
                               {n->held_rows ? -1 : n->compute.rows_out.event_fd, POLLIN, 0}};
        if (!message_queue_has_room(&n->compute.in))
            fds[0].fd = -1; /* what has arrived waits there; looked at again after POLL_MS */
        poll(fds, 3, n->held_rows ? HELD_POLL_MS : POLL_MS);
        uint64_t now_ns = clock_now_ns(clock_monotonic());
        receive(n, now_ns);
        keep_time(n, now_ns);
        send_all(n, now_ns);
    }
    say_goodbye(n);
}

static enum status check_options(const struct node_options *o, struct error *err)
{
    if (!o->model || !o->name || !o->coordinator)
        return error_set(err, STATUS_INVALID, "--model, --name and --coordinator are needed");
    if (!wire_is_name(o->name))
        return error_set(err, STATUS_INVALID, "--name: '%s' is not 1 to %d letters, digits, '-', '_' or '.'", o->name, NAME_BYTES_MAX);
    if (!o->plaintext && (!o->key || !o->coordinator_key))
        return error_set(
            err, STATUS_INVALID,
            "--key and --coordinator-key are needed (hearth keys new FILE; hearth keys show FILE on the coordinator), or --plaintext");
    return STATUS_OK;
}

static enum status open_transport(struct node *n, struct error *err)
{
    const struct node_options *o = n->options;
    struct zmq_transport_options t = {.role = ROLE_NODE,
                                      .control_endpoint = o->coordinator,
                                      .row_endpoint = o->bind,
                                      .keys = o->plaintext ? NULL : &n->keys,
                                      .coordinator_key = o->plaintext ? NULL : o->coordinator_key,
                                      .plaintext = o->plaintext};
    enum status status = zmq_transport_open(&n->transport, &t, err);
    if (status)
        return status;
    return endpoint_advertised(&n->row_endpoint, zmq_transport_row_endpoint(n->transport), o->advertise, err);
}

static enum status open_metrics(struct node *n, struct error *err)
{
    const struct node_metrics_config config = {.compute = &n->compute,
                                               .name = n->options->name,
                                               .model_identity = weights_source_identity(n->source),
                                               .n_layers = config_layers_with_mtp(weights_source_config(n->source))};
    n->metrics = node_metrics_new(&config);
    return metrics_endpoint_open(&n->endpoint, n->options->metrics, n->metrics, err);
}

enum status node_run(const struct node_options *options, struct error *err)
{
    struct node *n = xcalloc(1, sizeof *n);
    n->options = options;
    outbox_init(&n->out, 64);
    struct sigaction stop = {.sa_handler = on_stop}, ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    struct kernels kernels;
    int is_computing = 0;
    enum status status = check_options(options, err);
    if (!status)
        status = kernels_select(&kernels, options->isa, err); /* says now what this CPU lacks */
    if (!status)
        status = weights_source_open(&n->source, options->model, err);
    if (!status && !options->plaintext)
        status = key_pair_read(options->key, &n->keys, err);
    if (!status)
        status = open_transport(n, err);
    if (!status && getrandom(&n->boot, sizeof n->boot, 0) != sizeof n->boot)
        status = error_errno(err, STATUS_IO, "getrandom");
    if (!status)
        status = open_metrics(n, err);
    if (!status) {
        status = compute_thread_start(&n->compute, options, n->source, &kernels, n->metrics, err);
        is_computing = !status;
    }
    if (!status) {
        log_line(LOG_INFO, "node %s, model identity %s, rows come to %s, coordinator %s", options->name, weights_source_identity(n->source),
                 n->row_endpoint, options->coordinator);
        run_loop(n);
    }
    if (is_computing && !compute_thread_stop(&n->compute, STOP_MS)) {
        log_line(LOG_WARNING, "what was being computed or loaded did not end within %d ms; leaving it", STOP_MS);
        _exit(status ? EXIT_FAILURE : EXIT_SUCCESS);
    }
    metrics_endpoint_close(&n->endpoint);
    node_metrics_free(&n->metrics);
    if (n->transport)
        zmq_transport_log_counters(n->transport);
    zmq_transport_close(&n->transport);
    weights_source_close(&n->source);
    outbox_release(&n->out);
    if (n->held_rows)
        free_outgoing(&n->held_rows);
    free(n->row_endpoint);
    free(n);
    return status;
}
