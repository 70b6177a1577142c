#include "cli/routing_trace.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"

enum {
    ROWS_MAX = 1 << 22,                  /* of a layer */
    LINE_BYTES_MAX = 16 + TOP_K_MAX * 6, /* ids have at most four digits */
    IDS_BYTES_MAX = 1 << 30,
};

_Static_assert(EXPERTS_MAX <= UINT16_MAX + 1, "ids are kept in 16 bits");

void routing_trace_init(struct routing_trace *trace, int n_layers, int n_experts, int top_k)
{
    CHECK(n_layers >= 1 && n_layers <= LAYERS_MAX + 1);
    CHECK(n_experts >= 1 && n_experts <= EXPERTS_MAX && top_k >= 1 && top_k <= n_experts && top_k <= TOP_K_MAX);
    *trace = (struct routing_trace){n_layers, n_experts, top_k, xcalloc((size_t)n_layers, sizeof *trace->layers)};
}

void routing_trace_release(struct routing_trace *trace)
{
    for (int layer = 0; layer < trace->n_layers; layer++)
        free(trace->layers[layer].ids);
    free(trace->layers);
    *trace = (struct routing_trace){0};
}

void routing_trace_add(struct routing_trace *trace, int layer, const int *ids)
{
    CHECK(layer >= 0 && layer < trace->n_layers);
    struct trace_layer *l = &trace->layers[layer];
    if (l->n_rows == l->capacity) {
        l->capacity = l->capacity ? 2 * l->capacity : 256;
        l->ids = xrealloc(l->ids, (size_t)l->capacity * (size_t)trace->top_k * sizeof *l->ids);
    }
    uint16_t *row = l->ids + (size_t)l->n_rows++ * (size_t)trace->top_k;
    for (int n = 0; n < trace->top_k; n++) {
        CHECK(ids[n] >= 0 && ids[n] < trace->n_experts);
        int at = n;
        for (; at > 0 && row[at - 1] > ids[n]; at--)
            row[at] = row[at - 1];
        row[at] = (uint16_t)ids[n];
    }
}

int routing_trace_rows(const struct routing_trace *trace)
{
    int most = 0;
    for (int layer = 0; layer < trace->n_layers; layer++)
        most = trace->layers[layer].n_rows > most ? trace->layers[layer].n_rows : most;
    return most;
}

int routing_trace_used_layers(const struct routing_trace *trace)
{
    int n = 0;
    for (int layer = 0; layer < trace->n_layers; layer++)
        n += trace->layers[layer].n_rows > 0;
    return n;
}

/* ---- reading ---- */

/* A decimal number of at most 4 digits; *at moves behind it. -1: there is none. */
static int take_number(const char **at)
{
    int value = 0, n = 0;
    for (; (*at)[n] >= '0' && (*at)[n] <= '9' && n < 5; n++)
        value = value * 10 + (*at)[n] - '0';
    *at += n;
    return n >= 1 && n <= 4 ? value : -1;
}

static enum status read_head(struct routing_trace *trace, FILE *file, const char *path, struct error *err)
{
    char line[LINE_BYTES_MAX];
    if (!fgets(line, sizeof line, file))
        line[0] = 0;
    static const char *const words[] = {"hearth-trace 1 layers=", " experts=", " top_k="};
    int value[3] = {-1, -1, -1};
    const char *at = line;
    for (int i = 0; i < 3; i++) {
        if (strncmp(at, words[i], strlen(words[i])))
            break;
        at += strlen(words[i]);
        value[i] = take_number(&at);
        if (value[i] < 0)
            break;
    }
    if (value[2] < 0 || strcmp(at, "\n"))
        return error_set(err, STATUS_INVALID, "%s: line 1: expected \"hearth-trace 1 layers=N experts=N top_k=N\"", path);
    if (value[0] < 1 || value[0] > LAYERS_MAX + 1 || value[1] < 1 || value[1] > EXPERTS_MAX || value[2] < 1 || value[2] > TOP_K_MAX ||
        value[2] > value[1])
        return error_set(
            err, STATUS_INVALID,
            "%s: line 1: layers=%d experts=%d top_k=%d: at most %d layers, %d experts, top_k %d, and top_k of the experts exist", path,
            value[0], value[1], value[2], LAYERS_MAX + 1, EXPERTS_MAX, TOP_K_MAX);
    routing_trace_init(trace, value[0], value[1], value[2]);
    return STATUS_OK;
}

