/* How an expert's figure comes about. Six running means of its use, over the last row alone up to thousands of rows, each know something:
 * the shortest sees a run of like tokens, the longest sees the experts that are always hot. A seventh sign is what usually follows the
 * experts of the last row. The figure is the long mean plus a weighted sum of how far the other signs stand from it; the weights are those
 * that would have predicted this layer's own rows best until now (least squares, old rows forgotten). So each layer finds out by itself
 * whether recency, frequency or succession counts in its traffic, and because what is fitted is a likelihood, figures of different layers
 * compare. */
#include "node/expert_policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"

/* Half-lives in rows; 0: the last row alone. Any ladder of about this spacing gives the same hit rates within half a point; without the
 * first, traffic in which only the last row counts loses 6 points. */
static const double half_life_rows[] = {0, 1, 4, 24, 160, 2000};

enum {
    N_MEANS = sizeof half_life_rows / sizeof *half_life_rows,
    LONG = N_MEANS - 1,   /* the mean that the others are compared with */
    FOLLOW = N_MEANS - 1, /* the sign after those of the shorter means */
    N_SIGNS = N_MEANS,
    FIT_HALF_LIFE_ROWS = 1500,
    PRIOR_ROWS = 16,          /* rows of even use that a fresh layer is assumed to have seen */
    IMPORTED_ROWS = 500,      /* rows that imported counts stand for */
    LEARN_ROWS_MAX = 8,       /* in larger sets nobody knows which row came after which */
    SET_ROWS_MAX = 256,       /* evidence that one set of rows can give */
    FOLLOW_ROWS_MAX = 255,    /* a row of `after` is a mean over about so many rows */
    FOLLOW_EXPERTS_MAX = 512, /* above it the table of followers would outgrow the experts that it finds */
};

struct layer_use {
    double n_rows;             /* seen, as evidence counts them */
    float *mean[N_MEANS];      /* [n_experts] uses per row */
    float *value;              /* [n_experts] the figure */
    float *after;              /* [n_experts][n_experts] uses of the second in the row after one that chose the first; NULL: not kept */
    float *follow;             /* [n_experts] mean of `after` over what the last row chose */
    unsigned char *n_followed; /* [n_experts] rows that a row of `after` has seen, up to FOLLOW_ROWS_MAX */
    int *last, n_last;         /* what the last row chose; 0: it was no single row */
    double gram[N_SIGNS][N_SIGNS], moment[N_SIGNS]; /* of the least squares */
    float weight[N_SIGNS];
};

struct expert_policy {
    struct expert_policy_config config;
    struct layer_use *layers; /* [n_layers] */
    int last_layer;           /* that a row passed */
    float *turn;              /* [n_layers] factor for a layer that is so many layers behind the next one */
    float *chosen;            /* [n_experts] scratch: share of the rows that chose each */
    float *floats;            /* all arrays of floats */
};

/* ---- life ---- */

static int has_followers(const struct expert_policy_config *c)
{
    return c->n_experts <= FOLLOW_EXPERTS_MAX;
}

static size_t floats_of_layer(const struct expert_policy_config *c)
{
    size_t n = (size_t)c->n_experts;
    return n * (N_MEANS + 2) + (has_followers(c) ? n * n : 0);
}

static size_t floats_of(const struct expert_policy_config *c)
{
    return (size_t)c->n_layers * (floats_of_layer(c) + 1) + (size_t)c->n_experts;
}

uint64_t expert_policy_bytes(const struct expert_policy_config *config)
{
    size_t per_expert = sizeof(unsigned char) + sizeof(int);
    return sizeof(struct expert_policy) + (size_t)config->n_layers * (sizeof(struct layer_use) + (size_t)config->n_experts * per_expert) +
           floats_of(config) * sizeof(float);
}

static float *take(float **from, size_t n)
{
    float *taken = *from;
    *from += n;
    return taken;
}

