/* Which experts the rows of a model chose: a text file that a run writes and `hearth bench cache` replays.
 *
 *     hearth-trace 1 layers=N experts=N top_k=N
 *     <layer> <id> <id> ...        one line per row and sparse layer, in the order computed
 *
 * Layers are the sparse ones, counted from 0, the MTP layer last; ids of a line are distinct, below `experts`, and `top_k` of them. Prefill
 * goes layer by layer over a set of rows, so the n-th line of a layer belongs to row n. Layers may have different numbers of rows: the MTP
 * layer sees fewer, or none. */
#ifndef HEARTH_CLI_ROUTING_TRACE_H
#define HEARTH_CLI_ROUTING_TRACE_H

#include <stdint.h>
#include <stdio.h>

#include "model/layer.h"

struct trace_layer {
    uint16_t *ids; /* [n_rows][top_k] ascending within a row */
    int n_rows, capacity;
};

struct routing_trace {
    int n_layers, n_experts, top_k;
    struct trace_layer *layers; /* [n_layers] */
};

/* Empty; sizes within LAYERS_MAX + 1, EXPERTS_MAX, TOP_K_MAX. */
void routing_trace_init(struct routing_trace *trace, int n_layers, int n_experts, int top_k);
void routing_trace_release(struct routing_trace *trace);

/* One more row of a layer: ids [top_k] distinct, in any order. */
void routing_trace_add(struct routing_trace *trace, int layer, const int *ids);

/* Rows of the layer that has most. */
int routing_trace_rows(const struct routing_trace *trace);
/* Layers that have any. */
int routing_trace_used_layers(const struct routing_trace *trace);

/* Reads and checks a whole file; a failure names file and line. On success the caller releases the trace. */
enum status routing_trace_read(struct routing_trace *trace, const char *path, struct error *err);

/* Writes a trace while a model runs, as the observer of its layers. Zero-initialised: records nothing. */
struct routing_recorder {
    const char *path; /* borrowed */
    FILE *file;
    const struct model_config *config;
    struct layer_observer observer; /* for model_options; valid between open and close */
};

/* Creates the file. path NULL: succeeds and records nothing. */
enum status routing_recorder_open(struct routing_recorder *recorder, const char *path, struct error *err);
/* NULL when nothing is recorded. */
const struct layer_observer *routing_recorder_observer(const struct routing_recorder *recorder);
/* Writes the first line; before the model computes. config is borrowed until close. */
void routing_recorder_begin(struct routing_recorder *recorder, const struct model_config *config);
/* Fails when the file could not be written. Nothing happens for a recorder that was not opened; err may be NULL. */
enum status routing_recorder_close(struct routing_recorder *recorder, struct error *err);

#endif
