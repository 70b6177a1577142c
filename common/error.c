#include "common/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum status error_set(struct error *err, enum status status, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        err->status = status;
    }
    return status;
}

enum status error_errno(struct error *err, enum status status, const char *format, ...)
{
    int number = errno;
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        size_t used = strlen(err->text);
        snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(number));
        err->status = status;
    }
    return status;
}

enum status error_wrap(struct error *err, const char *format, ...)
{
    if (!err)
        return STATUS_INVALID;
    char inner[ERROR_TEXT_BYTES];
    memcpy(inner, err->text, sizeof inner);
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, ": %s", inner);
    return err->status;
}
