/* Goal: what is published about a node, and nothing that no longer holds, can be read over HTTP at any time; nothing else is served, and a
 * taken port stops only the node that insists on it. Method: the real endpoint on loopback, a client of plain sockets, a parser of the
 * format. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"
#include "node/compute_thread.h"
#include "node/metrics_endpoint.h"
#include "tests/lib/exposition.h"

enum { LAYERS = 6, IDLE_CONNECTIONS = 12, SCRAPES = 200, TIMEOUT_S = 5 /* of node/metrics_endpoint.c */ };

#ifdef __SANITIZE_THREAD__
/* libmicrohttpd is not built with the sanitizer, which therefore sees none of its synchronisation. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:libmicrohttpd.so\ncalled_from_lib:libmicrohttpd.so\n";
}
#endif

static struct compute_thread compute; /* never started: only its counters are read */

static struct node_metrics *new_metrics(void)
{
    return node_metrics_new(&(struct node_metrics_config){&compute, "desk", "00112233445566778899aabbccddeeff", LAYERS});
}

static void read_text(const char *text, struct exposition *out)
{
    exposition_parse(out, text);
    if (*out->why)
        fail_msg("%s", out->why);
}

static void read_back(struct node_metrics *metrics, struct exposition *out)
{
    struct text text = {0};
    node_metrics_render(metrics, &text);
    read_text(text.bytes, out);
    text_free(&text);
}

/* -1: absent. */
static double value_of(const struct exposition *e, const char *name, const char *label, const char *value)
{
    const struct sample *sample = exposition_find(e, name, label, value);
    return sample ? sample->value : -1;
}

/* Every figure another number: first, first + 1, ... in the order of struct expert_stats. */
static struct expert_stats stats_from(uint64_t first)
{
    uint64_t numbers[EXPERT_STATS_FIGURES];
    struct expert_stats stats;
    for (int i = 0; i < EXPERT_STATS_FIGURES; i++)
        numbers[i] = first + (uint64_t)i;
    memcpy(&stats, numbers, sizeof stats);
    return stats;
}

/* ---- what is shown ---- */

static void a_nodes_counters_and_state_are_those_of_its_compute_thread(void **state)
{
    (void)state;
    struct node_metrics *metrics = new_metrics();
    struct exposition e;
    atomic_store(&compute.rows, 7);
    atomic_store(&compute.progress, 40);
    atomic_store(&compute.busy_ns, 1500000000);
    atomic_store(&compute.queue_ns, 1);
    atomic_store(&compute.state, COMPUTE_LOADING);
    read_back(metrics, &e);
    assert_true(value_of(&e, "hearth_node_rows_total", NULL, NULL) == 7 && value_of(&e, "hearth_node_units_total", NULL, NULL) == 40);
    assert_true(value_of(&e, "hearth_node_busy_seconds_total", NULL, NULL) == 1.5 &&
                value_of(&e, "hearth_node_queue_seconds_total", NULL, NULL) == 1e-9);
    assert_true(value_of(&e, "hearth_node_state", "state", "loading") == 1 && value_of(&e, "hearth_node_state", "state", "waiting") == 0 &&
                value_of(&e, "hearth_node_state", "state", "ready") == 0 && value_of(&e, "hearth_node_state", "state", "failed") == 0);
    assert_true(value_of(&e, "hearth_node_epoch", NULL, NULL) == 0 && value_of(&e, "hearth_node_layer_begin", NULL, NULL) == -1);
    exposition_release(&e);
    node_metrics_publish_epoch(metrics, 3, 0, 4);
    read_back(metrics, &e);
    assert_true(value_of(&e, "hearth_node_epoch", NULL, NULL) == 3 && value_of(&e, "hearth_node_layer_begin", NULL, NULL) == 0 &&
                value_of(&e, "hearth_node_layer_end", NULL, NULL) == 4);
    exposition_release(&e);
    node_metrics_publish_epoch(metrics, 0, 0, 0);
    read_back(metrics, &e);
    assert_true(value_of(&e, "hearth_node_layer_end", NULL, NULL) == -1);
    exposition_release(&e);
    node_metrics_free(&metrics);
    memset(&compute, 0, sizeof compute);
}

