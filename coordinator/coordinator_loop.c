#include "coordinator/coordinator_loop.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"
#include "common/memory.h"
#include "coordinator/http_server.h"
#include "coordinator/placement.h"
#include "model/numeric_class.h"
#include "proto/endpoint.h"
#include "proto/zmq_transport.h"

enum {
    RECEIVE_MAX = 64, /* each may bring a row of logits, 620 KB with GLM-5.2, that waits for its asker until the end of the turn */
    LIST_MAX = 32,
    KEY_FILE_BYTES_MAX = 4096,
};

struct coordinator {
    const struct coordinator_options *options;
    struct weights_source *source;
    struct tokenizer *tokenizer;
    struct generation_config generation;
    uint64_t layer_bytes[LAYERS_MAX + 1];
    struct key_pair keys;
    struct trusted_keys trusted;
    struct zmq_transport *transport;
    struct cluster *cluster;
    struct http_server *http;
    struct outbox out;
    uint32_t connected_map; /* whose stage 0 rows go to */
    char *api_key, *model_name, *hosts, *cors, *row_endpoint;
    const char *host_list[LIST_MAX], *cors_list[LIST_MAX];
    int n_hosts, n_cors;
};

static volatile sig_atomic_t asked_to_stop;

static void on_stop(int signal_number)
{
    (void)signal_number;
    asked_to_stop = 1;
}

static enum status open_model(struct coordinator *c, struct error *err)
{
    const char *dir = c->options->model;
    char *tokenizer = xasprintf("%s/tokenizer.json", dir), *generation = xasprintf("%s/generation_config.json", dir);
    enum status status = weights_source_open(&c->source, dir, err);
    if (!status)
        status = tokenizer_open(&c->tokenizer, tokenizer, err);
    if (!status)
        status = generation_config_read(&c->generation, generation, err);
    free(tokenizer);
    free(generation);
    if (status)
        return status;
    const struct model_config *m = weights_source_config(c->source);
    for (int layer = 0; layer < config_layers_with_mtp(m); layer++) {
        c->layer_bytes[layer] = weights_source_part_bytes(c->source, PART_DENSE, layer);
        if (m->is_sparse[layer])
            c->layer_bytes[layer] += weights_source_part_bytes(c->source, PART_EXPERTS, layer);
    }
    c->layer_bytes[0] += weights_source_part_bytes(c->source, PART_EMBEDDING, 0);
    c->layer_bytes[m->n_layers - 1] += weights_source_part_bytes(c->source, PART_HEAD, 0);
    if (tokenizer_size(c->tokenizer) > m->vocab_size)
        return error_set(err, STATUS_INVALID, "%s/tokenizer.json has ids up to %d, but vocab_size is %d", dir,
                         tokenizer_size(c->tokenizer) - 1, m->vocab_size);
    return STATUS_OK;
}

static enum status open_keys(struct coordinator *c, struct error *err)
{
    const struct coordinator_options *o = c->options;
    if (o->plaintext) {
        log_line(LOG_WARNING, "plaintext: whoever reaches the ports can read every conversation and send anything");
        return STATUS_OK;
    }
    if (!o->key || !o->trust)
        return error_set(err, STATUS_INVALID,
                         "--key and --trust are needed (hearth keys new FILE, hearth keys trust FILE KEY NAME), or --plaintext");
    enum status status = key_pair_read(o->key, &c->keys, err);
    return status ? status : trusted_keys_read(&c->trusted, o->trust, err);
}

static enum status open_transport(struct coordinator *c, struct error *err)
{
    const struct coordinator_options *o = c->options;
    struct zmq_transport_options t = {.role = ROLE_COORDINATOR,
                                      .control_endpoint = o->control,
                                      .row_endpoint = o->rows,
                                      .keys = o->plaintext ? NULL : &c->keys,
                                      .plaintext = o->plaintext};
    enum status status = zmq_transport_open(&c->transport, &t, err);
    if (status)
        return status;
    zmq_transport_trust(c->transport, &c->trusted);
    return endpoint_advertised(&c->row_endpoint, zmq_transport_row_endpoint(c->transport), o->advertise, err);
}

