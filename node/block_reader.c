/* Which reader a node uses, and what --emulate-disk says. */
#include "node/block_reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"

enum status block_reader_open(struct block_reader **out, const char *kind, int depth, struct error *err)
{
    struct error why;
    enum status status;
    if (!strcmp(kind, "pread")) {
        status = pread_reader_open(out, depth, err);
        if (!status)
            log_line(LOG_INFO, "disk: %s, as asked for", (*out)->name);
        return status;
    }
    int is_auto = !strcmp(kind, "auto");
    if (!is_auto && strcmp(kind, "io_uring"))
        return error_set(err, STATUS_INVALID, "no reader is called '%s': auto, io_uring or pread", kind);
    status = uring_reader_open(out, depth, is_auto ? &why : err);
    if (!status) {
        log_line(LOG_INFO, "disk: io_uring with %d reads in flight, %s", depth,
                 is_auto ? "the best that this machine allows" : "as asked for");
        return status;
    }
    if (!is_auto || status != STATUS_UNSUPPORTED)
        return is_auto ? error_set(err, status, "%s", why.text) : status;
    status = pread_reader_open(out, depth, err);
    if (!status)
        log_line(LOG_INFO, "disk: %s, because this machine does not allow io_uring: %s", (*out)->name, why.text);
    return status;
}

/* One number of the list and what must follow it: a comma when more is to come, or the end. */
static int parse_number(const char **text, double *value, int *has_more)
{
    char *end;
    *value = strtod(*text, &end);
    if (end == *text || !isfinite(*value) || (*end && *end != ','))
        return 0;
    *has_more = *end == ',';
    *text = end + *has_more;
    return 1;
}

enum status emulated_drive_parse(const char *text, struct emulated_drive *drive, struct error *err)
{
    *drive = (struct emulated_drive){0};
    if (!text || !*text)
        return STATUS_OK;
    double value[3] = {0};
    const char *at = text;
    int n = 0, has_more = 1;
    while (has_more && n < 3 && parse_number(&at, &value[n], &has_more))
        n++;
    if (n < 2 || has_more || *at)
        return error_set(err, STATUS_INVALID,
                         "'%s' names no drive: wanted GB/s,microseconds or GB/s,microseconds,jitter, as in 3.5,80 or 1,80,200", text);
    if (value[0] < 0.001 || value[0] > 1000)
        return error_set(err, STATUS_INVALID, "'%s': a drive reads between 0.001 and 1000 GB/s, not %g", text, value[0]);
    for (int i = 1; i < 3; i++)
        if (value[i] < 0 || value[i] > 1e7)
            return error_set(err, STATUS_INVALID, "'%s': %s is between 0 and 10000000 microseconds, not %g", text,
                             i == 1 ? "the latency of a drive" : "its jitter", value[i]);
    *drive = (struct emulated_drive){value[0] * 1e9, (uint64_t)(value[1] * 1e3), (uint64_t)(value[2] * 1e3)};
    return STATUS_OK;
}
