#include "cli/plan_hits.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cache_replay.h"
#include "common/check.h"
#include "common/memory.h"
#include "model/pack.h"
#include "node/expert_store.h"
#include "node/use_counts.h"

enum {
    LAYERS_SAMPLED = 12, /* with 256 experts each a replay takes a tenth of a second; more layers change a rate by less than a point */
    ROWS_WARM = 192,     /* the policy's rates stand after about 100 rows */
    ROWS_COUNTED = 256,
};

/* One that was fitted to public traces of GLM-5 (top-8 of 256; 0.94 and 0.96), a little lower because other people's conversations are
 * other ones. */
#define ZIPF_EXPONENT 0.90

static const uint64_t SEED = 0x9e3779b97f4a7c15u;

/* ---- chance ---- */

/* xorshift64*: repeatable, and nothing here needs more. */
static double next_uniform(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return ((double)((*state * 0x2545f4914f6cdd1dull) >> 11) + 0.5) * 0x1p-53;
}

/* Box and Muller, one of the pair. */
static double next_normal(uint64_t *state)
{
    double radius = sqrt(-2.0 * log(next_uniform(state)));
    return radius * cos(6.283185307179586 * next_uniform(state));
}

/* ---- rows ---- */

/* One layer's experts as rows are drawn from them. */
struct popularity {
    int is_bias;   /* value: what the router adds to its scores; else the weight of drawing without putting back */
    double *value; /* [n_experts] */
};

static void draw_row(const struct popularity *p, int n_experts, int top_k, uint64_t *state, double *score, int *ids)
{
    for (int e = 0; e < n_experts; e++)
        score[e] = p->is_bias        ? 1 / (1 + exp(-next_normal(state))) + p->value[e]
                   : p->value[e] > 0 ? log(next_uniform(state)) /
                                           p->value[e] /* the first to come of exponential arrivals: drawing without putting back */
                                     : -1e300 * next_uniform(state);
    for (int n = 0; n < top_k; n++) {
        int best = 0;
        for (int e = 1; e < n_experts; e++)
            if (score[e] > score[best])
                best = e;
        ids[n] = best;
        score[best] = -INFINITY;
    }
}

static void draw_layer(struct routing_trace *trace, int layer, const struct popularity *p, uint64_t *state)
{
    double *score = xcalloc((size_t)trace->n_experts, sizeof *score);
    int ids[TOP_K_MAX];
    for (int row = 0; row < ROWS_WARM + ROWS_COUNTED; row++) {
        draw_row(p, trace->n_experts, trace->top_k, state, score, ids);
        routing_trace_add(trace, layer, ids);
    }
    free(score);
}

/* ---- where popularity comes from ---- */

/* The router's bias of a layer: one vector of the dense part, read alone. Its checksum covers just that: what is not verified is only
 * guessed with here. */
static int read_bias(const struct pack *pack, int layer, double *bias)
{
    const struct pack_part *part = pack_find(pack, PART_DENSE, layer);
    for (int i = 0; part && i < part->layout.n_tensors; i++) {
        const struct tensor_place *t = &part->layout.tensors[i];
        if (strcmp(t->name, "router_bias") || t->format != FORMAT_F32)
            continue;
        char *path = xasprintf("%s/%s", pack->dir, part->file);
        float values[EXPERTS_MAX];
        int n = t->rows * t->cols, fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t want = (ssize_t)((size_t)n * sizeof *values), got = -1;
        CHECK(n <= EXPERTS_MAX);
        if (fd >= 0) {
            got = pread(fd, values, (size_t)want, (off_t)(PACK_HEADER_BYTES + t->offset));
            close(fd);
        }
        free(path);
        for (int e = 0; e < n && got == want; e++) {
            if (!isfinite(values[e]))
                return 0;
            bias[e] = values[e];
        }
        return got == want;
    }
    return 0;
}