static enum status open_cluster(struct coordinator *c, struct error *err)
{
    const struct coordinator_options *o = c->options;
    const struct model_config *m = weights_source_config(c->source);
    struct cluster_config config = {
        .model = m,
        .numeric = {NUMERIC_CONTRACT, numeric_activations(c->source), NUMERIC_CACHE, NUMERIC_WIRE, weights_source_identity(c->source)},
        .n_tokens = tokenizer_size(c->tokenizer),
        .n_nodes = (int)o->nodes,
        .layers = o->layers,
        .layer_bytes = c->layer_bytes,
        .row_endpoint = c->row_endpoint,
        .max_positions = (int)o->context,
        .max_sequences = (int)o->sequences,
        .queue_max = (int)o->queue,
        .chunk_rows = (int)o->chunk,
        .max_rows_in_flight = (int)(o->chunk ? 4 * o->chunk : 2 * STEP_ROWS_MAX) + (int)o->sequences,
        .request_deadline_ns = (uint64_t)o->deadline_s * 1000000000u};
    snprintf(config.row_key, sizeof config.row_key, "%s", c->keys.public_key);
    if (getrandom(&config.instance, sizeof config.instance, 0) != sizeof config.instance)
        return error_errno(err, STATUS_IO, "getrandom");
    struct layer_range ranges[CLUSTER_NODES_MAX];
    const char *names[CLUSTER_NODES_MAX];
    char *storage = NULL;
    enum status status = o->layers ? placement_parse(m, o->layers, CLUSTER_NODES_MAX, names, ranges, &config.n_nodes, &storage, err)
                                   : placement_split(m, c->layer_bytes, config.n_nodes, ranges, err);
    free(storage);
    if (!status)
        c->cluster = cluster_new(&config);
    return status;
}

/* Splits at commas; the list points into text. */
static int split(char *text, const char **list)
{
    int n = 0;
    char *save = NULL;
    for (char *word = text ? strtok_r(text, ", ", &save) : NULL; word && n < LIST_MAX; word = strtok_r(NULL, ", ", &save))
        list[n++] = word;
    return n;
}

static enum status read_api_key(struct coordinator *c, struct error *err)
{
    size_t length;
    if (!c->options->api_key_file)
        return STATUS_OK;
    enum status status = file_read_all(&c->api_key, &length, c->options->api_key_file, KEY_FILE_BYTES_MAX, err);
    if (status)
        return status;
    c->api_key[strcspn(c->api_key, "\r\n")] = 0;
    return *c->api_key ? STATUS_OK : error_set(err, STATUS_INVALID, "%s: the key is empty", c->options->api_key_file);
}

static enum status open_http(struct coordinator *c, struct error *err)
{
    const struct coordinator_options *o = c->options;
    enum status status = read_api_key(c, err);
    if (status)
        return status;
    c->hosts = o->hosts ? xstrdup(o->hosts) : NULL;
    c->cors = o->cors ? xstrdup(o->cors) : NULL;
    c->n_hosts = split(c->hosts, c->host_list);
    c->n_cors = split(c->cors, c->cors_list);
    size_t end = strlen(o->model);
    while (end > 1 && o->model[end - 1] == '/')
        end--;
    char *path = strndup(o->model, end), *slash = strrchr(path, '/');
    c->model_name = xstrdup(o->model_name ? o->model_name : slash ? slash + 1 : path);
    free(path);
    struct http_server_config config = {.listen = o->listen,
                                        .api_key = c->api_key,
                                        .allowed_hosts = c->host_list,
                                        .n_allowed_hosts = c->n_hosts,
                                        .cors_origins = c->cors_list,
                                        .n_cors_origins = c->n_cors,
                                        .model_name = c->model_name,
                                        .created = (int64_t)time(NULL),
                                        .tokenizer = c->tokenizer,
                                        .generation = &c->generation,
                                        .model = weights_source_config(c->source),
                                        .context_length = (int)o->context,
                                        .allow_logits = o->allow_logits};
    return http_server_open(&c->http, &config, c->cluster, err);
}

/* At most RECEIVE_MAX messages a turn, so that one talkative node cannot keep people waiting. Returns 1 when there may be more. */
static int receive(struct coordinator *c, uint64_t now_ns)
{
    struct transport *transport = zmq_transport_base(c->transport);
    struct packet packet;
    for (int n = 0; n < RECEIVE_MAX; n++) {
        if (!transport->receive(transport, &packet))
            return 0;
        Hearth__Envelope *envelope;
        struct error err;
        if (wire_decode(&envelope, packet.header, packet.header_bytes, packet.rows, packet.rows_bytes, 0, &err)) {
            log_line(LOG_WARNING, "a message of key '%s' was refused: %s", packet.key, err.text);
            continue;
        }
        cluster_on_message(c->cluster, packet.peer, packet.key, packet.channel, envelope, packet.rows, now_ns, &c->out);
        wire_free(&envelope);
        outbox_flush(&c->out, transport, NULL); /* CLUSTER_MESSAGES_MAX holds for each message */
    }
    return 1;
}

