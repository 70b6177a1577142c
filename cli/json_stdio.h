/* The checking commands' form: one JSON value on standard input, one on a line of standard output. */
#ifndef HEARTH_CLI_JSON_STDIO_H
#define HEARTH_CLI_JSON_STDIO_H

#include <jansson.h>

#include "common/error.h"

/* Reads all of standard input (at most 1 GiB) as a JSON array; the caller owns *out. */
enum status stdin_read_array(json_t **out, struct error *err);

/* Prints value compactly, in ASCII, as one line. */
enum status stdout_print_json(const json_t *value, struct error *err);

#endif
