/* The API in front of one process that holds the whole model, with faults on demand. Prints "port N" and serves until SIGTERM. SIGUSR1
 * takes the layers away, SIGUSR2 brings them back. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"
#include "common/memory.h"
#include "common/options.h"
#include "coordinator/http_server.h"
#include "tests/api/local_cluster.h"

struct options {
    const char *model, *key, *host, *origin, *listen, *script;
    int64_t context, sequences, queue, chunk, step_ms, fail_after, head_ms, body_ms, idle_ms, keep_alive_ms, stream_bytes,
        socket_bytes, body_bytes, connections, drain_ms, default_max_new, threads;
    int logits, never_admits;
};

#define AT(member) offsetof(struct options, member)
#define NUMBER(name, member, value, help_)                                                                                                 \
    {                                                                                                                                      \
        name, OPTION_INT, AT(member), value, 0, 1e12, .metavar = "N", .help = help_                                                        \
    }
static const struct option_row rows[] = {
    {"model", OPTION_TEXT, AT(model), .metavar = "DIR", .help = "pack or vendor folder"},
    {"key", OPTION_TEXT, AT(key), .metavar = "KEY", .help = "API key"},
    {"host", OPTION_TEXT, AT(host), .metavar = "NAME", .help = "one more allowed host"},
    {"origin", OPTION_TEXT, AT(origin), .metavar = "ORIGIN", .help = "allowed origin"},
    {"listen", OPTION_TEXT, AT(listen), "127.0.0.1:0", .metavar = "ADDRESS:PORT", .help = "where to listen; port 0: any"},
    {"script", OPTION_TEXT, AT(script), .metavar = "FILE", .help = "JSON list of ids that every answer consists of"},
    NUMBER("context", context, "0", "positions of the model"),
    NUMBER("sequences", sequences, "4", "requests at once"),
    NUMBER("queue", queue, "16", "requests that wait"),
    NUMBER("chunk", chunk, "64", "prefill rows a step"),
    NUMBER("step-ms", step_ms, "0", "a step takes this long"),
    NUMBER("fail-after", fail_after, "0", "fail at this token"),
    NUMBER("head-ms", head_ms, "0", "head deadline"),
    NUMBER("body-ms", body_ms, "0", "body deadline"),
    NUMBER("idle-ms", idle_ms, "0", "idle deadline"),
    NUMBER("keep-alive-ms", keep_alive_ms, "0", "silence before a comment"),
    NUMBER("stream-bytes", stream_bytes, "0", "unread bytes of a stream"),
    NUMBER("socket-bytes", socket_bytes, "0", "kernel's send buffer"),
    NUMBER("body-bytes", body_bytes, "0", "largest body"),
    NUMBER("connections", connections, "0", "connections at once"),
    NUMBER("drain-ms", drain_ms, "2000", "what running answers get after SIGTERM"),
    NUMBER("default-max-new", default_max_new, "0", "longest answer where the request leaves it open"),
    NUMBER("threads", threads, "1", "threads of the engine"),
    {"logits", OPTION_FLAG, AT(logits), .help = "serve /v1/logits"},
    {"never-admits", OPTION_FLAG, AT(never_admits), .help = "requests stay in the queue"},
};

static volatile sig_atomic_t is_ending, is_complete = 1;

static void on_signal(int number)
{
    if (number == SIGTERM)
        is_ending = 1;
    else
        is_complete = number == SIGUSR2;
}

static enum status read_script(const char *path, struct local_cluster_options *o, struct error *err)
{
    json_t *list;
    if (!path)
        return STATUS_OK;
    enum status status = json_read_file(&list, path, 1 << 24, err);
    if (status)
        return status;
    int *ids = xcalloc(json_array_size(list) + 1, sizeof *ids);
    for (size_t i = 0; i < json_array_size(list); i++)
        ids[i] = (int)json_integer_value(json_array_get(list, i));
    o->script = ids;
    o->n_script = (int)json_array_size(list);
    json_decref(list);
    return STATUS_OK;
}

static void loop(struct http_server *server, struct cluster *cluster, uint64_t drain_ns)
{
    struct outbox outbox = {0}; /* the local cluster sends nothing */
    int was_complete = 1, is_draining = 0;
    while (!http_server_is_drained(server)) {
        uint64_t now = clock_now_ns(clock_monotonic()), tick = cluster_next_tick_ns(cluster, now);
        int until_tick = tick > now ? (int)((tick - now + 999999) / 1000000) : 0, ms = http_server_timeout_ms(server);
        poll(&(struct pollfd){http_server_fd(server), POLLIN, 0}, 1, ms < until_tick ? ms : until_tick);
        now = clock_now_ns(clock_monotonic());
        if (is_complete != was_complete)
            local_cluster_set_complete(cluster, was_complete = is_complete);
        if (is_ending && !is_draining) {
            is_draining = 1;
            cluster_drain(cluster);
            http_server_drain(server, now + drain_ns);
        }
        http_server_run(server, now, &outbox);
        cluster_tick(cluster, now, &outbox);
        http_server_on_events(server, now, &outbox);
    }
}

