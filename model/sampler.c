#include "model/sampler.h"

#include <math.h>

#include "common/check.h"
#include "kernels/double_math.h"
#include "model/philox.h"

/* A nucleus is rarely larger; when it is, the list grows eightfold until it covers it. */
enum { FIRST_SELECTION = 64, SELECTION_GROWTH = 8 };

static const double TEMPERATURE_MIN = 1e-6; /* below, score / T leaves nothing but the largest score */

const struct sampler_params sampler_params_default = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};

struct candidate {
    double score;
    int id;
};

enum status sampler_params_check(const struct sampler_params *p, struct error *err)
{
    const struct {
        const char *name;
        double value, min, max;
    } rows[] = {
        {"temperature", p->temperature, 0, 100},
        {"top_k", p->top_k, 0, INT32_MAX},
        {"top_p", p->top_p, 0, 1},
        {"min_p", p->min_p, 0, 1},
        {"repetition_penalty", p->repetition_penalty, 0.01, 100},
        {"frequency_penalty", p->frequency_penalty, -100, 100},
        {"presence_penalty", p->presence_penalty, -100, 100},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!(rows[i].value >= rows[i].min && rows[i].value <= rows[i].max)) /* also false for NaN */
            return error_set(err, STATUS_INVALID, "%s is %g, allowed are %g to %g", rows[i].name, rows[i].value, rows[i].min, rows[i].max);
    for (size_t i = 0; i < p->n_bias; i++)
        if (!(fabs(p->bias[i].bias) <= 1e6))
            return error_set(err, STATUS_INVALID, "logit_bias of id %d is %g, allowed are -1e6 to 1e6", p->bias[i].id, p->bias[i].bias);
    return STATUS_OK;
}

size_t sampler_scratch_bytes(int n_tokens)
{
    CHECK(n_tokens > 0);
    return (size_t)n_tokens * (sizeof(double) + sizeof(struct candidate));
}

/* The random word of an id at a position; G follows from it. */
static uint32_t word_of(uint64_t seed, uint32_t position, int id)
{
    uint32_t counter[4] = {position, (uint32_t)id, 0, 0}, key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, words[4];
    philox4x32(counter, key, words);
    return words[0];
}

static double noise_of(uint32_t word)
{
    double u = ((double)word + 0.5) * 0x1p-32;
    return -f64_log(-f64_log(u));
}

double sampler_noise(uint64_t seed, uint32_t position, int id)
{
    return noise_of(word_of(seed, position, id));
}

double sampler_log_sum_exp(const double *scores, int n, int best, double temperature)
{
    CHECK(best >= 0 && best < n && temperature > 0);
    double top = scores[best] / temperature, sum = 0;
    for (int i = 0; i < n; i++)
        sum += f64_exp(scores[i] / temperature - top);
    return top + f64_log(sum);
}

/* ---- scores ---- */

static enum status copy_logits(double *scores, const float *logits, int n, struct error *err)
{
    for (int id = 0; id < n; id++) {
        if (isnan(logits[id]) || logits[id] == INFINITY)
            return error_set(err, STATUS_INVALID, "the logit of token %d is %g", id, (double)logits[id]);
        scores[id] = logits[id];
    }
    return STATUS_OK;
}

static void apply_penalties(double *scores, int n, const struct sampler_params *p, const struct sampler_context *context)
{
    for (size_t i = 0; i < context->n_counts; i++) {
        const struct token_count *c = &context->counts[i];
        if (c->id < 0 || c->id >= n)
            continue;
        double x = scores[c->id];
        x = x > 0 ? x / p->repetition_penalty : x * p->repetition_penalty;
        if (c->n_in_answer)
            x = x - p->frequency_penalty * (double)c->n_in_answer - p->presence_penalty;
        scores[c->id] = x;
    }
    for (size_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id >= 0 && p->bias[i].id < n)
            scores[p->bias[i].id] += p->bias[i].bias;
}

static int find_best(const double *scores, int n)
{
    int best = 0;
    for (int id = 1; id < n; id++)
        if (scores[id] > scores[best])
            best = id;
    return best;
}

/* ---- selection ---- */

/* The order of the list: score descending, id ascending. */
static int goes_before(struct candidate a, struct candidate b)
{
    return a.score != b.score ? a.score > b.score : a.id < b.id;
}

/* Puts c where the root was; heap[0] is the one that goes last. */
static void replace_root(struct candidate *heap, int n, struct candidate c)
{
    int i = 0;
    for (;;) {
        int child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && goes_before(heap[child], heap[child + 1]))
            child++;
        if (!goes_before(c, heap[child]))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = c;
}