/* The line's layer and ids; "" or what is wrong with it. */
static const char *parse_line(const struct routing_trace *trace, const char *line, int *layer, int *ids)
{
    const char *at = line;
    *layer = take_number(&at);
    if (*layer < 0 || *layer >= trace->n_layers)
        return "starts with no layer of the first line's number of layers";
    for (int n = 0; n < trace->top_k; n++) {
        if (*at++ != ' ')
            return "has fewer ids than top_k";
        ids[n] = take_number(&at);
        if (ids[n] < 0 || ids[n] >= trace->n_experts)
            return "has an id that is no expert";
        for (int i = 0; i < n; i++)
            if (ids[i] == ids[n])
                return "names an expert twice";
    }
    return strcmp(at, "\n") ? "does not end after top_k ids" : "";
}

static enum status read_lines(struct routing_trace *trace, FILE *file, const char *path, struct error *err)
{
    char line[LINE_BYTES_MAX];
    int layer, ids[TOP_K_MAX];
    size_t bytes = 0;
    for (long number = 2; fgets(line, sizeof line, file); number++) {
        const char *wrong = parse_line(trace, line, &layer, ids);
        bytes += (size_t)trace->top_k * sizeof *trace->layers->ids;
        if (!*wrong && (trace->layers[layer].n_rows == ROWS_MAX || bytes > IDS_BYTES_MAX))
            wrong = "is more than this program keeps; cut the file before it";
        if (*wrong)
            return error_set(err, STATUS_INVALID, "%s: line %ld %s", path, number, wrong);
        routing_trace_add(trace, layer, ids);
    }
    if (ferror(file))
        return error_errno(err, STATUS_IO, "%s: cannot read", path);
    if (!routing_trace_rows(trace))
        return error_set(err, STATUS_INVALID, "%s: no row follows line 1", path);
    return STATUS_OK;
}

enum status routing_trace_read(struct routing_trace *trace, const char *path, struct error *err)
{
    *trace = (struct routing_trace){0};
    FILE *file = fopen(path, "re");
    if (!file)
        return error_errno(err, STATUS_NOT_FOUND, "%s: cannot open", path);
    enum status status = read_head(trace, file, path, err);
    if (!status)
        status = read_lines(trace, file, path, err);
    if (status)
        routing_trace_release(trace);
    fclose(file);
    return status;
}

/* ---- recording ---- */

static int sparse_number(const struct model_config *config, int layer)
{
    int number = 0;
    for (int i = 0; i < layer; i++)
        number += config->is_sparse[i];
    return number;
}

static void on_routing(void *ctx, int layer, const struct row *row, const int *experts, const float *weights, int n)
{
    (void)row, (void)weights;
    struct routing_recorder *r = ctx;
    CHECK(r->config && n == r->config->top_k);
    fprintf(r->file, "%d", sparse_number(r->config, layer));
    for (int i = 0; i < n; i++)
        fprintf(r->file, " %d", experts[i]);
    putc('\n', r->file);
}

enum status routing_recorder_open(struct routing_recorder *recorder, const char *path, struct error *err)
{
    *recorder = (struct routing_recorder){.path = path};
    if (!path)
        return STATUS_OK;
    recorder->file = fopen(path, "we");
    if (!recorder->file)
        return error_errno(err, STATUS_IO, "%s: cannot create", path);
    recorder->observer = (struct layer_observer){.ctx = recorder, .on_routing = on_routing};
    return STATUS_OK;
}

const struct layer_observer *routing_recorder_observer(const struct routing_recorder *recorder)
{
    return recorder->file ? &recorder->observer : NULL;
}

void routing_recorder_begin(struct routing_recorder *recorder, const struct model_config *config)
{
    if (!recorder->file)
        return;
    recorder->config = config;
    fprintf(recorder->file, "hearth-trace 1 layers=%d experts=%d top_k=%d\n", sparse_number(config, config_layers_with_mtp(config)),
            config->n_experts, config->top_k);
}

enum status routing_recorder_close(struct routing_recorder *recorder, struct error *err)
{
    if (!recorder->file)
        return STATUS_OK;
    int failed = ferror(recorder->file);
    failed |= fclose(recorder->file);
    recorder->file = NULL;
    return failed ? error_errno(err, STATUS_IO, "%s: cannot write", recorder->path) : STATUS_OK;
}
