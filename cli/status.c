/* hearth status: what a coordinator says about its cluster. */
#include <stdio.h>
#include <string.h>

#include "cli/client.h"
#include "cli/commands.h"

struct status_options {
    const char *api_key_file;
    int json;
};

static const char *text_of(const json_t *object, const char *key, const char *fallback)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : fallback;
}

static long long count_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* "93.1" of a hundred, "-" when there was nothing to have a share in. */
static const char *share_text(char text[16], long long part, long long whole)
{
    snprintf(text, 16, whole > 0 ? "%.1f" : "-", 100.0 * (double)part / (double)(whole > 0 ? whole : 1));
    return text;
}

/* Experts of a node that has them on disk, all since it started: hits of those asked for, what was read, waiting of the time spent computing. */
static void print_experts(const json_t *node)
{
    const json_t *experts = json_object_get(node, "experts");
    char hits[16], wait[16], slots[48];
    if (!experts) {
        printf(" %6s %9s %6s %13s", "-", "-", "-", "-");
        return;
    }
    snprintf(slots, sizeof slots, "%lld/%lld", count_of(experts, "slots_used"), count_of(experts, "slots"));
    printf(" %6s %9.1f %6s %13s", share_text(hits, count_of(experts, "hits"), count_of(experts, "hits") + count_of(experts, "misses")),
           (double)count_of(experts, "read_bytes") / 1e9, share_text(wait, count_of(experts, "wait_ms"), count_of(node, "busy_ms")), slots);
}

static void print_node(const json_t *node)
{
    const json_t *layers = json_object_get(node, "layers");
    char range[32] = "-";
    if (json_array_size(layers) == 2)
        snprintf(range, sizeof range, "%lld-%lld", (long long)json_integer_value(json_array_get(layers, 0)),
                 (long long)json_integer_value(json_array_get(layers, 1)));
    printf("  %-20.40s %-9s %-9s %8.0f s %8.1f %8lld %8lld", text_of(node, "name", "?"), range, text_of(node, "state", "?"),
           json_number_value(json_object_get(node, "since_s")), json_number_value(json_object_get(node, "rows_per_second")),
           count_of(node, "busy_ms"), count_of(node, "queue_ms"));
    print_experts(node);
    printf("  %s\n", text_of(node, "remark", ""));
}

static void print_status(const json_t *status, const struct client *client)
{
    size_t i;
    const json_t *node;
    int is_ready = json_is_true(json_object_get(status, "ready"));
    printf("%s at %s:%s: %s%s\n", text_of(status, "model", "?"), client->host, client->port,
           is_ready ? "ready" : "not ready: ", is_ready ? "" : text_of(status, "missing", "layers are missing"));
    printf("requests: %lld running, %lld waiting; since its start %lld done, %lld failed, %lld cancelled\n", count_of(status, "running"),
           count_of(status, "queued"), count_of(status, "done"), count_of(status, "failed"), count_of(status, "cancelled"));
    printf("  %-20s %-9s %-9s %10s %8s %8s %8s %6s %9s %6s %13s\n", "node", "layers", "state", "since", "rows/s", "busy ms", "queue ms", "hits %",
           "GB read", "wait %", "experts held");
    json_array_foreach(json_object_get(status, "nodes"), i, node) print_node(node);
    if (*text_of(status, "last_failure", ""))
        printf("last failed request: %s\n", text_of(status, "last_failure", ""));
    if (*text_of(status, "last_refusal", ""))
        printf("last refusal: %s\n", text_of(status, "last_refusal", ""));
}

static enum status run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)n_arguments;
    const struct status_options *o = options;
    struct client client;
    json_t *answer = NULL;
    enum status status = client_init(&client, arguments[0], o->api_key_file, err);
    if (!status)
        status = client_get_json(&client, "/v1/status", &answer, err);
    if (!status && o->json)
        status = json_dumpf(answer, stdout, JSON_INDENT(1)) || putchar('\n') == EOF
                     ? error_errno(err, STATUS_IO, "standard output: cannot write")
                     : STATUS_OK;
    else if (!status)
        print_status(answer, &client);
    json_decref(answer);
    client_release(&client);
    return status;
}

static const struct option_row options[] = {
    {"api-key-file", OPTION_TEXT, offsetof(struct status_options, api_key_file), .metavar = "FILE",
     .help = "file whose first line is the API key"},
    {"json", OPTION_FLAG, offsetof(struct status_options, json), .help = "everything that the coordinator says, as JSON"},
};

const struct command status_command = {
    .name = "status",
    .arguments = "URL",
    .summary = "Show a cluster: its nodes, their layers and states, the requests, and where time goes.",
    .details = "URL is the coordinator's, http://HOST:PORT.",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .options_bytes = sizeof(struct status_options),
    .n_arguments_min = 1,
    .n_arguments_max = 1,
    .run = run,
};
