/* GET /v1/models: always answers, whatever the cluster does. */
#include <string.h>

#include "coordinator/api.h"

static json_t *model_json(const struct http_server_config *config)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:i, s:i}", "id", config->model_name, "object", "model", "created", (json_int_t)config->created,
                     "owned_by", "hearth", "context_length", config->context_length, "max_model_len", config->context_length);
}

void api_models_get(struct api_request *request)
{
    api_reply_json(request, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(request->config)));
}

void api_model_get(struct api_request *request)
{
    const char *name = request->path + strlen("/v1/models/");
    struct api_error error;
    if (!strcmp(name, request->config->model_name)) {
        api_reply_json(request, 200, model_json(request->config));
        return;
    }
    api_refuse(&error, 404, "model_not_found", "model", "there is no model '%.100s' here; this is '%.100s'", name,
               request->config->model_name);
    api_reply_error(request, &error);
}
