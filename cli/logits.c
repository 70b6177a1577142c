/* hearth logits: teacher-forced logits of given token ids, for checking against another implementation. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/routing_trace.h"
#include "common/json.h"
#include "common/memory.h"

struct logits_options {
    struct cli_model_options model; /* first: its rows' offsets count from here */
    const char *tokens, *out, *cluster, *api_key_file, *trace;
    int drafts;
};

/* One array of the output file, written in order. */
struct array {
    char name[48];
    size_t rows, cols;
    float *data;
};

static enum status write_all(int fd, const void *bytes, size_t n, const char *path, struct error *err)
{
    for (size_t done = 0; done < n;) {
        ssize_t wrote = write(fd, (const char *)bytes + done, n - done);
        if (wrote <= 0)
            return error_errno(err, STATUS_IO, "%s: cannot write", path);
        done += (size_t)wrote;
    }
    return STATUS_OK;
}

static enum status write_arrays(const char *path, const struct array *arrays, size_t n, struct error *err)
{
    struct text header = {0};
    size_t offset = 0;
    text_append_string(&header, "{");
    for (size_t i = 0; i < n; i++) {
        size_t bytes = arrays[i].rows * arrays[i].cols * sizeof(float);
        char *entry = xasprintf("%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%zu,%zu],\"data_offsets\":[%zu,%zu]}", i ? "," : "", arrays[i].name,
                                arrays[i].rows, arrays[i].cols, offset, offset + bytes);
        text_append_string(&header, entry);
        free(entry);
        offset += bytes;
    }
    text_append_string(&header, "}");
    while (header.length % 8)
        text_append_string(&header, " ");
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    enum status status = fd < 0 ? error_errno(err, STATUS_IO, "%s: cannot create", path) : STATUS_OK;
    uint64_t length = header.length;
    if (!status)
        status = write_all(fd, &length, 8, path, err);
    if (!status)
        status = write_all(fd, header.bytes, header.length, path, err);
    for (size_t i = 0; i < n && !status; i++)
        status = write_all(fd, arrays[i].data, arrays[i].rows * arrays[i].cols * sizeof(float), path, err);
    if (fd >= 0 && close(fd) && !status)
        status = error_errno(err, STATUS_IO, "%s: cannot close", path);
    text_free(&header);
    return status;
}

static enum status read_ids(const json_t *list, size_t number, int vocab, int *ids, const char *file, struct error *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab)
            return error_set(err, STATUS_INVALID, "%s: case %zu: entry %zu must be a token id below %d", file, number, i, vocab);
        ids[i] = (int)json_integer_value(id);
    }
    return STATUS_OK;
}

/* Fills one or two arrays (logits, draft logits); *n counts on. */
static enum status run_case(struct model *model, const json_t *list, size_t number, const struct logits_options *o, struct array *arrays,
                            size_t *n, struct error *err)
{
    size_t length = json_array_size(list), vocab = (size_t)model->config->vocab_size, width = (size_t)model->config->hidden_size;
    if (!json_is_array(list) || !length || length > (size_t)model->max_positions)
        return error_set(err, STATUS_INVALID, "%s: case %zu must be an array of 1 to %d token ids (--context allows more)", o->tokens,
                         number, model->max_positions);
    int *ids = xcalloc(length, sizeof *ids);
    float *hidden = xcalloc(length * width, sizeof *hidden);
    struct sequence_state sequence = {0};
    struct array *main_rows = &arrays[(*n)++];
    *main_rows = (struct array){.rows = length, .cols = vocab, .data = xcalloc(length * vocab, sizeof(float))};
    snprintf(main_rows->name, sizeof main_rows->name, "case%zu.logits", number);
    enum status status = read_ids(list, number, (int)vocab, ids, o->tokens, err);
    if (!status)
        status = model_sequence_init(model, &sequence, (int)length, err);
    if (!status)
        status = model_forward(model, &(struct model_input){&sequence, ids, (int)length, main_rows->data, hidden}, 1, err);
    if (!status && o->drafts && model->config->n_mtp_layers && length > 1) {
        struct array *draft_rows = &arrays[(*n)++];
        *draft_rows = (struct array){.rows = length - 1, .cols = vocab, .data = xcalloc((length - 1) * vocab, sizeof(float))};
        snprintf(draft_rows->name, sizeof draft_rows->name, "case%zu.draft_logits", number);
        status = model_mtp_rows(model, &sequence, 0, ids + 1, (int)length - 1, hidden, draft_rows->data, err);
    }
    if (sequence.cache)
        sequence_state_release(&sequence);
    free(hidden);
    free(ids);
    return status ? error_wrap(err, "case %zu", number) : STATUS_OK;
}

