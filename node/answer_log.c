#include "node/answer_log.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/check.h"
#include "common/log.h"

static struct answer_start *find(struct answer_log *log, uint64_t sequence)
{
    for (int i = 0; i < log->n_open; i++)
        if (log->open[i].sequence == sequence)
            return &log->open[i];
    return NULL;
}

void answer_log_begin(struct answer_log *log, uint64_t sequence, const struct answer_figures *figures)
{
    if (log->n_open == SEQUENCES_MAX || find(log, sequence))
        return; /* more than a stage opens: the others are refused */
    for (int i = 0; i < log->n_open; i++)
        log->open[i].n_others++;
    log->open[log->n_open] = (struct answer_start){sequence, log->n_open, *figures};
    log->n_open++;
}

static double since(uint64_t begin, uint64_t end)
{
    return end > begin ? (double)(end - begin) : 0;
}

void answer_log_text(char *text, size_t bytes, const struct answer_start *start, const struct answer_figures *end)
{
    const struct expert_stats *a = &start->figures.experts, *b = &end->experts;
    double hits = since(a->hits, b->hits), asked = hits + since(a->misses, b->misses);
    int n = snprintf(text, bytes, "%.0f rows in %.1f s, %.1f s of it computing", since(start->figures.rows, end->rows),
                     since(start->figures.now_ns, end->now_ns) / 1e9, since(start->figures.busy_ns, end->busy_ns) / 1e9);
    CHECK(n > 0 && (size_t)n < bytes);
    if (asked > 0)
        n += snprintf(text + n, bytes - (size_t)n, "; experts: %.1f %% of %.0f were there, %.1f MB read, %.2f s waited for",
                      100 * hits / asked, asked, since(a->bytes_read, b->bytes_read) / 1e6, since(a->wait_ns, b->wait_ns) / 1e9);
    CHECK((size_t)n < bytes);
    if (start->n_others)
        n += snprintf(text + n, bytes - (size_t)n, "; with %d other answers at the same time", start->n_others);
    CHECK((size_t)n < bytes);
}

void answer_log_end(struct answer_log *log, uint64_t sequence, const struct answer_figures *figures)
{
    char text[256];
    struct answer_start *start = find(log, sequence);
    if (!start)
        return;
    answer_log_text(text, sizeof text, start, figures);
    if (figures->rows > start->figures.rows)
        log_line(LOG_INFO, "answer %" PRIx64 ": %s", sequence, text);
    *start = log->open[--log->n_open];
}