static void memory_is_shown_by_the_accounts_of_the_present_plan(void **state)
{
    (void)state;
    struct node_metrics *metrics = new_metrics();
    struct exposition e;
    struct budget first = {.limit = 1000}, second = {.limit = 2000};
    budget_add(&first, "weights", 500, NULL);
    budget_add(&first, "experts", 300, NULL);
    budget_add(&second, "weights", 600, NULL);
    budget_add(&second, "slots", 900, NULL);
    node_metrics_publish_memory(metrics, &first);
    read_back(metrics, &e);
    assert_true(value_of(&e, "hearth_node_memory_limit_bytes", NULL, NULL) == 1000);
    assert_true(value_of(&e, "hearth_node_memory_bytes", "account", "weights") == 500 &&
                value_of(&e, "hearth_node_memory_bytes", "account", "experts") == 300);
    exposition_release(&e);
    node_metrics_publish_memory(metrics, &second);
    read_back(metrics, &e);
    assert_true(value_of(&e, "hearth_node_memory_limit_bytes", NULL, NULL) == 2000);
    assert_true(value_of(&e, "hearth_node_memory_bytes", "account", "weights") == 600 &&
                value_of(&e, "hearth_node_memory_bytes", "account", "slots") == 900);
    assert_true(value_of(&e, "hearth_node_memory_bytes", "account", "experts") == -1);
    exposition_release(&e);
    for (int i = 0; i < 5 * BUDGET_ACCOUNTS_MAX; i++) { /* more names than will ever be */
        struct budget odd = {0};
        char name[60];
        snprintf(name, sizeof name, "\"account\" number %d with a name that is cut", i);
        budget_add(&odd, name, 1, NULL);
        node_metrics_publish_memory(metrics, &odd);
        read_back(metrics, &e);
        exposition_release(&e);
    }
    node_metrics_free(&metrics);
}

static void figures_of_the_experts_are_shown_in_sum_and_by_layer_where_layers_have_them(void **state)
{
    (void)state;
    static const char *const names[] = {"requests_total",
                                        "hits_total",
                                        "misses_total",
                                        "reads_total",
                                        "read_bytes_total",
                                        "evictions_total",
                                        "prefetch_useful_bytes_total",
                                        "prefetch_wasted_bytes_total",
                                        "wait_seconds_total",
                                        "slots_used",
                                        "read_errors_total",
                                        "retries_total",
                                        "checksum_errors_total",
                                        "read_seconds_total",
                                        "slots"};
    enum { BY_LAYER = 10 };
    _Static_assert(sizeof names / sizeof *names == EXPERT_STATS_FIGURES, "a name for each, in the order of struct expert_stats");
    struct node_metrics *metrics = new_metrics();
    struct expert_stats layers[2] = {stats_from(100), stats_from(200)}, sum = {0};
    struct exposition e;
    expert_stats_add(&sum, &layers[0]);
    expert_stats_add(&sum, &layers[1]);
    node_metrics_publish_experts(metrics, &sum, layers, 4, 2);
    read_back(metrics, &e);
    for (int i = 0; i < EXPERT_STATS_FIGURES; i++) {
        char of_layer[80], of_all[80];
        double unit = strstr(names[i], "seconds") ? 1e9 : 1;
        snprintf(of_layer, sizeof of_layer, "hearth_expert_layer_%s", names[i]);
        snprintf(of_all, sizeof of_all, "hearth_expert_%s", names[i]);
        assert_true(value_of(&e, of_layer, "layer", "3") == -1);
        assert_true(value_of(&e, of_layer, "layer", "4") == (i < BY_LAYER ? (100 + i) / unit : -1));
        assert_true(value_of(&e, of_layer, "layer", "5") == (i < BY_LAYER ? (200 + i) / unit : -1));
        assert_true(value_of(&e, of_all, NULL, NULL) == (300 + 2 * i) / unit);
    }
    exposition_release(&e);
    node_metrics_free(&metrics);
}

static void layers_that_are_no_longer_owned_disappear(void **state)
{
    (void)state;
    struct node_metrics *metrics = new_metrics();
    struct expert_stats layers[LAYERS] = {stats_from(1), stats_from(20)}, sum = stats_from(50), seen;
    struct exposition e;
    read_back(metrics, &e);
    assert_true(value_of(&e, "hearth_expert_hits_total", NULL, NULL) == -1); /* no store, no figures */
    exposition_release(&e);
    node_metrics_publish_experts(metrics, &sum, layers, 0, LAYERS);
    node_metrics_publish_experts(metrics, &sum, layers, 2, 1);
    read_back(metrics, &e);
    assert_true(value_of(&e, "hearth_expert_layer_hits_total", "layer", "2") == 2);
    assert_true(value_of(&e, "hearth_expert_layer_hits_total", "layer", "1") == -1 &&
                value_of(&e, "hearth_expert_layer_hits_total", "layer", "3") == -1);
    node_metrics_experts(metrics, &seen);
    assert_memory_equal(&seen, &sum, sizeof seen);
    exposition_release(&e);
    node_metrics_publish_experts(metrics, NULL, NULL, 0, 0);
    read_back(metrics, &e);
    assert_true(value_of(&e, "hearth_expert_layer_hits_total", "layer", "2") == -1 &&
                value_of(&e, "hearth_expert_hits_total", NULL, NULL) == -1);
    node_metrics_experts(metrics, &seen);
    assert_true(seen.hits == 0 && seen.slots == 0);
    exposition_release(&e);
    node_metrics_free(&metrics);
}