/* ---- through a cluster: POST /v1/logits; coordinator/api_logits.c has the form of the answer ---- */

enum { VOCAB_MAX = 1 << 22 };

struct logits_stream {
    struct text buffer; /* what has not been used */
    size_t length;      /* of the case */
    size_t n_rows, n_announced;
    int32_t vocab; /* 0: the header has not come */
    int is_complete;
    struct array *main_rows, *draft_rows;
};

static enum status take_header(struct logits_stream *s, struct error *err)
{
    int32_t announced;
    memcpy(&s->vocab, s->buffer.bytes, sizeof s->vocab);
    memcpy(&announced, s->buffer.bytes + sizeof s->vocab, sizeof announced);
    s->n_announced = announced < 0 ? 0 : (size_t)announced;
    if (s->vocab < 1 || s->vocab > VOCAB_MAX)
        return error_set(err, STATUS_INVALID, "the cluster says that it has %d logits", s->vocab);
    size_t cols = (size_t)s->vocab;
    s->main_rows->rows = s->length;
    s->main_rows->cols = cols;
    s->main_rows->data = xcalloc(s->length * cols, sizeof(float));
    if (s->n_announced > s->length) { /* the model has an MTP layer */
        s->draft_rows->rows = s->length - 1;
        s->draft_rows->cols = cols;
        s->draft_rows->data = xcalloc((s->length - 1) * cols, sizeof(float));
    }
    return STATUS_OK;
}

static enum status take_row(struct logits_stream *s, const char *bytes, struct error *err)
{
    int32_t mark[2];
    memcpy(mark, bytes, sizeof mark);
    struct array *to = mark[1] ? s->draft_rows : s->main_rows;
    if (mark[0] < 0 || (size_t)mark[0] >= to->rows)
        return error_set(err, STATUS_INVALID, "the cluster sent logits of position %d", mark[0]);
    memcpy(to->data + (size_t)mark[0] * to->cols, bytes + sizeof mark, to->cols * sizeof(float));
    s->n_rows++;
    return STATUS_OK;
}

static enum status on_logits(void *context, const char *bytes, size_t length, struct error *err)
{
    struct logits_stream *s = context;
    size_t at = 0;
    enum status status = STATUS_OK;
    text_append(&s->buffer, bytes, length);
    if (!s->vocab && s->buffer.length >= 8) {
        status = take_header(s, err);
        at = 8;
    }
    size_t row = 8 + (size_t)s->vocab * sizeof(float);
    while (!status && s->vocab && s->buffer.length - at >= 8) {
        int32_t position;
        memcpy(&position, s->buffer.bytes + at, sizeof position);
        if (position < 0) {
            s->is_complete = 1;
            at = s->buffer.length;
            break;
        }
        if (s->buffer.length - at < row)
            break;
        status = take_row(s, s->buffer.bytes + at, err);
        at += row;
    }
    memmove(s->buffer.bytes, s->buffer.bytes + at, s->buffer.length - at);
    s->buffer.length -= at;
    return status;
}