static enum status serve(const struct options *o, struct error *err)
{
    const uint64_t ms = 1000000;
    char *tokenizer_path = xasprintf("%s/tokenizer.json", o->model), *generation_path = xasprintf("%s/generation_config.json", o->model);
    struct model *model = NULL;
    struct tokenizer *tokenizer = NULL;
    struct generation_config generation;
    struct local_cluster_options local = {.max_sequences = (int)o->sequences,
                                          .queue_max = (int)o->queue,
                                          .chunk_rows = (int)o->chunk,
                                          .step_ns = (uint64_t)o->step_ms * ms,
                                          .fail_after = (int)o->fail_after,
                                          .never_admits = o->never_admits};
    struct cluster *cluster = NULL;
    struct http_server *server = NULL;
    struct model_options options = {.isa = "auto", .n_threads = (int)o->threads, .max_positions = (int)o->context};
    enum status status = model_open(&model, o->model, &options, err);
    if (!status)
        status = tokenizer_open(&tokenizer, tokenizer_path, err);
    if (!status)
        status = generation_config_read(&generation, generation_path, err);
    if (!status)
        status = read_script(o->script, &local, err);
    if (!status) {
        local.model = model;
        local.n_tokens = tokenizer_size(tokenizer);
        cluster = local_cluster_new(&local);
        struct http_server_config config = {.listen = o->listen,
                                            .api_key = o->key,
                                            .allowed_hosts = &o->host,
                                            .n_allowed_hosts = o->host != NULL,
                                            .cors_origins = &o->origin,
                                            .n_cors_origins = o->origin != NULL,
                                            .model_name = "kindling",
                                            .created = 1750000000,
                                            .tokenizer = tokenizer,
                                            .generation = &generation,
                                            .model = model->config,
                                            .context_length = model->max_positions,
                                            .allow_logits = o->logits,
                                            .default_max_new = (int)o->default_max_new,
                                            .limits = {.body_bytes_max = (size_t)o->body_bytes,
                                                       .stream_bytes_max = (size_t)o->stream_bytes,
                                                       .socket_bytes = (size_t)o->socket_bytes,
                                                       .connections_max = (int)o->connections,
                                                       .head_deadline_ns = (uint64_t)o->head_ms * ms,
                                                       .body_deadline_ns = (uint64_t)o->body_ms * ms,
                                                       .idle_deadline_ns = (uint64_t)o->idle_ms * ms,
                                                       .keep_alive_ns = (uint64_t)o->keep_alive_ms * ms}};
        status = http_server_open(&server, &config, cluster, err);
    }
    if (!status) {
        printf("port %d\n", http_server_port(server));
        fflush(stdout);
        loop(server, cluster, (uint64_t)o->drain_ms * ms);
    }
    http_server_close(&server);
    local_cluster_free(&cluster);
    free((int *)local.script);
    tokenizer_close(&tokenizer);
    model_close(&model);
    free(tokenizer_path);
    free(generation_path);
    return status;
}

int main(int argc, char **argv)
{
    struct options options = {0};
    struct error err = {0};
    const char *positional[1];
    int n_positional;
    enum status status = options_parse(rows, sizeof rows / sizeof *rows, argc, argv, &options, positional, 0, &n_positional, &err);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (!status && !options.model)
        status = error_set(&err, STATUS_INVALID, "--model is needed");
    if (!status)
        status = serve(&options, &err);
    if (status)
        fprintf(stderr, "api_server: %s\n", err.text);
    return status ? EXIT_FAILURE : EXIT_SUCCESS;
}