/* ---- over HTTP ---- */

static int connect_to(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* The whole answer, head and body; *body points into it. Caller frees. */
static char *ask(int port, const char *method, const char *path, const char *more, char **body)
{
    struct text answer = {0};
    char buffer[4096];
    ssize_t n;
    int fd = connect_to(port);
    char *request = xasprintf("%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s", method, path, more);
    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), (ssize_t)strlen(request));
    while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0)
        text_append(&answer, buffer, (size_t)n);
    close(fd);
    free(request);
    assert_non_null(answer.bytes);
    *body = strstr(answer.bytes, "\r\n\r\n");
    assert_non_null(*body);
    *body += 4;
    return answer.bytes;
}

static int code_of(const char *answer)
{
    int code = 0;
    sscanf(answer, "HTTP/1.1 %d", &code);
    return code;
}

static struct metrics_endpoint *open_endpoint(const char *address, struct node_metrics *metrics)
{
    struct metrics_endpoint *endpoint;
    struct error err = {0};
    if (metrics_endpoint_open(&endpoint, address, metrics, &err))
        fail_msg("%s", err.text);
    return endpoint;
}

static void metrics_are_served_and_nothing_else(void **state)
{
    (void)state;
    static const struct {
        const char *method, *path, *more;
        int code;
    } cases[] = {{"GET", "/", "\r\n", 404},
                 {"GET", "/metrics/", "\r\n", 404},
                 {"GET", "/Metrics", "\r\n", 404},
                 {"POST", "/", "Content-Length: 2\r\n\r\n{}", 404},
                 {"POST", "/metrics", "Content-Length: 2\r\n\r\n{}", 405},
                 {"PUT", "/metrics", "Transfer-Encoding: chunked\r\n\r\n", 405},
                 {"DELETE", "/metrics", "\r\n", 405},
                 {"OPTIONS", "/metrics", "\r\n", 405},
                 {"GET", "/metrics?name[]=x", "\r\n", 200}};
    struct node_metrics *metrics = new_metrics();
    struct metrics_endpoint *endpoint = open_endpoint("127.0.0.1:0", metrics);
    int port = metrics_endpoint_port(endpoint);
    char *body, *answer = ask(port, "GET", "/metrics", "\r\n", &body);
    struct exposition e;
    assert_int_equal(code_of(answer), 200);
    assert_non_null(strstr(answer, "Content-Type: text/plain; version=0.0.4"));
    read_text(body, &e);
    assert_true(e.n > 5 && exposition_find(&e, "hearth_node_rows_total", NULL, NULL));
    exposition_release(&e);
    free(answer);
    answer = ask(port, "HEAD", "/metrics", "\r\n", &body);
    assert_int_equal(code_of(answer), 200);
    assert_string_equal(body, "");
    free(answer);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        answer = ask(port, cases[i].method, cases[i].path, cases[i].more, &body);
        assert_int_equal(code_of(answer), cases[i].code);
        assert_true(cases[i].code != 405 || strstr(answer, "Allow: GET, HEAD"));
        free(answer);
    }
    metrics_endpoint_close(&endpoint);
    node_metrics_free(&metrics);
}

static void a_taken_port_stops_only_who_insists_on_it(void **state)
{
    (void)state;
    struct node_metrics *metrics = new_metrics();
    struct error err = {0};
    struct metrics_endpoint *first = NULL, *second = NULL, *other = NULL;
    assert_int_equal(metrics_endpoint_open(&first, NULL, metrics, &err), STATUS_OK); /* has it, or another program of this machine has */
    assert_int_equal(metrics_endpoint_open(&second, NULL, metrics, &err), STATUS_OK);
    assert_null(second);
    assert_int_equal(metrics_endpoint_open(&second, METRICS_ADDRESS_DEFAULT, metrics, &err), STATUS_IO);
    assert_null(second);
    assert_non_null(strstr(err.text, METRICS_ADDRESS_DEFAULT));
    other = open_endpoint("localhost:0", metrics);
    assert_true(metrics_endpoint_port(other) > 0);
    metrics_endpoint_close(&other);
    assert_null(open_endpoint("off", metrics));
    metrics_endpoint_close(&first);
    metrics_endpoint_close(&second); /* nothing */
    node_metrics_free(&metrics);
}

