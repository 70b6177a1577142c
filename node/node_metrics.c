#include "node/node_metrics.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/metrics.h"
#include "node/compute_thread.h"

enum { ACCOUNTS_MAX = 2 * BUDGET_ACCOUNTS_MAX, ACCOUNT_NAME_BYTES = 48 };

/* ---- the tables: what is shown ---- */

/* Figures of the whole node, read at one moment. */
struct figures {
    uint64_t rows, units, busy_ns, queue_ns, memory_limit_bytes, epoch, layer_begin, layer_end;
};

enum shown { ALWAYS, WITH_PLAN, WITH_EPOCH }; /* once memory was planned; while the node is part of a map */

#define AT(member) offsetof(struct figures, member)
static const struct {
    struct metric_row metric;
    size_t offset; /* in struct figures */
    enum shown shown;
} node_rows[] = {
    {{"hearth_node_rows_total", "Rows that went through this node's layers.", METRIC_COUNTER}, AT(rows), ALWAYS},
    {{"hearth_node_units_total", "Units of work done; a unit is a few rows in one layer.", METRIC_COUNTER}, AT(units), ALWAYS},
    {{"hearth_node_busy_seconds_total", "Time spent in units, waiting for experts included.", METRIC_COUNTER_NS}, AT(busy_ns), ALWAYS},
    {{"hearth_node_queue_seconds_total", "Time that rows waited for their first unit, summed.", METRIC_COUNTER_NS}, AT(queue_ns), ALWAYS},
    {{"hearth_node_memory_limit_bytes", "Memory that this node may plan for.", METRIC_GAUGE}, AT(memory_limit_bytes), WITH_PLAN},
    {{"hearth_node_epoch", "Number of the layer map that this node is part of; 0: none.", METRIC_GAUGE}, AT(epoch), ALWAYS},
    {{"hearth_node_layer_begin", "First layer of this node.", METRIC_GAUGE}, AT(layer_begin), WITH_EPOCH},
    {{"hearth_node_layer_end", "Layer after the last one of this node.", METRIC_GAUGE}, AT(layer_end), WITH_EPOCH},
};
#undef AT

/* Figures of experts: two names each, because a sum over one name that has both the layers and their sum would count twice. */
#define FIGURE(name, help, type, member)                                                                                                   \
    {                                                                                                                                      \
        {"hearth_expert_" name, help, type}, {"hearth_expert_layer_" name, help, type}, offsetof(struct expert_stats, member)              \
    }
#define SUM_FIGURE(name, help, type, member)                                                                                               \
    {                                                                                                                                      \
        .sum = {"hearth_expert_" name, help, type}, .offset = offsetof(struct expert_stats, member)                                        \
    }
static const struct {
    struct metric_row sum, layer; /* layer.name NULL: layers share it */
    size_t offset; /* in struct expert_stats */
} expert_rows[] = {
    FIGURE("requests_total", "Requests for experts: one a unit and layer.", METRIC_COUNTER, requests),
    FIGURE("hits_total", "Experts asked for that were in memory.", METRIC_COUNTER, hits),
    FIGURE("misses_total", "Experts asked for that had to be read, or were on their way.", METRIC_COUNTER, misses),
    FIGURE("reads_total", "Records read from a drive and verified.", METRIC_COUNTER, reads),
    FIGURE("read_bytes_total", "Bytes read from a drive.", METRIC_COUNTER, bytes_read),
    FIGURE("evictions_total", "Experts that gave up their place in memory.", METRIC_COUNTER, evictions),
    FIGURE("prefetch_useful_bytes_total", "Bytes read ahead and then asked for.", METRIC_COUNTER, prefetch_useful_bytes),
    FIGURE("prefetch_wasted_bytes_total", "Bytes read ahead and given up unused.", METRIC_COUNTER, prefetch_wasted_bytes),
    FIGURE("wait_seconds_total", "Time that computing stood still for want of an expert.", METRIC_COUNTER_NS, wait_ns),
    FIGURE("slots_used", "Experts that are in memory or landing in it.", METRIC_GAUGE, slots_used),
    SUM_FIGURE("read_errors_total", "Reads that failed or came short.", METRIC_COUNTER, read_errors),
    SUM_FIGURE("retries_total", "Records that were read again.", METRIC_COUNTER, retries),
    SUM_FIGURE("checksum_errors_total", "Records that landed with a wrong checksum.", METRIC_COUNTER, checksum_errors),
    SUM_FIGURE("read_seconds_total", "Time in which a drive had something to read.", METRIC_COUNTER_NS, read_ns),
    SUM_FIGURE("slots", "Experts that fit into memory.", METRIC_GAUGE, slots),
};
#undef FIGURE
#undef SUM_FIGURE

static const struct metric_row info_row = {"hearth_node_info", "What this node is; always 1.", METRIC_GAUGE};
static const struct metric_row state_row = {"hearth_node_state", "1 for the state that this node is in.", METRIC_GAUGE};
static const struct metric_row account_row = {"hearth_node_memory_bytes", "Memory planned for, by account.", METRIC_GAUGE};

