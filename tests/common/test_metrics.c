/* Goal: what the registry writes is Prometheus' text format whatever is registered and set, and it refuses what would break it. Method: the
 * text is read back by a parser of the format (tests/lib/exposition.h) and compared with what was set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include "common/metrics.h"
#include "tests/lib/exposition.h"

static const struct metric_row rows_row = {"hearth_rows_total", "Rows.", METRIC_COUNTER};
static const struct metric_row busy_row = {"hearth_busy_seconds_total", "Time.", METRIC_COUNTER_NS};
static const struct metric_row fill_row = {"hearth_fill_ratio", "How full.", METRIC_GAUGE};

static struct metric *add(struct metrics *m, const struct metric_row *row, const char *label, const char *value)
{
    struct metric *metric = NULL;
    struct error err = {0};
    struct metric_label labels[] = {{label, value}};
    if (metrics_add(m, row, labels, label != NULL, &metric, &err))
        fail_msg("%s", err.text);
    return metric;
}

static void read_back(const struct metrics *m, struct exposition *out)
{
    struct text text = {0};
    metrics_render(m, &text);
    exposition_parse(out, text.bytes ? text.bytes : "");
    if (*out->why)
        fail_msg("%s\n%s", out->why, text.bytes);
    text_free(&text);
}

static const char *shown(const struct exposition *e, const char *name, const char *label, const char *value)
{
    const struct sample *sample = exposition_find(e, name, label, value);
    return sample ? sample->value_text : "absent";
}

static void counters_and_gauges_are_shown_with_every_digit(void **state)
{
    (void)state;
    static const double gauges[] = {0, 1, -2.5, 0.1, 1e300, 5e-324, 123456789012345678.0, 1.0 / 3, 4503599627370497.5};
    struct metrics *m = metrics_new(8);
    struct metric *rows = add(m, &rows_row, NULL, NULL), *busy = add(m, &busy_row, NULL, NULL), *fill = add(m, &fill_row, NULL, NULL);
    struct exposition e;
    read_back(m, &e);
    assert_int_equal(e.n, 0); /* nothing has a value */
    exposition_release(&e);
    metric_set_count(rows, UINT64_MAX - 1);
    metric_add_count(rows, 1);
    metric_set_count(busy, UINT64_C(12345678901234567890));
    metric_set(fill, INFINITY);
    read_back(m, &e);
    assert_int_equal(e.n, 3);
    assert_string_equal(shown(&e, "hearth_rows_total", NULL, NULL), "18446744073709551615");
    assert_string_equal(shown(&e, "hearth_busy_seconds_total", NULL, NULL), "12345678901.234567890");
    assert_string_equal(shown(&e, "hearth_fill_ratio", NULL, NULL), "+Inf");
    assert_true(exposition_find(&e, "hearth_rows_total", NULL, NULL)->is_counter &&
                exposition_find(&e, "hearth_busy_seconds_total", NULL, NULL)->is_counter &&
                !exposition_find(&e, "hearth_fill_ratio", NULL, NULL)->is_counter);
    exposition_release(&e);
    for (size_t i = 0; i < sizeof gauges / sizeof *gauges; i++) {
        metric_set(fill, gauges[i]);
        read_back(m, &e);
        assert_true(exposition_find(&e, "hearth_fill_ratio", NULL, NULL)->value == gauges[i]);
        exposition_release(&e);
    }
    metric_set(fill, 0.1);
    read_back(m, &e);
    assert_string_equal(shown(&e, "hearth_fill_ratio", NULL, NULL), "0.1"); /* as a person would write it */
    exposition_release(&e);
    metrics_free(&m);
}

static void labels_and_help_survive_every_character(void **state)
{
    (void)state;
    static const char *const values[] = {"",    "plain", "back\\slash", "quote\"d", "two\nlines",
                                         "\\n", "}",     "a,b=\"c\"",   "grün 火",  "\\\\\"\n\\"};
    static const struct metric_row row = {"hearth_names", "Back\\slash, \"quotes\",\nand a second line.", METRIC_GAUGE};
    enum { N = sizeof values / sizeof *values };
    struct metrics *m = metrics_new(N);
    for (int i = 0; i < N; i++)
        metric_set(add(m, &row, "name", values[i]), i);
    struct exposition e;
    read_back(m, &e);
    assert_int_equal(e.n, N);
    for (int i = 0; i < N; i++)
        assert_true(exposition_find(&e, "hearth_names", "name", values[i])->value == i);
    exposition_release(&e);
    struct text text = {0};
    metrics_render(m, &text);
    assert_non_null(strstr(text.bytes, "# HELP hearth_names Back\\\\slash, \"quotes\",\\nand a second line.\n"));
    text_free(&text);
    metrics_free(&m);
}

static void figures_of_one_name_stand_together_whatever_the_order_they_came_in(void **state)
{
    (void)state;
    struct metrics *m = metrics_new(16);
    for (int i = 0; i < 4; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        metric_set_count(add(m, &rows_row, "layer", number), (uint64_t)i);
        metric_set(add(m, &fill_row, "layer", number), i);
    }
    struct exposition e;
    read_back(m, &e); /* the parser refuses a name in two groups */
    assert_int_equal(e.n, 8);
    exposition_release(&e);
    metrics_free(&m);
}

