/* A chat completion request, read and checked: what client and model file say together (docs/OPERATIONS.md, "The API"). */
#ifndef HEARTH_COORDINATOR_CHAT_REQUEST_H
#define HEARTH_COORDINATOR_CHAT_REQUEST_H

#include <jansson.h>

#include "coordinator/http_checks.h"
#include "coordinator/http_server.h"
#include "model/bpe.h"
#include "model/sampler.h"

enum { CHAT_STOPS_MAX = 16 };

struct chat_request {
    json_t *root;  /* the body; what is borrowed below lives here */
    json_t *tools; /* borrowed; NULL: none are offered */
    int is_stream, include_usage;
    int one_call; /* parallel_tool_calls is false */
    const char *stops[CHAT_STOPS_MAX];
    size_t n_stops;
    struct sampler_params sampling;
    struct token_bias *bias;
    int max_new; /* >= 1, fits beside the prompt */
    struct id_list prompt;
    int opens_reasoning; /* the prompt ends inside reasoning */
};

/* Returns 1 with *error when the request cannot be served. Release in either case. */
int chat_request_read(struct chat_request *request, const struct http_server_config *config, const char *body, size_t body_bytes,
                      struct api_error *error);
void chat_request_release(struct chat_request *request);

#endif
