#include "common/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/memory.h"

enum status file_read_all(char **bytes, size_t *length, const char *path, size_t bytes_max, struct error *err)
{
    /* O_NONBLOCK: a FIFO in the place of a file must not hang us. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_errno(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%s: cannot open", path);
    struct stat st;
    enum status status = STATUS_OK;
    char *buffer = NULL;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        status = error_set(err, STATUS_INVALID, "%s: not a regular file", path);
        goto out;
    }
    if ((uint64_t)st.st_size > bytes_max) {
        status = error_set(err, STATUS_INVALID, "%s: %lld bytes, more than the %zu that such a file may have", path, (long long)st.st_size, bytes_max);
        goto out;
    }
    size_t size = (size_t)st.st_size, done = 0;
    buffer = xcalloc(size + 1, 1);
    while (done < size) {
        ssize_t n = read(fd, buffer + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            status = n < 0 ? error_errno(err, STATUS_IO, "%s: read stopped at byte %zu of %zu", path, done, size)
                           : error_set(err, STATUS_IO, "%s: ends at byte %zu of %zu: it was made shorter while it was read", path, done, size);
            goto out;
        }
        done += (size_t)n;
    }
    *bytes = buffer;
    *length = size;
    buffer = NULL;
out:
    free(buffer);
    close(fd);
    return status;
}

enum status json_read_file(json_t **out, const char *path, size_t bytes_max, struct error *err)
{
    char *bytes;
    size_t length;
    enum status status = file_read_all(&bytes, &length, path, bytes_max, err);
    if (status)
        return status;
    json_error_t where;
    *out = json_loadb(bytes, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
    free(bytes);
    if (!*out)
        return error_set(err, STATUS_CORRUPT, "%s: line %d: %s", path, where.line, where.text);
    return STATUS_OK;
}

enum status json_get_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t fallback, int64_t *out, const char *file,
                         struct error *err)
{
    const json_t *value = json_object_get(object, key);
    *out = fallback;
    if (!value || json_is_null(value)) {
        if (fallback < min)
            return error_set(err, STATUS_INVALID, "%s: %s is missing", file, key);
        return STATUS_OK;
    }
    if (!json_is_integer(value))
        return error_set(err, STATUS_INVALID, "%s: %s must be a whole number", file, key);
    *out = json_integer_value(value);
    if (*out < min || *out > max)
        return error_set(err, STATUS_INVALID, "%s: %s is %lld, allowed are %lld to %lld", file, key, (long long)*out, (long long)min,
                         (long long)max);
    return STATUS_OK;
}

enum status json_get_number(const json_t *object, const char *key, double fallback, double *out, const char *file, struct error *err)
{
    const json_t *value = json_object_get(object, key);
    *out = fallback;
    if (!value || json_is_null(value))
        return STATUS_OK;
    if (!json_is_number(value) || !isfinite(json_number_value(value)))
        return error_set(err, STATUS_INVALID, "%s: %s must be a number", file, key);
    *out = json_number_value(value);
    return STATUS_OK;
}

enum status json_get_bool(const json_t *object, const char *key, int fallback, int *out, const char *file, struct error *err)
{
    const json_t *value = json_object_get(object, key);
    *out = fallback;
    if (!value || json_is_null(value))
        return STATUS_OK;
    if (!json_is_boolean(value))
        return error_set(err, STATUS_INVALID, "%s: %s must be true or false", file, key);
    *out = json_is_true(value);
    return STATUS_OK;
}

json_t *json_sentence(const char *text)
{
    json_t *value = json_string(text);
    if (value)
        return value;
    char *ascii = xstrdup(text);
    for (char *c = ascii; *c; c++)
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    value = json_string(ascii);
    free(ascii);
    return value;
}
