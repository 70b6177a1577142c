/* JSON (jansson): what somebody else wrote is read with bounds on sizes and depth, and every complaint names file and key. */
#ifndef HEARTH_COMMON_JSON_H
#define HEARTH_COMMON_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

#include "common/error.h"

/* Parses a regular file of at most bytes_max bytes. Duplicate keys are refused. On success the caller owns *out (json_decref). */
enum status json_read_file(json_t **out, const char *path, size_t bytes_max, struct error *err);

/* Reads a whole regular file; *bytes is malloc'ed, zero-terminated (not counted in *length). */
enum status file_read_all(char **bytes, size_t *length, const char *path, size_t bytes_max, struct error *err);

/* An integer key within [min, max]. Absent or null: *out = fallback, unless fallback < min, then it is an error. file is for the sentence. */
enum status json_get_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t fallback, int64_t *out, const char *file,
                         struct error *err);
/* A finite number (integer or real); absent or null: fallback. */
enum status json_get_number(const json_t *object, const char *key, double fallback, double *out, const char *file, struct error *err);
enum status json_get_bool(const json_t *object, const char *key, int fallback, int *out, const char *file, struct error *err);

/* A sentence that may quote somebody, cut anywhere, for JSON, which takes nothing but UTF-8: when it is none, '?' stands for what is not
 * ASCII. */
json_t *json_sentence(const char *text);

#endif