/* Rows go to the first stage of the present map. */
static void follow_map(struct coordinator *c)
{
    const char *endpoint = NULL, *key = NULL;
    struct error err;
    uint32_t map = cluster_head(c->cluster, &endpoint, &key);
    if (map == c->connected_map)
        return;
    if (zmq_transport_set_next(c->transport, map ? endpoint : NULL, map ? key : NULL, &err))
        log_line(LOG_ERROR, "%s", err.text);
    c->connected_map = map;
}

static void wait_for_something(struct coordinator *c, struct clock *clock, int may_wait)
{
    struct pollfd fds[] = {{zmq_transport_fd(c->transport), POLLIN, 0}, {http_server_fd(c->http), POLLIN, 0}};
    uint64_t now_ns = clock_now_ns(clock), tick_ns = cluster_next_tick_ns(c->cluster, now_ns);
    int timeout_ms = (int)((tick_ns - now_ns) / 1000000), http_ms = http_server_timeout_ms(c->http);
    timeout_ms = timeout_ms < http_ms ? timeout_ms : http_ms;
    poll(fds, 2, may_wait ? timeout_ms : 0);
}

static void run_loop(struct coordinator *c)
{
    struct clock *clock = clock_monotonic();
    struct transport *transport = zmq_transport_base(c->transport);
    int is_draining = 0, has_more = 0;
    while (!is_draining || !http_server_is_drained(c->http)) {
        wait_for_something(c, clock, !has_more);
        uint64_t now_ns = clock_now_ns(clock);
        if (asked_to_stop && !is_draining) {
            log_line(LOG_INFO, "stopping: %d answers may take %lld s to end", cluster_n_running(c->cluster),
                     (long long)c->options->drain_s);
            cluster_drain(c->cluster);
            http_server_drain(c->http, now_ns + (uint64_t)c->options->drain_s * 1000000000u);
            is_draining = 1;
        }
        has_more = receive(c, now_ns);
        http_server_run(c->http, now_ns, &c->out); /* may cancel everything */
        outbox_flush(&c->out, transport, NULL);
        cluster_tick(c->cluster, now_ns, &c->out);
        follow_map(c); /* before the tick's steps go to the first stage */
        outbox_flush(&c->out, transport, NULL);
        http_server_on_events(c->http, now_ns, &c->out); /* may cancel everything */
        outbox_flush(&c->out, transport, NULL);
    }
}

static void close_all(struct coordinator *c)
{
    http_server_close(&c->http);
    if (c->cluster)
        cluster_free(&c->cluster);
    if (c->transport)
        zmq_transport_log_counters(c->transport);
    zmq_transport_close(&c->transport);
    trusted_keys_release(&c->trusted);
    tokenizer_close(&c->tokenizer);
    weights_source_close(&c->source);
    outbox_release(&c->out);
    free(c->api_key);
    free(c->model_name);
    free(c->hosts);
    free(c->cors);
    free(c->row_endpoint);
}

enum status coordinator_run(const struct coordinator_options *options, struct error *err)
{
    struct coordinator *c = xcalloc(1, sizeof *c);
    c->options = options;
    outbox_init(&c->out, CLUSTER_MESSAGES_MAX);
    struct sigaction stop = {.sa_handler = on_stop}, ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
    enum status status = options->model ? open_model(c, err) : error_set(err, STATUS_INVALID, "--model DIR is needed");
    if (!status)
        status = open_keys(c, err);
    if (!status)
        status = open_transport(c, err);
    if (!status)
        status = open_cluster(c, err);
    if (!status)
        status = open_http(c, err);
    if (!status) {
        log_line(LOG_INFO, "model %s, identity %s", c->model_name, weights_source_identity(c->source));
        log_line(LOG_INFO, "nodes report to %s, results come to %s; clients ask at http://%.*s:%d/v1",
                 zmq_transport_control_endpoint(c->transport), c->row_endpoint, (int)(strrchr(options->listen, ':') - options->listen),
                 options->listen, http_server_port(c->http));
        run_loop(c);
    }
    close_all(c);
    free(c);
    return status;
}
