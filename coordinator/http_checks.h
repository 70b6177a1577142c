/* Who may ask, and which heads and bodies are looked at at all (docs/OPERATIONS.md, "The API"). Pure functions: no sockets, no server. */
#ifndef HEARTH_COORDINATOR_HTTP_CHECKS_H
#define HEARTH_COORDINATOR_HTTP_CHECKS_H

#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

/* JSON: deeper or with more values than this is refused before anything is built from it. A value costs up to 100 bytes of memory. */
enum { JSON_DEPTH_MAX = 64, JSON_VALUES_MAX = 1 << 20 };

/* What a person reads when a request is refused, and what becomes OpenAI's error object. */
struct api_error {
    int http_status;
    const char *code;  /* "invalid_api_key", ..., or NULL */
    char param[96];    /* the field that is wrong; empty: none */
    char message[768]; /* UTF-8 */
    int retry_after_s; /* 0: no header */
};

/* Fills *error and returns 1, so that `return api_refuse(...)` is one line. param may be NULL. */
int api_refuse(struct api_error *error, int http_status, const char *code, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* {"error": {message, type, param, code}}; new reference. */
json_t *api_error_json(const struct api_error *error);

/* What matters of a request's head. Strings are borrowed, NULL where the header is absent. */
struct http_head {
    int is_http_1_0;
    size_t bytes; /* names, values and four bytes a line */
    int n_host, n_content_length, n_transfer_encoding;
    int n_malformed; /* names that are no token, values with control characters */
    const char *host, *content_length, *transfer_encoding, *content_type, *authorization, *origin;
};

void http_head_add(struct http_head *head, const char *name, size_t name_length, const char *value, size_t value_length);

/* 1: the framing is ambiguous or the head too large; answer with *error and close, whatever follows must not be read as a request. */
int http_head_refused(const struct http_head *head, size_t bytes_max, struct api_error *error);

/* Names by which this server may be called. */
struct http_names {
    int is_loopback;          /* bound to a loopback address: only loopback names and `names` */
    const char *const *names; /* [n] configured, without port */
    int n;
};

/* A page elsewhere can make a name of its own point here (DNS rebinding), but cannot choose the Host header: numbers are always fine unless
 * the server is bound to loopback, names must be known. */
int http_host_is_allowed(const char *host, const struct http_names *names);

/* "Bearer KEY"; takes the same time wherever the first difference is. */
int http_key_matches(const char *authorization, const char *key);

int http_is_json(const char *content_type);

/* Depth and number of values within the limits; a syntax error is left to the parser. */
int http_json_refused(const char *bytes, size_t length, struct api_error *error);

/* Parses a request's body; 1 with *error set when it is refused. The caller owns *out. */
int http_json_parse(json_t **out, const char *bytes, size_t length, struct api_error *error);

#endif
