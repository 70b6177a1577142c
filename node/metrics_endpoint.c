#include "node/metrics_endpoint.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/memory.h"
#include "common/sockets.h"

enum {
    CONNECTIONS_MAX = 8, /* who scrapes needs one */
    TIMEOUT_S = 5,       /* of a connection that says nothing */
    CONNECTION_BYTES = 8 << 10,
};

struct metrics_endpoint {
    struct node_metrics *metrics;
    struct MHD_Daemon *daemon;
    int port;
};

/* ---- answers ---- */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code, char *body, size_t length, enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(length, body, mode);
    if (!response)
        return MHD_NO; /* the connection ends */
    MHD_add_response_header(response, "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
    MHD_add_response_header(response, "Cache-Control", "no-store");
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, "Allow", "GET, HEAD");
    enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer_sentence(struct MHD_Connection *connection, unsigned code, char *sentence)
{
    return answer(connection, code, sentence, strlen(sentence), MHD_RESPMEM_PERSISTENT);
}

/* Called when a request's head is there; answered at once, before any body, which is not read. */
static enum MHD_Result on_request(void *self, struct MHD_Connection *connection, const char *url, const char *method, const char *version,
                                  const char *body, size_t *body_bytes, void **request)
{
    (void)version, (void)body, (void)body_bytes, (void)request;
    struct metrics_endpoint *endpoint = self;
    if (strcmp(url, "/metrics"))
        return answer_sentence(connection, MHD_HTTP_NOT_FOUND, "only /metrics is here\n");
    if (strcmp(method, "GET") && strcmp(method, "HEAD"))
        return answer_sentence(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    struct text text = {0};
    node_metrics_render(endpoint->metrics, &text);
    return answer(connection, MHD_HTTP_OK, text.bytes, text.length, MHD_RESPMEM_MUST_FREE);
}

/* ---- the server ---- */

static enum status open_at(struct metrics_endpoint **out, const char *address, struct node_metrics *metrics, struct error *err)
{
    int fd;
    if (socket_listen(&fd, address, CONNECTIONS_MAX, err))
        return error_wrap(err, "--metrics");
    struct metrics_endpoint *endpoint = xcalloc(1, sizeof *endpoint);
    endpoint->metrics = metrics;
    endpoint->port = socket_port(fd);
    endpoint->daemon = MHD_start_daemon(MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ITC, 0, NULL, NULL, on_request, endpoint,
                                        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
                                        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                        (size_t)CONNECTION_BYTES, MHD_OPTION_END);
    if (!endpoint->daemon) {
        close(fd);
        free(endpoint);
        return error_errno(err, STATUS_IO, "--metrics: the server does not start");
    }
    *out = endpoint;
    return STATUS_OK;
}

enum status metrics_endpoint_open(struct metrics_endpoint **out, const char *address, struct node_metrics *metrics, struct error *err)
{
    struct error why;
    *out = NULL;
    if (address && !strcmp(address, "off"))
        return STATUS_OK;
    enum status status = open_at(out, address ? address : METRICS_ADDRESS_DEFAULT, metrics, address ? err : &why);
    if (status && !address) {
        log_line(LOG_WARNING,
                 "%s: no metrics are served; give this node an address of its own (--metrics 127.0.0.1:7604), or --metrics off", why.text);
        return STATUS_OK;
    }
    if (!status)
        log_line(LOG_INFO, "metrics at %s, port %d", address ? address : METRICS_ADDRESS_DEFAULT, (*out)->port);
    return status;
}

void metrics_endpoint_close(struct metrics_endpoint **endpoint)
{
    if (!*endpoint)
        return;
    MHD_stop_daemon((*endpoint)->daemon); /* waits for its thread, and closes the socket */
    free(*endpoint);
    *endpoint = NULL;
}

int metrics_endpoint_port(const struct metrics_endpoint *endpoint)
{
    return endpoint->port;
}
