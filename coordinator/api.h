/* What the routes share: a request on its way, and how to answer it. http_server.c owns the requests; a route's functions are called with
 * one, in the loop's thread, and either reply or leave work with the cluster (api_work). */
#ifndef HEARTH_COORDINATOR_API_H
#define HEARTH_COORDINATOR_API_H

#include <jansson.h>
#include <stdint.h>

#include "common/memory.h"
#include "coordinator/http_checks.h"
#include "coordinator/http_server.h"

/* Which route understands the cluster's events. */
enum api_work { WORK_NONE, WORK_CHAT, WORK_LOGITS };

struct chat_answer;
struct logits_answer;

/* The part of a request that routes see. */
struct api_request {
    const struct http_server_config *config;
    struct cluster *cluster;
    struct outbox *out; /* during a call from the loop */
    uint64_t now_ns;    /* the same */
    int is_draining;
    const char *path; /* decoded, without the query */
    const char *body; /* complete */
    size_t body_bytes;
    enum api_work work;
    uint64_t cluster_id;          /* while work is not WORK_NONE */
    struct chat_answer *chat;     /* owned, or NULL */
    struct logits_answer *logits; /* the same */
};

/* The whole answer. body: a reference is taken over. */
void api_reply_json(struct api_request *request, int http_status, json_t *body);
void api_reply_error(struct api_request *request, const struct api_error *error);

/* An answer that comes in pieces: begin sends the head with status 200, then pieces, then end. When the client reads too slowly, the work
 * is cancelled and the connection closed; pieces that follow are dropped. */
void api_stream_begin(struct api_request *request, const char *content_type);
void api_stream(struct api_request *request, const char *bytes, size_t length);
void api_stream_end(struct api_request *request);

/* Submits; on success the request waits for the cluster's events, on refusal it has been answered (429, 503, ...) and 0 is returned. */
int api_submit(struct api_request *request, const struct cluster_request *work, enum api_work kind);

/* The cluster has finished this request's work (DONE, FAILED). Frees nothing: answers live as long as their request. */
void api_work_is_over(struct api_request *request);

/* The work is not wanted any more; no event will come. */
void api_work_cancel(struct api_request *request);

/* Routes. */
void api_health_get(struct api_request *request);
void api_status_get(struct api_request *request);
void api_models_get(struct api_request *request);
void api_model_get(struct api_request *request);
void api_chat_post(struct api_request *request);
void api_logits_post(struct api_request *request);

/* What the cluster says about a request's work. */
void api_chat_on_event(struct api_request *request, const struct cluster_event *event);
void api_logits_on_event(struct api_request *request, const struct cluster_event *event);

/* Ends the answer with an error, wherever it stands. */
void api_chat_fail(struct api_request *request, const struct api_error *error);
void api_logits_fail(struct api_request *request, const struct api_error *error);

/* A silent stream gets a line that means nothing. */
void api_chat_keep_alive(struct api_request *request);

void api_chat_free(struct chat_answer **answer);
void api_logits_free(struct logits_answer **answer);

/* What went wrong in the cluster, for people. */
void api_error_of_event(struct api_error *error, const struct cluster_event *event);

/* `prefix` and 24 random letters and digits. out [40]. */
void api_random_id(char out[40], const char *prefix);

#endif
