#include "common/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"

#define PREFIX "hearth_"

struct metric {
    enum metric_type type;
    char *labels;              /* as shown: "" or {a="b",c="d"}, names in ascending order */
    struct metric *next;       /* of the same name */
    atomic_uint_fast64_t bits; /* the count, or the bits of a gauge's double */
    atomic_int has_value;
};

struct family {
    const struct metric_row *row;
    struct metric *first, *last;
};

struct metrics {
    struct metric *places;
    struct family *families;
    int n, n_families, capacity;
};

struct metrics *metrics_new(int capacity)
{
    CHECK(capacity > 0);
    struct metrics *m = xcalloc(1, sizeof *m);
    m->places = xcalloc((size_t)capacity, sizeof *m->places);
    m->families = xcalloc((size_t)capacity, sizeof *m->families);
    m->capacity = capacity;
    return m;
}

void metrics_free(struct metrics **metrics)
{
    struct metrics *m = *metrics;
    if (!m)
        return;
    for (int i = 0; i < m->n; i++)
        free(m->places[i].labels);
    free(m->places);
    free(m->families);
    free(m);
    *metrics = NULL;
}

/* ---- registration ---- */

static int ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && !strcmp(text + length - end_length, end);
}

static enum status check_row(const struct metric_row *row, struct error *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    const char *name = row->name;
    if (strncmp(name, PREFIX, strlen(PREFIX)) || name[strspn(name, allowed)] || !name[strlen(PREFIX)])
        return error_set(err, STATUS_INVALID, "metric '%s': a name is \"" PREFIX "\" and small letters, digits and '_'", name);
    if (row->type == METRIC_COUNTER_NS && !ends_with(name, "_seconds_total"))
        return error_set(err, STATUS_INVALID, "metric '%s': the name of a counter of time ends in \"_seconds_total\"", name);
    if ((row->type != METRIC_GAUGE) != ends_with(name, "_total"))
        return error_set(err, STATUS_INVALID, "metric '%s': the names of counters, and of nothing else, end in \"_total\"", name);
    return STATUS_OK;
}

static int is_label_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    return *name && strncmp(name, "__", 2) && !(*name >= '0' && *name <= '9') && !name[strspn(name, letters)];
}

static int by_label_name(const void *a, const void *b)
{
    return strcmp(((const struct metric_label *)a)->name, ((const struct metric_label *)b)->name);
}

/* Backslash and line feed are written with a backslash in help texts; in labels, which stand in quotes, the quote too. */
static void put_escaped(struct text *out, const char *text, int is_quoted)
{
    for (; *text; text++) {
        if (*text == '\n')
            text_append_string(out, "\\n");
        else if (*text == '\\' || (*text == '"' && is_quoted))
            text_append(out, (char[]){'\\', *text}, 2);
        else
            text_append(out, text, 1);
    }
}

/* Labels in one order, so that two figures are the same exactly when their texts are. */
static enum status labels_text(struct text *out, const struct metric_row *row, const struct metric_label *labels, int n_labels,
                               struct error *err)
{
    struct metric_label sorted[METRIC_LABELS_MAX];
    if (n_labels > METRIC_LABELS_MAX)
        return error_set(err, STATUS_INVALID, "metric '%s': %d labels, at most %d are allowed", row->name, n_labels, METRIC_LABELS_MAX);
    for (int i = 0; i < n_labels; i++)
        sorted[i] = labels[i];
    qsort(sorted, (size_t)n_labels, sizeof *sorted, by_label_name);
    text_append_string(out, n_labels ? "{" : "");
    for (int i = 0; i < n_labels; i++) {
        if (!is_label_name(sorted[i].name) || (i && !strcmp(sorted[i].name, sorted[i - 1].name)))
            return error_set(err, STATUS_INVALID, "metric '%s': '%s' is no name of a label, or is there twice", row->name, sorted[i].name);
        text_append_string(out, i ? "," : "");
        text_append_string(out, sorted[i].name);
        text_append_string(out, "=\"");
        put_escaped(out, sorted[i].value, 1);
        text_append_string(out, "\"");
    }
    text_append_string(out, n_labels ? "}" : "");
    return STATUS_OK;
}

/* The name's family. NULL: the name is new. */
static struct family *family_of(struct metrics *m, const char *name)
{
    for (int i = 0; i < m->n_families; i++)
        if (!strcmp(m->families[i].row->name, name))
            return &m->families[i];
    return NULL;
}

