/* Operating errors as values: a status code plus one sentence that names the thing, what was expected, what was found and the way out.
 * The caller owns the struct; every level may put its own context in front. Only main turns an error into an exit code. */
#ifndef HEARTH_COMMON_ERROR_H
#define HEARTH_COMMON_ERROR_H

enum status {
    STATUS_OK = 0,
    STATUS_INVALID,     /* what the caller or a file asked for makes no sense */
    STATUS_NOT_FOUND,   /* a file, a tensor, a key that should be there is not */
    STATUS_CORRUPT,     /* bytes that do not match their checksum or their own header */
    STATUS_IO,          /* the operating system refused to read or write */
    STATUS_NO_MEMORY,   /* over the budget, or the allocator refused */
    STATUS_BUSY,        /* every slot is in use; nothing was started */
    STATUS_UNSUPPORTED, /* understood, but this build or machine cannot do it */
    STATUS_TIMEOUT,     /* a deadline passed */
    STATUS_CANCELLED,
};

enum { ERROR_TEXT_BYTES = 1024 };

struct error {
    enum status status;
    char text[ERROR_TEXT_BYTES];
};

/* Sets the sentence and returns status, so that `return error_set(err, ...)` is one line. err may be NULL. */
enum status error_set(struct error *err, enum status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Like error_set, with ": " and the sentence of errno at the end. */
enum status error_errno(struct error *err, enum status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "context: " before the sentence that is there; returns err's status (STATUS_INVALID when err is NULL). */
enum status error_wrap(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