struct expert_policy *expert_policy_new(const struct expert_policy_config *config)
{
    CHECK(config->n_layers >= 1 && config->top_k >= 1 && config->top_k <= config->n_experts);
    struct expert_policy *p = xcalloc(1, sizeof *p);
    size_t n = (size_t)config->n_experts;
    p->config = *config;
    p->last_layer = config->n_layers - 1;
    p->layers = xcalloc((size_t)config->n_layers, sizeof *p->layers);
    p->floats = xcalloc(floats_of(config), sizeof *p->floats);
    float *at = p->floats;
    p->chosen = take(&at, n);
    p->turn = take(&at, (size_t)config->n_layers);
    for (int i = 0; i < config->n_layers; i++)
        p->turn[i] = 1.0f / (0.3f + (float)(i + 1) / (float)config->n_layers);
    for (int layer = 0; layer < config->n_layers; layer++) {
        struct layer_use *l = &p->layers[layer];
        for (int i = 0; i < N_MEANS; i++)
            l->mean[i] = take(&at, n);
        l->value = take(&at, n);
        l->follow = take(&at, n);
        l->after = has_followers(config) ? take(&at, n * n) : NULL;
        l->n_followed = xcalloc(n, sizeof *l->n_followed);
        l->last = xcalloc(n, sizeof *l->last);
        for (size_t e = 0; e < n; e++) {
            l->value[e] = l->follow[e] = (float)config->top_k / (float)config->n_experts;
            for (int i = 0; i < N_MEANS; i++)
                l->mean[i][e] = l->value[e];
        }
    }
    CHECK(at == p->floats + floats_of(config));
    return p;
}

void expert_policy_free(struct expert_policy **policy)
{
    struct expert_policy *p = *policy;
    if (!p)
        return;
    for (int layer = 0; layer < p->config.n_layers; layer++) {
        free(p->layers[layer].n_followed);
        free(p->layers[layer].last);
    }
    free(p->layers);
    free(p->floats);
    free(p);
    *policy = NULL;
}

/* ---- rows pass ---- */

static void signs_of(const struct layer_use *l, int expert, float signs[N_SIGNS])
{
    for (int i = 0; i < LONG; i++)
        signs[i] = l->mean[i][expert] - l->mean[LONG][expert];
    signs[FOLLOW] = l->follow[expert] - l->mean[LONG][expert];
}

/* Takes in what the signs, as they stood before the rows, had to say of them. */
static void learn_fit(struct layer_use *l, const float *chosen, int n_experts)
{
    const double keep = exp2(-1.0 / FIT_HALF_LIFE_ROWS);
    for (int i = 0; i < N_SIGNS; i++) {
        l->moment[i] *= keep;
        for (int j = 0; j <= i; j++)
            l->gram[i][j] *= keep;
    }
    for (int e = 0; e < n_experts; e++) {
        float signs[N_SIGNS], off = chosen[e] - l->mean[LONG][e];
        signs_of(l, e, signs);
        for (int i = 0; i < N_SIGNS; i++) {
            l->moment[i] += signs[i] * off;
            for (int j = 0; j <= i; j++)
                l->gram[i][j] += signs[i] * signs[j];
        }
    }
}

/* Weights of the least squares by elimination. A ridge of about 30 rows' worth of each sign's own spread pulls to the weight that a fresh
 * layer starts with; it keeps the matrix positive definite, so no pivoting is needed. */
