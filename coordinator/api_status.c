/* GET /v1/status: everything that the cluster says about itself; what `hearth status` prints. */
#include "coordinator/api.h"

void api_status_get(struct api_request *request)
{
    json_t *status = cluster_status(request->cluster, request->now_ns);
    json_object_set_new(status, "version", json_string(HEARTH_VERSION));
    json_object_set_new(status, "model", json_string(request->config->model_name));
    api_reply_json(request, 200, status);
}
