/* Figures that a process shows to who asks (Prometheus text format 0.0.4). The registry has a fixed number of places; a figure is
 * registered once with its labels and from then on set through an atomic: counting allocates nothing and locks nothing. */
#ifndef HEARTH_COMMON_METRICS_H
#define HEARTH_COMMON_METRICS_H

#include <stdint.h>

#include "common/error.h"
#include "common/memory.h"

enum { METRIC_LABELS_MAX = 8 };

enum metric_type {
    METRIC_COUNTER,    /* whole number that only grows; the name ends in "_total" */
    METRIC_COUNTER_NS, /* counted in nanoseconds, shown in seconds; the name ends in "_seconds_total" */
    METRIC_GAUGE,      /* any number; the name does not end in "_total" */
};

/* What all figures of one name share. The texts are borrowed for as long as the registry lives. */
struct metric_row {
    const char *name; /* "hearth_", then small letters, digits and '_'; the unit is part of it (seconds, bytes) */
    const char *help; /* one sentence */
    enum metric_type type;
};

struct metric_label {
    const char *name;  /* letters, digits, '_' */
    const char *value; /* any UTF-8; copied */
};

struct metrics;
struct metric;

/* capacity: how many figures (one name with one set of labels) there may be. */
struct metrics *metrics_new(int capacity);
void metrics_free(struct metrics **metrics);

/* One figure more; *out stays valid as long as the registry. It has no value, and is not shown, before it is set. Nothing was added when
 * this fails: STATUS_INVALID for names that break the rules above, for a name that is there with another help or type, for a figure that is
 * there already (whatever the order of its labels); STATUS_NO_MEMORY when all places are taken. Not while another thread adds or renders.
 */
enum status metrics_add(struct metrics *metrics, const struct metric_row *row, const struct metric_label *labels, int n_labels,
                        struct metric **out, struct error *err);

/* Any thread, but one figure is only set by one thread at a time. metric_set_count is for both kinds of counters. */
void metric_set_count(struct metric *metric, uint64_t count);
void metric_add_count(struct metric *metric, uint64_t count);
void metric_set(struct metric *metric, double value);
void metric_clear(struct metric *metric); /* it has no value any more */

/* Appends every figure that has a value, grouped by name in the order of registration. Figures may be set meanwhile; each is shown as it
 * was at some moment of the call. */
void metrics_render(const struct metrics *metrics, struct text *out);

#endif