enum {
    NODE_ROWS = sizeof node_rows / sizeof *node_rows,
    EXPERT_ROWS = sizeof expert_rows / sizeof *expert_rows,
};
_Static_assert((int)EXPERT_ROWS == (int)EXPERT_STATS_FIGURES, "every figure of the experts has its row");

/* ---- what was published ---- */

struct published {
    uint32_t epoch;
    int layer_begin, layer_end;
    uint64_t memory_limit_bytes;
    int n_accounts;
    struct {
        char name[ACCOUNT_NAME_BYTES];
        uint64_t bytes;
    } accounts[BUDGET_ACCOUNTS_MAX];
    int has_experts, experts_begin, experts_end; /* layers */
    struct expert_stats sum;
};

struct account {
    char name[ACCOUNT_NAME_BYTES];
    struct metric *metric;
};

struct node_metrics {
    const struct compute_thread *compute;
    int n_layers;
    pthread_mutex_t lock; /* of the next two */
    struct published published;
    struct expert_stats *layers; /* [n_layers] */
    /* of who renders */
    struct published shown;
    struct expert_stats *layers_shown;
    struct metrics *registry;
    struct metric *node[NODE_ROWS], *states[N_COMPUTE_STATES], *expert_sums[EXPERT_ROWS];
    struct metric **expert_layers; /* [n_layers][EXPERT_ROWS], NULL where there is only a sum */
    struct account accounts[ACCOUNTS_MAX];
    int n_accounts;
};

static struct metric *add(struct node_metrics *m, const struct metric_row *row, const struct metric_label *labels, int n_labels)
{
    struct metric *metric = NULL;
    struct error err;
    int is_refused = metrics_add(m->registry, row, labels, n_labels, &metric, &err) != STATUS_OK;
    CHECK(!is_refused);
    return metric;
}

struct node_metrics *node_metrics_new(const struct node_metrics_config *config)
{
    CHECK(config->n_layers >= 1);
    struct node_metrics *m = xcalloc(1, sizeof *m);
    m->compute = config->compute;
    m->n_layers = config->n_layers;
    pthread_mutex_init(&m->lock, NULL);
    m->layers = xcalloc((size_t)m->n_layers, sizeof *m->layers);
    m->layers_shown = xcalloc((size_t)m->n_layers, sizeof *m->layers_shown);
    m->expert_layers = xcalloc((size_t)m->n_layers * EXPERT_ROWS, sizeof *m->expert_layers);
    m->registry = metrics_new(1 + N_COMPUTE_STATES + NODE_ROWS + ACCOUNTS_MAX + (m->n_layers + 1) * EXPERT_ROWS);
    const struct metric_label info[] = {{"name", config->name}, {"version", HEARTH_VERSION}, {"model", config->model_identity}};
    metric_set(add(m, &info_row, info, 3), 1);
    for (int i = 0; i < N_COMPUTE_STATES; i++)
        m->states[i] = add(m, &state_row, &(struct metric_label){"state", compute_state_names[i]}, 1);
    for (int i = 0; i < NODE_ROWS; i++)
        m->node[i] = add(m, &node_rows[i].metric, NULL, 0);
    for (int row = 0; row < EXPERT_ROWS; row++) {
        m->expert_sums[row] = add(m, &expert_rows[row].sum, NULL, 0);
        for (int layer = 0; layer < m->n_layers && expert_rows[row].layer.name; layer++) {
            char number[16];
            snprintf(number, sizeof number, "%d", layer);
            m->expert_layers[layer * EXPERT_ROWS + row] = add(m, &expert_rows[row].layer, &(struct metric_label){"layer", number}, 1);
        }
    }
    return m;
}

void node_metrics_free(struct node_metrics **metrics)
{
    struct node_metrics *m = *metrics;
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    metrics_free(&m->registry);
    free(m->layers);
    free(m->layers_shown);
    free(m->expert_layers);
    free(m);
    *metrics = NULL;
}

void node_metrics_publish_epoch(struct node_metrics *m, uint32_t epoch_counter, int layer_begin, int layer_end)
{
    pthread_mutex_lock(&m->lock);
    m->published.epoch = epoch_counter;
    m->published.layer_begin = layer_begin;
    m->published.layer_end = layer_end;
    pthread_mutex_unlock(&m->lock);
}

void node_metrics_publish_memory(struct node_metrics *m, const struct budget *budget)
{
    pthread_mutex_lock(&m->lock);
    m->published.memory_limit_bytes = budget->limit;
    m->published.n_accounts = budget->n_accounts;
    for (int i = 0; i < budget->n_accounts; i++) {
        snprintf(m->published.accounts[i].name, ACCOUNT_NAME_BYTES, "%s", budget->accounts[i].name);
        m->published.accounts[i].bytes = budget->accounts[i].bytes;
    }
    pthread_mutex_unlock(&m->lock);
}

