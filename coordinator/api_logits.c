/* POST /v1/logits: teacher-forced logits of token ids through the running nodes, for checking (only with --allow-logits).
 * Body: {"tokens": [ids], "drafts": true or false}. Answer: application/octet-stream, little-endian, a header of two int32 (vocab_size,
 * rows that will come), then for each row int32 position, int32 is_draft_row and vocab_size floats, in any order; after the last one int32
 * -1, int32 0. An answer without that end is a failed one. */
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "coordinator/api.h"

/* Logits that a request may ask for: what may lie in memory while its client reads. */
static const size_t LOGITS_BYTES_MAX = (size_t)1 << 30;

struct logits_answer {
    json_t *root;
    int *tokens;
    int n, want_drafts;
    int is_begun;
};

static int read_request(struct logits_answer *a, const struct api_request *api, struct api_error *error)
{
    int vocab = api->config->model->vocab_size;
    if (http_json_parse(&a->root, api->body, api->body_bytes, error))
        return 1;
    const json_t *tokens = json_object_get(a->root, "tokens"), *drafts = json_object_get(a->root, "drafts");
    size_t n = json_array_size(tokens), row = (size_t)vocab * sizeof(float);
    if (!n || n > (size_t)api->config->context_length)
        return api_refuse(error, 400, NULL, "tokens", "tokens must be a list of 1 to %d ids", api->config->context_length);
    if (drafts && !json_is_boolean(drafts) && !json_is_null(drafts))
        return api_refuse(error, 400, NULL, "drafts", "drafts must be true or false");
    a->want_drafts = json_is_true(drafts);
    if (n * (size_t)(1 + a->want_drafts) > LOGITS_BYTES_MAX / row)
        return api_refuse(error, 400, NULL, "tokens", "that is more than %zu rows of logits", LOGITS_BYTES_MAX / row);
    a->tokens = xcalloc(n, sizeof *a->tokens);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(tokens, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab)
            return api_refuse(error, 400, NULL, "tokens", "tokens[%zu] must be a token id below %d", i, vocab);
        a->tokens[i] = (int)json_integer_value(id);
    }
    a->n = (int)n;
    return 0;
}

void api_logits_post(struct api_request *api)
{
    struct logits_answer *a = api->logits = xcalloc(1, sizeof *a);
    struct api_error error;
    if (read_request(a, api, &error)) {
        api_reply_error(api, &error);
        return;
    }
    struct cluster_request work = {.prompt = a->tokens,
                                   .n_prompt = a->n,
                                   .max_new = 1,
                                   .sampling = sampler_params_default,
                                   .teacher_forced = 1,
                                   .want_drafts = a->want_drafts};
    api_submit(api, &work, WORK_LOGITS);
}

static void send_pair(struct api_request *api, int32_t first, int32_t second)
{
    int32_t pair[2] = {first, second};
    api_stream(api, (const char *)pair, sizeof pair);
}

void api_logits_fail(struct api_request *api, const struct api_error *error)
{
    if (api->logits->is_begun)
        api_stream_end(api); /* without its end mark */
    else
        api_reply_error(api, error);
}

void api_logits_on_event(struct api_request *api, const struct cluster_event *event)
{
    struct logits_answer *a = api->logits;
    int vocab = api->config->model->vocab_size;
    struct api_error error;
    switch (event->kind) {
    case EVENT_ADMITTED:
        a->is_begun = 1;
        api_stream_begin(api, "application/octet-stream");
        send_pair(api, vocab, a->n + (a->want_drafts && api->config->model->n_mtp_layers ? a->n - 1 : 0));
        return;
    case EVENT_LOGITS:
        send_pair(api, event->position, event->is_draft_row);
        api_stream(api, (const char *)event->logits, (size_t)vocab * sizeof(float));
        return;
    case EVENT_DONE:
        send_pair(api, -1, 0);
        api_stream_end(api);
        api_work_is_over(api);
        return;
    case EVENT_FAILED:
        api_work_is_over(api);
        api_error_of_event(&error, event);
        api_logits_fail(api, &error);
        return;
    case EVENT_TOKEN:
        return;
    }
}

void api_logits_free(struct logits_answer **slot)
{
    struct logits_answer *a = *slot;
    if (!a)
        return;
    json_decref(a->root);
    free(a->tokens);
    free(a);
    *slot = NULL;
}