static int larger_first(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Whether biases are those of hearth synth, -skew ln(rank), whose routing is known: logits of unit variance. In a trained model the bias
 * evens out what the logits prefer: rows drawn from it alone would have too few favourites (kindling with a quarter of its experts
 * resident: 34 % hits, 54 % in truth). */
static int is_synthetic(const double *bias, int n)
{
    double sorted[EXPERTS_MAX];
    memcpy(sorted, bias, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, larger_first);
    double skew = (sorted[0] - sorted[n - 1]) / log(n), worst = 0;
    for (int r = 0; r < n; r++)
        worst = fmax(worst, fabs(sorted[r] - sorted[0] + skew * log(r + 1)));
    return skew > 0 && worst < 1e-4 * skew;
}

static int biases(const struct pack *pack, const int *layers, int n_layers, int n_experts, struct popularity *out)
{
    for (int i = 0; i < n_layers; i++) {
        out[i].is_bias = 1;
        if (!read_bias(pack, layers[i], out[i].value) || !is_synthetic(out[i].value, n_experts))
            return 0;
    }
    return n_layers > 0;
}

/* Weights that give the shares of rows that were counted: a share is 1 - exp(-weight), up to a common factor. */
static int use_counts(const struct weights_source *source, const struct expert_options *o, const int *layers, int n_layers,
                      struct popularity *out)
{
    struct expert_files files;
    struct use_counts counts;
    struct error ignored;
    const struct model_config *c = weights_source_config(source);
    int end = config_layers_with_mtp(c), n_found = 0;
    if ((o->use_counts && !strcmp(o->use_counts, "none")) || expert_files_open(&files, source, 0, end, o->store, &ignored))
        return 0;
    float *uses = xcalloc((size_t)files.n_files * (size_t)files.n_experts, sizeof *uses);
    use_counts_init(&counts, o->use_counts, weights_source_identity(source), 0, end);
    int is_known = use_counts_load(&counts, &files, uses);
    for (int f = 0; f < files.n_files && is_known; f++)
        for (int i = 0; i < n_layers; i++) {
            if (files.files[f].layer != layers[i])
                continue;
            const float *share = uses + (size_t)f * (size_t)files.n_experts;
            double sum = 0;
            for (int e = 0; e < files.n_experts; e++) {
                double s = share[e] > 0.999 ? 0.999 : share[e];
                sum += s;
                out[i].is_bias = 0;
                out[i].value[e] = -log1p(-s);
            }
            n_found += sum > c->top_k / 4.0; /* else hardly counted */
        }
    use_counts_release(&counts);
    expert_files_close(&files);
    free(uses);
    return n_found == n_layers;
}

static void zipf(int n_layers, int n_experts, struct popularity *out)
{
    for (int i = 0; i < n_layers; i++) {
        out[i].is_bias = 0;
        for (int e = 0; e < n_experts; e++)
            out[i].value[e] = pow(e + 1, -ZIPF_EXPONENT);
    }
}

/* ---- life ---- */

/* Sparse layers that a token passes (not the MTP layer), at most LAYERS_SAMPLED of them, evenly chosen. */
static int choose_layers(const struct model_config *c, int *layers, int *n_all)
{
    int sparse[LAYERS_MAX], n = 0;
    for (int layer = 0; layer < c->n_layers; layer++)
        if (c->is_sparse[layer])
            sparse[n++] = layer;
    if (!n) /* a model without experts: nothing will be asked of the rows */
        sparse[n++] = 0;
    int chosen = n < LAYERS_SAMPLED ? n : LAYERS_SAMPLED;
    for (int i = 0; i < chosen; i++)
        layers[i] = sparse[i * n / chosen];
    *n_all = n;
    return chosen;
}

static void make_rows(struct plan_hits *hits, const struct weights_source *source, const struct expert_options *o)
{
    const struct model_config *c = weights_source_config(source);
    int layers[LAYERS_SAMPLED], n_all, n = choose_layers(c, layers, &n_all);
    struct popularity p[LAYERS_SAMPLED];
    uint64_t state = SEED;
    for (int i = 0; i < n; i++)
        p[i].value = xcalloc((size_t)c->n_experts, sizeof *p[i].value);
    const struct pack *pack = weights_source_pack(source);
    if (pack && use_counts(source, o, layers, n, p)) {
        hits->kind = ROUTING_USE_COUNTS;
        snprintf(hits->text, sizeof hits->text, "experts are used as in earlier runs of this model here");
    } else if (pack && biases(pack, layers, n, c->n_experts, p)) {
        hits->kind = ROUTING_BIAS;
        snprintf(hits->text, sizeof hits->text, "a synthetic pack: rows drawn from its router's biases");
    } else {
        zipf(n, c->n_experts, p);
        hits->kind = ROUTING_ZIPF;
        snprintf(hits->text, sizeof hits->text, "this model was not run here yet: assuming that an expert of rank r is used as r^-%.2f",
                 ZIPF_EXPONENT);
    }
    routing_trace_init(&hits->trace, n, c->n_experts, c->top_k);
    for (int i = 0; i < n; i++) {
        draw_layer(&hits->trace, i, &p[i], &state);
        free(p[i].value);
    }
    hits->share = (double)n / n_all;
    hits->first_row = ROWS_WARM;
}

enum status plan_hits_open(struct plan_hits *hits, const struct weights_source *source, const struct expert_options *o, const char *trace,
                           uint64_t expert_bytes, struct error *err)
{
    const struct model_config *c = weights_source_config(source);
    *hits = (struct plan_hits){.in_flight = expert_bytes ? expert_reads_ahead(expert_bytes) : 0};
    if (!trace) {
        make_rows(hits, source, o);
        return STATUS_OK;
    }
    enum status status = routing_trace_read(&hits->trace, trace, err);
    if (status)
        return status;
    if (hits->trace.n_experts != c->n_experts || hits->trace.top_k != c->top_k) {
        status = error_set(err, STATUS_INVALID, "%s: a trace of %d experts, top %d; the model has %d, top %d: record one with this model",
                           trace, hits->trace.n_experts, hits->trace.top_k, c->n_experts, c->top_k);
        routing_trace_release(&hits->trace);
        return status;
    }
    hits->share = 1;
    hits->first_row = routing_trace_rows(&hits->trace) / 3;
    hits->kind = ROUTING_TRACE;
    snprintf(hits->text, sizeof hits->text, "experts are used as in the %d rows of the trace", routing_trace_rows(&hits->trace));
    return STATUS_OK;
}

void plan_hits_release(struct plan_hits *hits)
{
    routing_trace_release(&hits->trace);
}

double plan_hits_rate(const struct plan_hits *hits, int n_slots)
{
    struct replay_setup setup = {REPLAY_POLICY, (int)lround(n_slots * hits->share), hits->first_row, hits->in_flight};
    setup.n_slots = setup.n_slots < 1 ? 1 : setup.n_slots;
    struct replay_result r = cache_replay(&hits->trace, &setup);
    return r.uses ? (double)r.hits / (double)r.uses : 1;
}

double plan_hits_distinct(const struct plan_hits *hits, int n_rows)
{
    int top_k = hits->trace.top_k, n_windows = 0;
    uint64_t distinct = 0;
    unsigned char *is_seen = xcalloc((size_t)hits->trace.n_experts, 1);
    for (int l = 0; l < hits->trace.n_layers; l++) {
        const struct trace_layer *layer = &hits->trace.layers[l];
        int rows = n_rows < layer->n_rows ? n_rows : layer->n_rows; /* more rows than the trace has: as many as there are */
        for (int first = 0; rows && first + rows <= layer->n_rows; first += rows, n_windows++) {
            memset(is_seen, 0, (size_t)hits->trace.n_experts);
            for (int i = first * top_k; i < (first + rows) * top_k; i++) {
                distinct += !is_seen[layer->ids[i]];
                is_seen[layer->ids[i]] = 1;
            }
        }
    }
    free(is_seen);
    return n_windows ? (double)distinct / n_windows : top_k;
}