void node_metrics_publish_experts(struct node_metrics *m, const struct expert_stats *sum, const struct expert_stats *layers,
                                  int layer_begin, int n_layers)
{
    CHECK(!sum || (layer_begin >= 0 && n_layers >= 0 && layer_begin + n_layers <= m->n_layers));
    pthread_mutex_lock(&m->lock);
    m->published.has_experts = sum != NULL;
    m->published.sum = sum ? *sum : (struct expert_stats){0};
    m->published.experts_begin = sum ? layer_begin : 0;
    m->published.experts_end = sum ? layer_begin + n_layers : 0;
    if (sum && n_layers)
        memcpy(&m->layers[layer_begin], layers, (size_t)n_layers * sizeof *layers);
    pthread_mutex_unlock(&m->lock);
}

void node_metrics_experts(struct node_metrics *m, struct expert_stats *sum)
{
    pthread_mutex_lock(&m->lock);
    *sum = m->published.sum;
    pthread_mutex_unlock(&m->lock);
}

/* ---- showing it ---- */

static void set(struct metric *metric, enum metric_type type, uint64_t value)
{
    if (type == METRIC_GAUGE)
        metric_set(metric, (double)value);
    else
        metric_set_count(metric, value);
}

static void set_node(struct node_metrics *m)
{
    const struct compute_thread *c = m->compute;
    const struct figures figures = {.rows = atomic_load(&c->rows),
                                    .units = atomic_load(&c->progress),
                                    .busy_ns = atomic_load(&c->busy_ns),
                                    .queue_ns = atomic_load(&c->queue_ns),
                                    .memory_limit_bytes = m->shown.memory_limit_bytes,
                                    .epoch = m->shown.epoch,
                                    .layer_begin = (uint64_t)m->shown.layer_begin,
                                    .layer_end = (uint64_t)m->shown.layer_end};
    int state = atomic_load(&c->state);
    for (int i = 0; i < N_COMPUTE_STATES; i++)
        metric_set(m->states[i], i == state);
    for (int i = 0; i < NODE_ROWS; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&figures + node_rows[i].offset, sizeof value);
        if ((node_rows[i].shown == WITH_EPOCH && !m->shown.epoch) || (node_rows[i].shown == WITH_PLAN && !m->shown.n_accounts))
            metric_clear(m->node[i]);
        else
            set(m->node[i], node_rows[i].metric.type, value);
    }
}

/* NULL: more names came than there are places; a plan has few accounts and their names are constants. */
static struct metric *account_metric(struct node_metrics *m, const char name[ACCOUNT_NAME_BYTES])
{
    for (int i = 0; i < m->n_accounts; i++)
        if (!strcmp(m->accounts[i].name, name))
            return m->accounts[i].metric;
    if (m->n_accounts == ACCOUNTS_MAX)
        return NULL;
    struct account *account = &m->accounts[m->n_accounts++];
    memcpy(account->name, name, ACCOUNT_NAME_BYTES);
    account->metric = add(m, &account_row, &(struct metric_label){"account", account->name}, 1);
    return account->metric;
}

/* Accounts that the present plan does not have go. */
static void set_accounts(struct node_metrics *m)
{
    for (int i = 0; i < m->n_accounts; i++)
        metric_clear(m->accounts[i].metric);
    for (int i = 0; i < m->shown.n_accounts; i++) {
        struct metric *metric = account_metric(m, m->shown.accounts[i].name);
        if (metric)
            metric_set(metric, (double)m->shown.accounts[i].bytes);
    }
}

/* One row of metrics from one struct of figures; stats NULL: they have no values. */
static void set_experts(struct metric **metrics, const struct expert_stats *stats)
{
    for (int row = 0; row < EXPERT_ROWS; row++) {
        uint64_t value;
        if (metrics[row] && stats) {
            memcpy(&value, (const char *)stats + expert_rows[row].offset, sizeof value);
            set(metrics[row], expert_rows[row].sum.type, value);
        } else if (metrics[row]) {
            metric_clear(metrics[row]);
        }
    }
}

void node_metrics_render(struct node_metrics *m, struct text *out)
{
    pthread_mutex_lock(&m->lock);
    m->shown = m->published;
    memcpy(m->layers_shown, m->layers, (size_t)m->n_layers * sizeof *m->layers);
    pthread_mutex_unlock(&m->lock);
    set_node(m);
    set_accounts(m);
    set_experts(m->expert_sums, m->shown.has_experts ? &m->shown.sum : NULL);
    for (int layer = 0; layer < m->n_layers; layer++) {
        int is_shown = layer >= m->shown.experts_begin && layer < m->shown.experts_end;
        set_experts(&m->expert_layers[layer * EXPERT_ROWS], is_shown ? &m->layers_shown[layer] : NULL);
    }
    metrics_render(m->registry, out);
}