static void push(struct candidate *heap, int n, struct candidate c)
{
    int i = n;
    for (; i > 0 && goes_before(heap[(i - 1) / 2], c); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
}

/* The k first of the list, in order, into list [k]. */
static void select_first(struct candidate *list, int k, const double *scores, int n)
{
    CHECK(k > 0 && k <= n);
    for (int id = 0; id < k; id++)
        push(list, id, (struct candidate){scores[id], id});
    for (int id = k; id < n; id++)
        if (scores[id] > list[0].score) /* an equal score has the higher id: it goes after */
            replace_root(list, k, (struct candidate){scores[id], id});
    for (int last = k - 1; last > 0; last--) {
        struct candidate c = list[last];
        list[last] = list[0];
        replace_root(list, last, c);
    }
}

/* ---- cuts ---- */

/* How many of the list the nucleus keeps: those before which the probabilities sum to less than top_p. Returns n when the list does not
 * cover it. */
static int nucleus_size(const struct candidate *list, int n, double log_sum_exp, double top_p, double temperature, int *covers)
{
    double sum = 0;
    *covers = 1;
    for (int i = 0; i < n; i++) {
        sum += f64_exp(list[i].score / temperature - log_sum_exp);
        if (sum >= top_p)
            return i + 1;
    }
    *covers = 0;
    return n;
}

static double list_log_sum_exp(const struct candidate *list, int n, double temperature)
{
    double top = list[0].score / temperature, sum = 0;
    for (int i = 0; i < n; i++)
        sum += f64_exp(list[i].score / temperature - top);
    return top + f64_log(sum);
}

/* top_k and top_p: fills list with what they leave, in order, and returns how many. */
static int cut_list(struct candidate *list, const double *scores, int n, int best, const struct sampler_params *p)
{
    int covers;
    if (p->top_k && p->top_k < n) {
        select_first(list, p->top_k, scores, n);
        if (p->top_p >= 1)
            return p->top_k;
        return nucleus_size(list, p->top_k, list_log_sum_exp(list, p->top_k, p->temperature), p->top_p, p->temperature, &covers);
    }
    double log_sum_exp = sampler_log_sum_exp(scores, n, best, p->temperature);
    for (int k = FIRST_SELECTION;; k = k > n / SELECTION_GROWTH ? n : k * SELECTION_GROWTH) {
        k = k < n ? k : n;
        select_first(list, k, scores, n);
        int kept = nucleus_size(list, k, log_sum_exp, p->top_p, p->temperature, &covers);
        if (covers || k == n)
            return kept;
    }
}

/* ---- choice ---- */

struct choice {
    double value; /* s + G */
    int id;
};

/* Is G certainly below lead? Spares two logarithms for most ids. G <= -log(1 - u), as -log(u) >= 1 - u; so G < lead once 1 - u >= 2^-bits
 * for a whole number of bits below lead / log(2). The hundredth outweighs any rounding. */
static int noise_is_below(uint32_t word, double lead)
{
    double bits = lead * 1.4426950408889634 - 0.01;
    return bits >= 1 && (bits >= 33 || (uint64_t)~word >= (uint64_t)1 << (32 - (int)(bits < 32 ? bits : 32)));
}

static void consider(struct choice *choice, double s, int id, const struct sampler_params *p, uint32_t position)
{
    uint32_t word = word_of(p->seed, position, id);
    if (noise_is_below(word, choice->value - s))
        return;
    double value = s + noise_of(word);
    if (value > choice->value || (value == choice->value && id < choice->id))
        *choice = (struct choice){value, id};
}

static int choose(const struct sampler_params *p, uint32_t position, const double *scores, int n, int best, struct candidate *list)
{
    double top = scores[best] / p->temperature;
    double least = p->min_p > 0 ? top + f64_log(p->min_p) : -INFINITY; /* s of an id with min_p times the best one's probability */
    struct choice choice = {-INFINITY, -1};
    consider(&choice, top, best, p, position);
    if ((!p->top_k || p->top_k >= n) && p->top_p >= 1) {
        for (int id = 0; id < n; id++)
            if (id != best && scores[id] / p->temperature >= least)
                consider(&choice, scores[id] / p->temperature, id, p, position);
        return choice.id;
    }
    int kept = cut_list(list, scores, n, best, p);
    CHECK(kept >= 1 && list[0].id == best);
    for (int i = 1; i < kept && list[i].score / p->temperature >= least; i++)
        consider(&choice, list[i].score / p->temperature, list[i].id, p, position);
    return choice.id;
}

enum status sampler_pick(const struct sampler_params *p, const struct sampler_context *context, const float *logits, int n, void *scratch,
                         int wants_log_probability, struct sampled_token *out, struct error *err)
{
    CHECK(n > 0);
    double *scores = scratch;
    struct candidate *list = (struct candidate *)(scores + n);
    enum status status = copy_logits(scores, logits, n, err);
    if (status)
        return status;
    apply_penalties(scores, n, p, context);
    int best = find_best(scores, n), is_greedy = p->temperature < TEMPERATURE_MIN;
    if (scores[best] == -INFINITY)
        return error_set(err, STATUS_INVALID, "every token's logit is -infinity");
    out->id = is_greedy ? best : choose(p, context->position, scores, n, best, list);
    CHECK(out->id >= 0);
    if (wants_log_probability) {
        double temperature = is_greedy ? 1 : p->temperature;
        out->log_probability = scores[out->id] / temperature - sampler_log_sum_exp(scores, n, best, temperature);
    }
    return STATUS_OK;
}
