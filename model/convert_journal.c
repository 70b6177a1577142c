#include "model/convert_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/check.h"
#include "common/json.h"
#include "common/memory.h"
#include "model/checksums.h"
#include "model/files.h"
#include "model/pack.h"

enum { JOURNAL_MAX_BYTES = 64 << 20, JOURNAL_VERSION = 1 };

static char *line_of(json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
    CHECK(text);
    json_decref(object);
    char *line = xasprintf("%s\n", text);
    free(text);
    return line;
}

static json_t *first_line(const char source[33], enum precision precision)
{
    return json_pack("{s:i,s:s,s:s}", "hearth-convert", JOURNAL_VERSION, "precision", precision_name(precision), "source", source);
}

enum status journal_create(const char *dir, const char source[33], enum precision precision, struct error *err)
{
    char *line = line_of(first_line(source, precision));
    enum status status = file_write_atomic(dir, PACK_JOURNAL, line, strlen(line), err);
    free(line);
    return status;
}

/* Whole lines of text into journal->files; *end = bytes of whole lines. */
static enum status parse(struct journal *j, char *text, size_t length, const char source[33], enum precision precision, struct error *err)
{
    int n = 0;
    for (char *line = text, *newline; (newline = memchr(line, '\n', length - (size_t)(line - text))); line = newline + 1, n++) {
        json_t *object = json_loadb(line, (size_t)(newline - line), JSON_REJECT_DUPLICATES, NULL);
        const char *file = json_string_value(json_object_get(object, "file"));
        if (n ? !file : !object) {
            json_decref(object);
            return error_set(err, STATUS_CORRUPT, "%s: line %d is damaged; remove the folder and convert again", j->path, n + 1);
        }
        if (n == 0) {
            json_t *expected = first_line(source, precision);
            int is_same = json_equal(object, expected);
            json_decref(expected);
            json_decref(object);
            if (!is_same)
                return error_set(
                    err, STATUS_INVALID,
                    "%s: holds an unfinished conversion of another source or to another precision; finish that one or remove the folder",
                    j->dir);
        } else {
            json_object_set_new(j->files, file, object);
        }
        j->end = (uint64_t)(newline + 1 - text);
    }
    return n ? STATUS_OK : error_set(err, STATUS_CORRUPT, "%s: is empty; remove the folder and convert again", j->path);
}

enum status journal_open(struct journal *j, const char *dir, const char source[33], enum precision precision, struct error *err)
{
    char *text = NULL;
    size_t length;
    *j = (struct journal){.fd = -1, .dir = xstrdup(dir), .path = xasprintf("%s/%s", dir, PACK_JOURNAL), .files = json_object()};
    j->fd = open(j->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (j->fd < 0)
        return error_errno(err, STATUS_IO, "%s: cannot open", j->path);
    if (flock(j->fd, LOCK_EX | LOCK_NB))
        return error_set(err, STATUS_BUSY, "%s: another hearth convert is writing there", dir);
    enum status status = file_read_all(&text, &length, j->path, JOURNAL_MAX_BYTES, err);
    if (!status)
        status = parse(j, text, length, source, precision, err);
    free(text);
    if (!status && ftruncate(j->fd, (off_t)j->end))
        status = error_errno(err, STATUS_IO, "%s: cannot cut off its last, unfinished line", j->path);
    return status;
}

int journal_find(const struct journal *j, const char *file, uint64_t bytes, uint64_t *checksums, int n)
{
    const json_t *line = json_object_get(j->files, file), *list = json_object_get(line, "checksums");
    if (!line || (uint64_t)json_integer_value(json_object_get(line, "bytes")) != bytes || json_array_size(list) != (size_t)n)
        return 0;
    for (int i = 0; i < n; i++)
        if (!checksum_parse(json_string_value(json_array_get(list, (size_t)i)), &checksums[i]))
            return 0;
    return 1;
}

enum status journal_append(struct journal *j, const char *file, uint64_t bytes, const uint64_t *checksums, int n, struct error *err)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        char text[17];
        checksum_text(text, checksums[i]);
        json_array_append_new(list, json_string(text));
    }
    char *line = line_of(json_pack("{s:s,s:I,s:o}", "file", file, "bytes", (json_int_t)bytes, "checksums", list));
    size_t length = strlen(line);
    enum status status = file_write_at(j->fd, line, length, j->end, j->path, err);
    free(line);
    if (!status && fsync(j->fd))
        status = error_errno(err, STATUS_IO, "%s: cannot sync", j->path);
    if (!status)
        j->end += length;
    return status;
}

enum status journal_finish(struct journal *j, struct error *err)
{
    if (unlink(j->path))
        return error_errno(err, STATUS_IO, "%s: cannot remove", j->path);
    return directory_sync(j->dir, err);
}

void journal_close(struct journal *j)
{
    if (j->fd >= 0)
        close(j->fd);
    json_decref(j->files);
    free(j->path);
    free(j->dir);
    *j = (struct journal){.fd = -1};
}
