/* What a conversion has finished so far: convert.journal in the target, one JSON object a line. The first names source and precision, every
 * further one a file with its size and checksums; each is synced before the next file begins. A last line without an end was being written
 * when the process died and counts for nothing. Gone when the pack is complete. */
#ifndef HEARTH_MODEL_CONVERT_JOURNAL_H
#define HEARTH_MODEL_CONVERT_JOURNAL_H

#include <stdint.h>
#include <jansson.h>

#include "common/error.h"
#include "model/weights_source.h"

struct journal {
    int fd; /* -1: closed */
    char *dir, *path;
    json_t *files; /* name -> line */
    uint64_t end;  /* bytes of whole lines */
};

enum status journal_create(const char *dir, const char source[33], enum precision precision, struct error *err);

/* Locks it (one converter per target) and reads it. Refused when it belongs to another source or precision. */
enum status journal_open(struct journal *journal, const char *dir, const char source[33], enum precision precision, struct error *err);

/* 1 and the checksums when the file is listed with that size and number of checksums. */
int journal_find(const struct journal *journal, const char *file, uint64_t bytes, uint64_t *checksums, int n);
enum status journal_append(struct journal *journal, const char *file, uint64_t bytes, const uint64_t *checksums, int n, struct error *err);

/* Removes the file: the pack is complete. */
enum status journal_finish(struct journal *journal, struct error *err);
void journal_close(struct journal *journal);

#endif