static void what_is_no_address_is_refused_with_the_reason(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "7603", "desk.example:7603", "on"}; /* the others: tests/common/test_sockets.c */
    struct node_metrics *metrics = new_metrics();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct metrics_endpoint *endpoint;
        struct error err = {0};
        assert_int_equal(metrics_endpoint_open(&endpoint, bad[i], metrics, &err), STATUS_INVALID);
        assert_null(endpoint);
        assert_non_null(strstr(err.text, "--metrics: '"));
    }
    node_metrics_free(&metrics);
}

static void connections_that_say_nothing_do_not_keep_a_node_from_ending(void **state)
{
    (void)state;
    struct node_metrics *metrics = new_metrics();
    struct metrics_endpoint *endpoint = open_endpoint("127.0.0.1:0", metrics);
    int fds[IDLE_CONNECTIONS], port = metrics_endpoint_port(endpoint);
    for (int i = 0; i < IDLE_CONNECTIONS; i++)
        fds[i] = connect_to(port);
    uint64_t start = clock_now_ns(clock_monotonic());
    metrics_endpoint_close(&endpoint);
    assert_true(clock_now_ns(clock_monotonic()) - start < (TIMEOUT_S - 1) * UINT64_C(1000000000)); /* it has not waited for them */
    for (int i = 0; i < IDLE_CONNECTIONS; i++)
        close(fds[i]);
    node_metrics_free(&metrics);
}

/* ---- while a node works ---- */

static atomic_int should_stop;

/* Two layers and their sum, always published together: whoever sees them apart sees a torn copy. */
static void *publish(void *argument)
{
    struct node_metrics *metrics = argument;
    for (uint64_t n = 1; !atomic_load(&should_stop); n++) {
        struct expert_stats layers[2] = {{.hits = n}, {.hits = 2 * n}}, sum = {.hits = 3 * n};
        struct budget budget = {.limit = n};
        budget_add(&budget, "weights", n, NULL);
        node_metrics_publish_experts(metrics, &sum, layers, 1, 2);
        node_metrics_publish_memory(metrics, &budget);
        node_metrics_publish_epoch(metrics, (uint32_t)n, 1, 3);
        atomic_store(&compute.rows, n);
    }
    return NULL;
}

static void what_is_read_while_the_node_works_was_published_together(void **state)
{
    (void)state;
    struct node_metrics *metrics = new_metrics();
    struct metrics_endpoint *endpoint = open_endpoint("127.0.0.1:0", metrics);
    pthread_t thread;
    double last = -1;
    atomic_store(&should_stop, 0);
    assert_int_equal(pthread_create(&thread, NULL, publish, metrics), 0);
    for (int i = 0; i < SCRAPES; i++) {
        struct exposition e;
        struct expert_stats sum;
        char *body, *answer = ask(metrics_endpoint_port(endpoint), "GET", "/metrics", "\r\n", &body);
        read_text(body, &e);
        double all = value_of(&e, "hearth_expert_hits_total", NULL, NULL),
               one = value_of(&e, "hearth_expert_layer_hits_total", "layer", "1");
        assert_true(all >= last);
        assert_true(all == -1 || (all == 3 * one && value_of(&e, "hearth_expert_layer_hits_total", "layer", "2") == 2 * one));
        assert_true(value_of(&e, "hearth_node_memory_limit_bytes", NULL, NULL) <= 0 ||
                    value_of(&e, "hearth_node_memory_bytes", "account", "weights") ==
                        value_of(&e, "hearth_node_memory_limit_bytes", NULL, NULL));
        node_metrics_experts(metrics, &sum);
        assert_true(all <= 0 || (double)sum.hits >= all);
        last = all;
        exposition_release(&e);
        free(answer);
    }
    assert_true(last > 0);
    atomic_store(&should_stop, 1);
    pthread_join(thread, NULL);
    metrics_endpoint_close(&endpoint);
    node_metrics_free(&metrics);
    memset(&compute, 0, sizeof compute);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_nodes_counters_and_state_are_those_of_its_compute_thread),
        cmocka_unit_test(memory_is_shown_by_the_accounts_of_the_present_plan),
        cmocka_unit_test(figures_of_the_experts_are_shown_in_sum_and_by_layer_where_layers_have_them),
        cmocka_unit_test(layers_that_are_no_longer_owned_disappear),
        cmocka_unit_test(metrics_are_served_and_nothing_else),
        cmocka_unit_test(a_taken_port_stops_only_who_insists_on_it),
        cmocka_unit_test(what_is_no_address_is_refused_with_the_reason),
        cmocka_unit_test(connections_that_say_nothing_do_not_keep_a_node_from_ending),
        cmocka_unit_test(what_is_read_while_the_node_works_was_published_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
