#include "coordinator/http_checks.h"

#include "common/json.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

int api_refuse(struct api_error *error, int http_status, const char *code, const char *param, const char *format, ...)
{
    *error = (struct api_error){.http_status = http_status, .code = code};
    if (param)
        snprintf(error->param, sizeof error->param, "%s", param);
    va_list args;
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return 1;
}

static const char *type_of(int http_status)
{
    switch (http_status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 429:
        return "rate_limit_error";
    default:
        return http_status >= 500 ? "server_error" : "invalid_request_error";
    }
}

json_t *api_error_json(const struct api_error *error)
{
    return json_pack("{s:{s:o, s:s, s:o, s:s?}}", "error", "message", json_sentence(error->message), "type", type_of(error->http_status),
                     "param", *error->param ? json_sentence(error->param) : json_null(), "code", error->code);
}

/* RFC 9110, 5.6.2: the characters of a token. */
static int is_token_character(unsigned char c)
{
    return isalnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int is_token(const char *name, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (!is_token_character((unsigned char)name[i]))
            return 0;
    return length > 0;
}

static int has_control(const char *value, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (((unsigned char)value[i] < 0x20 && value[i] != '\t') || value[i] == 0x7f)
            return 1;
    return 0;
}

void http_head_add(struct http_head *head, const char *name, size_t name_length, const char *value, size_t value_length)
{
    struct {
        const char *name, **value;
        int *count;
    } known[] = {
        {"Host", &head->host, &head->n_host},
        {"Content-Length", &head->content_length, &head->n_content_length},
        {"Transfer-Encoding", &head->transfer_encoding, &head->n_transfer_encoding},
        {"Content-Type", &head->content_type, NULL},
        {"Authorization", &head->authorization, NULL},
        {"Origin", &head->origin, NULL},
    };
    head->bytes += name_length + value_length + 4;
    head->n_malformed += !is_token(name, name_length) || has_control(value, value_length);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcasecmp(name, known[i].name)) {
            *known[i].value = value;
            if (known[i].count)
                ++*known[i].count;
        }
}

int http_head_refused(const struct http_head *h, size_t bytes_max, struct api_error *error)
{
    if (h->bytes > bytes_max)
        return api_refuse(error, 431, NULL, NULL, "the request's head is larger than %zu bytes", bytes_max);
    if (h->n_malformed)
        return api_refuse(error, 400, NULL, NULL, "a header's name or value has characters that it must not have");
    if (h->n_host > 1)
        return api_refuse(error, 400, NULL, NULL, "more than one Host header");
    if (!h->n_host && !h->is_http_1_0)
        return api_refuse(error, 400, NULL, NULL, "no Host header");
    if (h->n_content_length > 1)
        return api_refuse(error, 400, NULL, NULL, "more than one Content-Length header");
    if (h->n_transfer_encoding && (h->n_content_length || h->n_transfer_encoding > 1 || h->is_http_1_0))
        return api_refuse(error, 400, NULL, NULL, "Transfer-Encoding must stand alone, in HTTP/1.1");
    if (h->n_transfer_encoding && strcasecmp(h->transfer_encoding, "chunked"))
        return api_refuse(error, 400, NULL, NULL, "Transfer-Encoding must be chunked");
    if (h->n_content_length && (!*h->content_length || strspn(h->content_length, "0123456789") != strlen(h->content_length)))
        return api_refuse(error, 400, NULL, NULL, "Content-Length must be a number");
    return 0;
}

/* The host without its port; brackets of an IPv6 address stay. */
static size_t host_length(const char *host)
{
    const char *end = *host == '[' ? strchr(host, ']') : NULL;
    return end ? (size_t)(end + 1 - host) : strcspn(host, ":");
}

static int is_port_or_nothing(const char *rest)
{
    return !*rest || (*rest == ':' && strspn(rest + 1, "0123456789") == strlen(rest + 1) && strlen(rest) <= 6);
}

static int equals(const char *text, size_t length, const char *name)
{
    return strlen(name) == length && !strncasecmp(text, name, length);
}

static int is_ip_address(const char *text, size_t length)
{
    char copy[64];
    unsigned char address[16];
    int is_bracketed = length > 2 && *text == '[';
    if (length - 2 * (size_t)is_bracketed >= sizeof copy)
        return 0;
    snprintf(copy, sizeof copy, "%.*s", (int)length - 2 * is_bracketed, text + is_bracketed);
    return inet_pton(is_bracketed ? AF_INET6 : AF_INET, copy, address) == 1;
}

int http_host_is_allowed(const char *host, const struct http_names *names)
{
    static const char *const loopback[] = {"localhost", "127.0.0.1", "[::1]"};
    size_t length = host_length(host);
    if (!is_port_or_nothing(host + length))
        return 0;
    for (size_t i = 0; i < sizeof loopback / sizeof *loopback; i++)
        if (equals(host, length, loopback[i]))
            return 1;
    for (int i = 0; i < names->n; i++)
        if (equals(host, length, names->names[i]))
            return 1;
    return !names->is_loopback && is_ip_address(host, length);
}

int http_key_matches(const char *authorization, const char *key)
{
    static const char scheme[] = "Bearer ";
    if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1))
        return 0;
    const char *given = authorization + sizeof scheme - 1;
    size_t n_given = strlen(given), n_key = strlen(key);
    unsigned difference = n_given != n_key;
    /* The loop's length is what was given, so the key's length does not show either. */
    for (size_t i = 0; i < n_given; i++)
        difference |= (unsigned char)given[i] ^ (unsigned char)key[n_key ? i % n_key : 0];
    return !difference;
}

int http_is_json(const char *content_type)
{
    static const char json[] = "application/json";
    if (!content_type || strncasecmp(content_type, json, sizeof json - 1))
        return 0;
    const char *rest = content_type + sizeof json - 1;
    return !*rest || *rest == ';' || *rest == ' ' || *rest == '\t';
}

int http_json_refused(const char *bytes, size_t length, struct api_error *error)
{
    int depth = 0, in_string = 0;
    size_t n_values = 1;
    for (size_t i = 0; i < length; i++) {
        char c = bytes[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
        } else if (c == '"') {
            in_string = 1;
        } else if (c == '[' || c == '{') {
            n_values++;
            if (++depth > JSON_DEPTH_MAX)
                return api_refuse(error, 400, NULL, NULL, "the body is nested more than %d deep", JSON_DEPTH_MAX);
        } else if (c == ']' || c == '}') {
            depth--;
        } else if (c == ',') {
            n_values++;
        }
        if (n_values > JSON_VALUES_MAX)
            return api_refuse(error, 400, NULL, NULL, "the body has more than %d values", JSON_VALUES_MAX);
    }
    return 0;
}

int http_json_parse(json_t **out, const char *bytes, size_t length, struct api_error *error)
{
    *out = NULL;
    if (!length)
        return api_refuse(error, 400, NULL, NULL, "the body is empty; it must be a JSON object");
    if (http_json_refused(bytes, length, error))
        return 1;
    json_error_t where;
    *out = json_loadb(bytes, length, JSON_REJECT_DUPLICATES, &where);
    if (!*out)
        return api_refuse(error, 400, NULL, NULL, "the body is not valid JSON: line %d, column %d: %s", where.line, where.column,
                          where.text);
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return api_refuse(error, 400, NULL, NULL, "the body must be a JSON object");
    }
    return 0;
}