static void solve_fit(struct layer_use *l, const struct expert_policy_config *c)
{
    double a[N_SIGNS][N_SIGNS + 1], share = (double)c->top_k / c->n_experts, spread = share * (1 - share) * c->n_experts + 1e-6;
    for (int i = 0; i < N_SIGNS; i++) {
        double step = i == FOLLOW             ? 0.3
                      : half_life_rows[i] > 0 ? 1 - exp2(-1 / half_life_rows[i])
                                              : 1,
               ridge = 30 * spread * step / (2 - step);
        for (int j = 0; j < N_SIGNS; j++)
            a[i][j] = j <= i ? l->gram[i][j] : l->gram[j][i];
        a[i][i] += ridge;
        a[i][N_SIGNS] = l->moment[i] + 0.1 * ridge;
    }
    for (int i = 0; i < N_SIGNS; i++)
        for (int j = 0; j < N_SIGNS; j++)
            for (int k = N_SIGNS; j != i && k >= i; k--) /* from the right: a[j][i] is needed to the end */
                a[j][k] -= a[j][i] / a[i][i] * a[i][k];
    for (int i = 0; i < N_SIGNS; i++)
        l->weight[i] = (float)(a[i][N_SIGNS] / a[i][i]);
}

static void learn_followers(struct layer_use *l, const float *chosen, int n_experts)
{
    for (int i = 0; i < l->n_last; i++) {
        unsigned char *n = &l->n_followed[l->last[i]];
        float *after = l->after + (size_t)l->last[i] * (size_t)n_experts;
        if (!*n) /* what nothing is known of is as usual */
            memcpy(after, l->mean[LONG], (size_t)n_experts * sizeof *after);
        *n = (unsigned char)(*n < FOLLOW_ROWS_MAX ? *n + 1 : FOLLOW_ROWS_MAX);
        float step = 1.0f / (float)(*n + 2);
        for (int e = 0; e < n_experts; e++)
            after[e] += step * (chosen[e] - after[e]);
    }
}

/* A set of many rows is a prompt: its rows are alike, and what follows it is an answer. Each row above a few counts as an eighth, so that a
 * long prompt is evidence and does not take the place of the long memory. */
static double evidence_rows(int n_rows)
{
    double rows = n_rows <= LEARN_ROWS_MAX ? n_rows : LEARN_ROWS_MAX + (n_rows - LEARN_ROWS_MAX) / 8.0;
    return rows < SET_ROWS_MAX ? rows : SET_ROWS_MAX;
}

static void move_means(struct layer_use *l, const float *chosen, int n_experts, double rows)
{
    l->n_rows += rows;
    for (int i = 0; i < N_MEANS; i++) {
        double step = half_life_rows[i] > 0 ? 1 - exp2(-rows / half_life_rows[i]) : 1, young = rows / (l->n_rows + PRIOR_ROWS);
        float s = (float)(step > young ? step : young);
        for (int e = 0; e < n_experts; e++)
            l->mean[i][e] += s * (chosen[e] - l->mean[i][e]);
    }
}

static void find_followers(struct layer_use *l, const int *experts, const int *rows, int n, int n_experts)
{
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += rows[i];
    memset(l->follow, 0, (size_t)n_experts * sizeof *l->follow);
    for (int i = 0; i < n; i++) {
        const float *after = l->n_followed[experts[i]] ? l->after + (size_t)experts[i] * (size_t)n_experts : l->mean[LONG];
        for (int e = 0; e < n_experts; e++)
            l->follow[e] += (float)rows[i] / (float)sum * after[e];
    }
}

/* Never zero: an expert that no sign speaks for still ranks by its long mean. */
static void set_values(struct layer_use *l, int n_experts)
{
    for (int e = 0; e < n_experts; e++) {
        float signs[N_SIGNS], value = l->mean[LONG][e], least = 0.01f * l->mean[LONG][e];
        signs_of(l, e, signs);
        for (int i = 0; i < N_SIGNS; i++)
            value += l->weight[i] * signs[i];
        l->value[e] = value > least ? value : least;
    }
}

