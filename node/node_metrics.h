/* The figures that a node shows: to Prometheus (node/metrics_endpoint.h) and in its heartbeats. Those who know something publish it; those
 * who ask get the last that was published. A small mutex protects what was published; it is held for a copy, never while text is made. */
#ifndef HEARTH_NODE_METRICS_H
#define HEARTH_NODE_METRICS_H

#include "common/budget.h"
#include "common/memory.h"
#include "node/expert_stats.h"

struct compute_thread;
struct node_metrics;

/* What does not change while the process runs. */
struct node_metrics_config {
    const struct compute_thread *compute; /* its counters are read; borrowed until node_metrics_free */
    const char *name, *model_identity;    /* copied */
    int n_layers;                         /* of the model, the MTP layer included */
};

struct node_metrics *node_metrics_new(const struct node_metrics_config *config);
void node_metrics_free(struct node_metrics **metrics);

/* The map that this node is part of and its layers [layer_begin, layer_end); epoch_counter 0: none. Any thread. */
void node_metrics_publish_epoch(struct node_metrics *metrics, uint32_t epoch_counter, int layer_begin, int layer_end);

/* What memory was planned for, and the limit. Copied. Any thread. */
void node_metrics_publish_memory(struct node_metrics *metrics, const struct budget *budget);

/* The expert store's figures: in sum, and of each layer from layer_begin on (layers [n_layers]). Copied: a microsecond.
 * Layers that were published earlier and are not among these are no longer shown. sum NULL: there is no store any more.
 * Any thread. */
void node_metrics_publish_experts(struct node_metrics *metrics, const struct expert_stats *sum, const struct expert_stats *layers,
                                  int layer_begin, int n_layers);

/* The sum that was published last; zeros while there is none. Any thread. */
void node_metrics_experts(struct node_metrics *metrics, struct expert_stats *sum);

/* Appends all figures in Prometheus' text format. One thread at a time. */
void node_metrics_render(struct node_metrics *metrics, struct text *out);

#endif
