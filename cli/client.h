/* A coordinator's API from the command line: a small HTTP/1.1 client over plain TCP, one connection a request, every wait with a deadline.
 */
#ifndef HEARTH_CLI_CLIENT_H
#define HEARTH_CLI_CLIENT_H

#include <jansson.h>
#include <signal.h>
#include <stddef.h>

#include "common/error.h"

struct client {
    char *host, *port;
    char *key;                                /* or NULL */
    const volatile sig_atomic_t *interrupted; /* set: the request ends with STATUS_CANCELLED; may be NULL */
};

/* 1 for what looks like a URL and not like a folder. */
int client_is_url(const char *text);

/* url: http://HOST[:PORT][/v1]. key_file: a file whose first line is the API key, or NULL. The caller releases it in either case. */
enum status client_init(struct client *client, const char *url, const char *key_file, struct error *err);
void client_release(struct client *client);

/* Takes a piece of a body with status 200; what it returns ends the request when it is not STATUS_OK. */
typedef enum status client_body_function(void *context, const char *bytes, size_t length, struct error *err);

/* path begins with a slash; body: JSON to send (POST), or NULL (GET). An answer with another status than 2xx (or 503 with accepts_503)
 * fails with the server's own sentence. */
struct client_request {
    const char *path;
    const json_t *body;
    int accepts_503;
    client_body_function *on_body;
    void *context;
};
enum status client_send(const struct client *client, const struct client_request *request, struct error *err);

/* GET; the caller owns *out. */
enum status client_get_json(const struct client *client, const char *path, json_t **out, struct error *err);

#endif
