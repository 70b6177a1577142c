/* The checking commands' form: one JSON value on standard input, one on a line of standard output. */
#ifndef HEARTH_CLI_JSON_STDIO_H
#define HEARTH_CLI_JSON_STDIO_H

#include <jansson.h>

#include "common/error.h"

/* Reads all of standard input (at most 1 GiB) as a JSON array, calls one for each item, which appends its result to `out`, and prints `out` compactly,
 * in ASCII, as one line. The first failure ends it and says which item it was; nothing is printed then. */
enum status json_stdio_each(enum status (*one)(void *ctx, const json_t *item, json_t *out, struct error *err), void *ctx, struct error *err);

#endif