static enum status run_remote_case(const struct client *client, const json_t *list, size_t number, const struct logits_options *o,
                                   struct array *arrays, size_t *n, struct error *err)
{
    struct logits_stream s = {.length = json_array_size(list), .main_rows = &arrays[*n], .draft_rows = &arrays[*n + 1]};
    if (!json_is_array(list) || !s.length)
        return error_set(err, STATUS_INVALID, "%s: case %zu must be an array of token ids", o->tokens, number);
    snprintf(s.main_rows->name, sizeof s.main_rows->name, "case%zu.logits", number);
    snprintf(s.draft_rows->name, sizeof s.draft_rows->name, "case%zu.draft_logits", number);
    json_t *body = json_pack("{s:O, s:b}", "tokens", list, "drafts", o->drafts);
    enum status status =
        client_send(client, &(struct client_request){.path = "/v1/logits", .body = body, .on_body = on_logits, .context = &s}, err);
    *n += (s.main_rows->data != NULL) + (s.draft_rows->data != NULL);
    if (!status && (!s.is_complete || s.n_rows != s.n_announced || s.n_rows < s.length))
        status = error_set(err, STATUS_IO, "the cluster gave up after %zu rows; its log and hearth status say why", s.n_rows);
    text_free(&s.buffer);
    json_decref(body);
    return status ? error_wrap(err, "case %zu", number) : STATUS_OK;
}

static enum status run(const void *options, const char **arguments, int n_arguments, struct error *err)
{
    (void)arguments, (void)n_arguments;
    const struct logits_options *o = options;
    if (o->trace && o->cluster)
        return command_usage(err, "--trace records a model of this process: it goes with --model");
    if (!o->model.dir == !o->cluster || !o->tokens || !o->out)
        return command_usage(err, "--tokens, --out and either --model or --cluster are needed");
    json_t *cases = NULL;
    enum status status = json_read_file(&cases, o->tokens, (size_t)1 << 30, err);
    struct cli_model model = {0};
    struct client client = {0};
    struct routing_recorder recorder = {0};
    if (!status && !json_is_array(cases))
        status = error_set(err, STATUS_INVALID, "%s: must be an array of arrays of token ids", o->tokens);
    if (!status)
        status = routing_recorder_open(&recorder, o->trace, err);
    if (!status)
        status = o->cluster ? client_init(&client, o->cluster, o->api_key_file, err)
                            : cli_model_open(&model, o->model.dir, &o->model, routing_recorder_observer(&recorder), err);
    if (!status && model.model)
        routing_recorder_begin(&recorder, model.model->config);
    struct array *arrays = xcalloc(2 * json_array_size(cases) + 2, sizeof *arrays);
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(cases) && !status; i++)
        status = o->cluster ? run_remote_case(&client, json_array_get(cases, i), i, o, arrays, &n, err)
                            : run_case(model.model, json_array_get(cases, i), i, o, arrays, &n, err);
    if (!status)
        status = write_arrays(o->out, arrays, n, err);
    if (!status)
        status = routing_recorder_close(&recorder, err);
    routing_recorder_close(&recorder, NULL);
    for (size_t i = 0; i < n; i++)
        free(arrays[i].data);
    free(arrays);
    cli_model_close(&model);
    client_release(&client);
    json_decref(cases);
    return status;
}

#define AT(member) offsetof(struct logits_options, member)
static const struct option_row options[] = {
    {"model", OPTION_TEXT, AT(model.dir), .metavar = "DIR", .help = "pack or vendor folder"},
    {"cluster", OPTION_TEXT, AT(cluster), .metavar = "URL",
     .help = "instead of --model: a coordinator that was started with --allow-logits"},
    {"api-key-file", OPTION_TEXT, AT(api_key_file), .metavar = "FILE", .help = "with --cluster: file whose first line is the API key"},
    {"tokens", OPTION_TEXT, AT(tokens), .metavar = "FILE.json", .help = "array of arrays of token ids"},
    {"out", OPTION_TEXT, AT(out), .metavar = "FILE.safetensors", .help = "file to write: case{i}.logits, case{i}.draft_logits, f32"},
    {"trace", OPTION_TEXT, AT(trace), .metavar = "FILE",
     .help = "with --model: record which experts the rows choose, for hearth bench cache"},
    {"drafts", OPTION_FLAG, AT(drafts), .help = "also the true MTP rows"},
    CLI_MODEL_OPTION_ROWS(struct logits_options, model),
};

const struct command logits_command = {
    .name = "logits",
    .arguments = "",
    .summary = "Write teacher-forced logits of token ids to a safetensors file (for checking).",
    .details = "Writes case{i}.logits [T, vocab], padding ids too, and with --drafts, where T > 1 and there is an MTP layer, "
               "case{i}.draft_logits [T-1, vocab].",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .options_bytes = sizeof(struct logits_options),
    .run = run,
};