static void a_cleared_figure_is_not_shown_until_it_is_set_again(void **state)
{
    (void)state;
    struct metrics *m = metrics_new(2);
    struct metric *a = add(m, &fill_row, "of", "a"), *b = add(m, &fill_row, "of", "b");
    struct exposition e;
    metric_set(a, 1);
    metric_set(b, 2);
    metric_clear(a);
    read_back(m, &e);
    assert_int_equal(e.n, 1);
    assert_string_equal(shown(&e, "hearth_fill_ratio", "of", "b"), "2");
    exposition_release(&e);
    metric_clear(b);
    read_back(m, &e);
    assert_int_equal(e.n, 0); /* not even its HELP */
    exposition_release(&e);
    metric_set(a, 3);
    read_back(m, &e);
    assert_string_equal(shown(&e, "hearth_fill_ratio", "of", "a"), "3");
    exposition_release(&e);
    metrics_free(&m);
}

static void refused(struct metrics *m, const struct metric_row *row, const struct metric_label *labels, int n_labels, enum status status,
                    const char *words)
{
    struct metric *metric = NULL;
    struct error err = {0};
    assert_int_equal(metrics_add(m, row, labels, n_labels, &metric, &err), status);
    assert_null(metric);
    if (!strstr(err.text, words))
        fail_msg("'%s' does not say '%s'", err.text, words);
}

static void duplicates_and_contradictions_are_refused(void **state)
{
    (void)state;
    static const struct metric_row other_help = {"hearth_rows_total", "Others.", METRIC_COUNTER},
                                   same = {"hearth_rows_total", "Rows.", METRIC_COUNTER};
    static const struct metric_label ab[] = {{"a", "1"}, {"b", "2"}}, ba[] = {{"b", "2"}, {"a", "1"}}, aa[] = {{"a", "1"}, {"a", "2"}};
    struct metrics *m = metrics_new(3);
    struct metric *metric;
    struct error err;
    metric_set_count(add(m, &rows_row, NULL, NULL), 1);
    assert_int_equal(metrics_add(m, &rows_row, ab, 2, &metric, &err), STATUS_OK);
    metric_set_count(metric, 2);
    refused(m, &same, NULL, 0, STATUS_INVALID, "hearth_rows_total' is there already");
    refused(m, &same, ba, 2, STATUS_INVALID, "hearth_rows_total{a=\"1\",b=\"2\"}' is there already");
    refused(m, &other_help, ab, 1, STATUS_INVALID, "another type or help");
    refused(m, &same, aa, 2, STATUS_INVALID, "twice");
    metric_set_count(add(m, &same, "a", "1"), 3); /* fewer labels are another figure; an equal row is the same name */
    refused(m, &same, ba, 1, STATUS_NO_MEMORY, "all 3 places");
    struct exposition e;
    read_back(m, &e);
    assert_int_equal(e.n, 3); /* refusals left nothing behind */
    exposition_release(&e);
    metrics_free(&m);
}

static void names_that_prometheus_or_our_rules_forbid_are_refused(void **state)
{
    (void)state;
    static const struct metric_row bad[] = {{"rows_total", "", METRIC_COUNTER},
                                            {"hearth_", "", METRIC_GAUGE},
                                            {"hearth_rows", "", METRIC_COUNTER},
                                            {"hearth_size_total", "", METRIC_GAUGE},
                                            {"hearth_busy_total", "", METRIC_COUNTER_NS},
                                            {"hearth_Rows_total", "", METRIC_COUNTER},
                                            {"hearth_a-b", "", METRIC_GAUGE},
                                            {"hearth_a b", "", METRIC_GAUGE}};
    static const struct metric_label labels[] = {{"", "x"}, {"1a", "x"}, {"a-b", "x"}, {"__name__", "x"}};
    struct metrics *m = metrics_new(4);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refused(m, &bad[i], NULL, 0, STATUS_INVALID, bad[i].name);
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++)
        refused(m, &fill_row, &labels[i], 1, STATUS_INVALID, labels[i].name);
    metrics_free(&m);
}

/* One thread counts, one sets and clears; this one renders. */
static atomic_int should_stop;
static struct metric *counted, *flickering;

static void *count(void *unused)
{
    while (!atomic_load(&should_stop)) {
        metric_add_count(counted, 1);
        metric_set(flickering, 0.5);
        metric_clear(flickering);
    }
    return unused;
}

static void counting_while_it_is_shown_never_goes_back(void **state)
{
    (void)state;
    struct metrics *m = metrics_new(2);
    pthread_t thread;
    double last = 0;
    counted = add(m, &rows_row, NULL, NULL);
    flickering = add(m, &fill_row, NULL, NULL);
    metric_set_count(counted, 0);
    atomic_store(&should_stop, 0);
    assert_int_equal(pthread_create(&thread, NULL, count, NULL), 0);
    for (int i = 0; i < 2000 || last == 0; i++) {
        struct exposition e;
        read_back(m, &e);
        assert_true(exposition_find(&e, "hearth_rows_total", NULL, NULL)->value >= last);
        last = exposition_find(&e, "hearth_rows_total", NULL, NULL)->value;
        const struct sample *fill = exposition_find(&e, "hearth_fill_ratio", NULL, NULL);
        assert_true(!fill || fill->value == 0.5);
        exposition_release(&e);
    }
    atomic_store(&should_stop, 1);
    pthread_join(thread, NULL);
    metrics_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counters_and_gauges_are_shown_with_every_digit),
        cmocka_unit_test(labels_and_help_survive_every_character),
        cmocka_unit_test(figures_of_one_name_stand_together_whatever_the_order_they_came_in),
        cmocka_unit_test(a_cleared_figure_is_not_shown_until_it_is_set_again),
        cmocka_unit_test(duplicates_and_contradictions_are_refused),
        cmocka_unit_test(names_that_prometheus_or_our_rules_forbid_are_refused),
        cmocka_unit_test(counting_while_it_is_shown_never_goes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
