/* GET /health: can an answer start now? Needs no key, so it says no more than which layers are missing. */
#include "coordinator/api.h"

void api_health_get(struct api_request *request)
{
    int is_ready = cluster_is_ready(request->cluster);
    json_t *status = cluster_status(request->cluster, request->now_ns);
    json_t *body = json_pack("{s:s}", "status", request->is_draining ? "shutting_down" : is_ready ? "ok" : "incomplete");
    if (!is_ready) {
        json_object_set(body, "missing", json_object_get(status, "missing"));
        json_object_set(body, "since_s", json_object_get(status, "since_s"));
    }
    api_reply_json(request, is_ready && !request->is_draining ? 200 : 503, body);
    json_decref(status);
}