static enum status check_place(const struct metrics *m, const struct family *family, const struct metric_row *row, const char *labels,
                               struct error *err)
{
    if (family && (family->row->type != row->type || strcmp(family->row->help, row->help)))
        return error_set(err, STATUS_INVALID, "metric '%s' is there already with another type or help", row->name);
    for (const struct metric *other = family ? family->first : NULL; other; other = other->next)
        if (!strcmp(other->labels, labels))
            return error_set(err, STATUS_INVALID, "metric '%s%s' is there already", row->name, labels);
    if (m->n == m->capacity)
        return error_set(err, STATUS_NO_MEMORY, "metric '%s%s': all %d places are taken", row->name, labels, m->capacity);
    return STATUS_OK;
}

enum status metrics_add(struct metrics *m, const struct metric_row *row, const struct metric_label *labels, int n_labels,
                        struct metric **out, struct error *err)
{
    struct text text = {0};
    enum status status = check_row(row, err);
    if (!status)
        status = labels_text(&text, row, labels, n_labels, err);
    struct family *family = family_of(m, row->name);
    if (!status)
        status = check_place(m, family, row, text.bytes ? text.bytes : "", err);
    if (!status) {
        struct metric *metric = &m->places[m->n++];
        metric->type = row->type;
        metric->labels = xstrdup(text.bytes ? text.bytes : "");
        if (!family) {
            family = &m->families[m->n_families++];
            *family = (struct family){row, metric, metric};
        } else {
            family->last = family->last->next = metric;
        }
        *out = metric;
    }
    text_free(&text);
    return status;
}

/* ---- values ---- */

static void set_bits(struct metric *metric, uint64_t bits)
{
    atomic_store_explicit(&metric->bits, bits, memory_order_relaxed);
    atomic_store_explicit(&metric->has_value, 1, memory_order_release); /* who sees it sees the value */
}

void metric_set_count(struct metric *metric, uint64_t count)
{
    CHECK(metric->type != METRIC_GAUGE);
    set_bits(metric, count);
}

void metric_add_count(struct metric *metric, uint64_t count)
{
    CHECK(metric->type != METRIC_GAUGE);
    set_bits(metric, atomic_load_explicit(&metric->bits, memory_order_relaxed) + count);
}

void metric_set(struct metric *metric, double value)
{
    uint64_t bits;
    _Static_assert(sizeof bits == sizeof value, "a double fits into the atomic");
    CHECK(metric->type == METRIC_GAUGE);
    memcpy(&bits, &value, sizeof bits);
    set_bits(metric, bits);
}

void metric_clear(struct metric *metric)
{
    atomic_store_explicit(&metric->has_value, 0, memory_order_relaxed);
}

/* ---- text ---- */

/* As few digits as give the same number when read. */
static void real_text(double value, char text[40])
{
    if (isnan(value))
        snprintf(text, 40, "NaN");
    else if (isinf(value))
        snprintf(text, 40, value > 0 ? "+Inf" : "-Inf");
    else {
        snprintf(text, 40, "%.15g", value);
        if (strtod(text, NULL) != value)
            snprintf(text, 40, "%.17g", value);
    }
}

static void put_value(struct text *out, const struct metric *metric)
{
    const uint64_t second = 1000000000;
    uint64_t bits = atomic_load_explicit(&metric->bits, memory_order_relaxed);
    double value;
    char text[40];
    memcpy(&value, &bits, sizeof value);
    if (metric->type == METRIC_COUNTER)
        snprintf(text, sizeof text, "%" PRIu64, bits);
    else if (metric->type == METRIC_COUNTER_NS)
        snprintf(text, sizeof text, "%" PRIu64 ".%09" PRIu64, bits / second, bits % second);
    else
        real_text(value, text);
    text_append_string(out, text);
}

static void put_head(struct text *out, const struct metric_row *row)
{
    text_append_string(out, "# HELP ");
    text_append_string(out, row->name);
    text_append_string(out, " ");
    put_escaped(out, row->help, 0);
    text_append_string(out, "\n# TYPE ");
    text_append_string(out, row->name);
    text_append_string(out, row->type == METRIC_GAUGE ? " gauge\n" : " counter\n");
}

void metrics_render(const struct metrics *m, struct text *out)
{
    for (int i = 0; i < m->n_families; i++) {
        const struct family *family = &m->families[i];
        int n_shown = 0;
        for (const struct metric *metric = family->first; metric; metric = metric->next) {
            if (!atomic_load_explicit(&metric->has_value, memory_order_acquire))
                continue;
            if (!n_shown++)
                put_head(out, family->row);
            text_append_string(out, family->row->name);
            text_append_string(out, metric->labels);
            text_append_string(out, " ");
            put_value(out, metric);
            text_append_string(out, "\n");
        }
    }
}