void expert_policy_observe(struct expert_policy *policy, int layer, const int *experts, const int *rows, int n, int n_rows)
{
    int n_experts = policy->config.n_experts;
    CHECK(layer >= 0 && layer < policy->config.n_layers && n >= 1 && n <= n_experts && n_rows >= 1);
    struct layer_use *l = &policy->layers[layer];
    memset(policy->chosen, 0, (size_t)n_experts * sizeof *policy->chosen);
    for (int i = 0; i < n; i++) {
        CHECK(experts[i] >= 0 && experts[i] < n_experts && rows[i] >= 1 && rows[i] <= n_rows);
        policy->chosen[experts[i]] = (float)rows[i] / (float)n_rows;
    }
    if (n_rows <= LEARN_ROWS_MAX) {
        learn_fit(l, policy->chosen, n_experts);
        solve_fit(l, &policy->config);
    }
    if (l->after && n_rows == 1)
        learn_followers(l, policy->chosen, n_experts);
    move_means(l, policy->chosen, n_experts, evidence_rows(n_rows));
    if (l->after)
        find_followers(l, experts, rows, n, n_experts);
    else
        memcpy(l->follow, l->mean[LONG], (size_t)n_experts * sizeof *l->follow);
    l->n_last = n_rows == 1 ? n : 0;
    memcpy(l->last, experts, (size_t)l->n_last * sizeof *l->last);
    set_values(l, n_experts);
    policy->last_layer = layer;
}

/* ---- what is asked ---- */

float expert_policy_value(const struct expert_policy *policy, int layer, int expert)
{
    CHECK(layer >= 0 && layer < policy->config.n_layers && expert >= 0 && expert < policy->config.n_experts);
    return policy->layers[layer].value[expert];
}

/* A slot earns its value when its layer's turn comes and is only held until then: value by waiting time, so of two alike the one whose turn
 * is further away goes. The constant in `turn` bounds that to a factor of about 4: values are estimates. */
static float slot_worth(const struct expert_policy *policy, const struct policy_slot *slot)
{
    int behind = slot->layer - policy->last_layer - 1;
    return policy->layers[slot->layer].value[slot->expert] * policy->turn[behind < 0 ? behind + policy->config.n_layers : behind];
}

/* By layer and expert where worth is equal: slots are filled in the order in which reads complete, which differs from run to run. */
static int goes_before(const struct policy_slot *a, float worth_a, const struct policy_slot *b, float worth_b)
{
    if (a->is_probation != b->is_probation)
        return a->is_probation;
    if (worth_a != worth_b)
        return worth_a < worth_b;
    return a->layer != b->layer ? a->layer < b->layer : a->expert < b->expert;
}

int expert_policy_victim(const struct expert_policy *policy, const struct policy_slot *slots, int n_slots)
{
    int victim = -1;
    float worth = 0;
    for (int i = 0; i < n_slots; i++) {
        if (!slots[i].may_go)
            continue;
        float w = slot_worth(policy, &slots[i]);
        if (victim < 0 || goes_before(&slots[i], w, &slots[victim], worth)) {
            victim = i;
            worth = w;
        }
    }
    return victim;
}

/* ---- counts that outlive the process ---- */

void expert_policy_export(const struct expert_policy *policy, float *uses)
{
    size_t n = (size_t)policy->config.n_experts;
    for (int layer = 0; layer < policy->config.n_layers; layer++)
        memcpy(uses + (size_t)layer * n, policy->layers[layer].mean[LONG], n * sizeof *uses);
}

void expert_policy_import(struct expert_policy *policy, const float *uses)
{
    for (int layer = 0; layer < policy->config.n_layers; layer++) {
        struct layer_use *l = &policy->layers[layer];
        l->n_rows = IMPORTED_ROWS;
        l->n_last = 0;
        for (int e = 0; e < policy->config.n_experts; e++) {
            float u = uses[(size_t)layer * (size_t)policy->config.n_experts + (size_t)e];
            u = u > 0 && u <= 1 ? u : u > 1 ? 1 : 0; /* a NaN is no use */
            for (int i = 0; i < N_MEANS; i++)
                l->mean[i][e] = u;
            l->follow[e] = u;
        }
        set_values(l, policy->config.n_experts);
    }
}
