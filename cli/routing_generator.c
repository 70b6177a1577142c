#include "cli/routing_generator.h"

#include <math.h>
#include <stdlib.h>

#include "common/check.h"
#include "common/memory.h"

/* xorshift64*: repeatable, and nothing here needs more. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

static double next_uniform(uint64_t *state)
{
    return ((double)(next_random(state) >> 11) + 0.5) * 0x1p-53;
}

/* Box and Muller, one of the pair. */
static double next_normal(uint64_t *state)
{
    double radius = sqrt(-2.0 * log(next_uniform(state)));
    return radius * cos(6.283185307179586 * next_uniform(state));
}

/* Biases of a layer in a fresh random ranking. */
static void draw_bias(const struct routing_generator *g, uint64_t *state, double *bias)
{
    for (int i = 0; i < g->n_experts; i++) {
        int other = (int)(next_random(state) % (uint64_t)(i + 1));
        bias[i] = bias[other];
        bias[other] = -g->skew * log(1.0 + i);
    }
}

static void choose(const struct routing_generator *g, const double *logit, const double *bias, double *score, int *ids)
{
    for (int e = 0; e < g->n_experts; e++)
        score[e] = 1.0 / (1.0 + exp(-logit[e])) + bias[e];
    for (int n = 0; n < g->top_k; n++) {
        int best = 0;
        for (int e = 1; e < g->n_experts; e++)
            if (score[e] > score[best])
                best = e;
        ids[n] = best;
        score[best] = -INFINITY;
    }
}

void routing_generate(const struct routing_generator *g, struct routing_trace *trace)
{
    CHECK(g->correlation >= 0 && g->correlation < 1 && g->n_rows >= 1);
    routing_trace_init(trace, g->n_layers, g->n_experts, g->top_k);
    uint64_t state = (g->seed + 1) * 0x9e3779b97f4a7c15ull | 1;
    size_t n = (size_t)g->n_experts;
    double *bias = xcalloc((size_t)g->n_layers * n, sizeof *bias), *logit = xcalloc((size_t)g->n_layers * n, sizeof *logit);
    double *score = xcalloc(n, sizeof *score), fresh = sqrt(1 - g->correlation * g->correlation);
    for (int row = 0; row < g->n_rows; row++)
        for (int layer = 0; layer < g->n_layers; layer++) {
            double *b = bias + (size_t)layer * n, *l = logit + (size_t)layer * n;
            if (row == 0 || (g->drift_rows && row % g->drift_rows == 0))
                draw_bias(g, &state, b);
            for (int e = 0; e < g->n_experts; e++)
                l[e] = row ? g->correlation * l[e] + fresh * next_normal(&state) : next_normal(&state);
            int ids[TOP_K_MAX];
            choose(g, l, b, score, ids);
            routing_trace_add(trace, layer, ids);
        }
    free(bias);
    free(logit);
    free(score);
}
