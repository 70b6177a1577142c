/* The next token, as a pure function of scores, seed and position (docs/MODEL.md, "Sampling"; docs/spec/pipeline_protocol.md has the
 * same definition for the pipeline).
 *
 * Scores are the logits of ids below n_tokens; the repetition penalty r over prompt and answer (x / r for x > 0, x * r else), then
 * frequency and presence over the answer, then the bias. Temperature 0: the largest score, ties to the lower id. Otherwise s = score / T;
 * top_k, then top_p, then min_p cut the list (ordered by score descending, id ascending; each keeps at least one), and of what is left the
 * largest s + G wins, with G = -log(-log(u)), u = (x0 + 0.5) * 2^-32, x0 the first word of Philox4x32-10, key = seed, counter = (position,
 * id, 0, 0). That is exact sampling from what is left, and no id's chance depends on how many others were looked at. All of it in double,
 * by our own exp and log: the same choice on every machine. */
#ifndef HEARTH_MODEL_SAMPLER_H
#define HEARTH_MODEL_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "common/error.h"

struct token_bias {
    int id;
    double bias; /* added to the score */
};

struct sampler_params {
    double temperature;        /* 0 to 100; below 1e-6 counts as 0 */
    int top_k;                 /* 0: off */
    double top_p;              /* 0 to 1; 1: off. Ids are kept until their probabilities (after top_k) reach it */
    double min_p;              /* 0 to 1; 0: off. An id needs at least this share of the best one's probability */
    double repetition_penalty; /* above 0; 1: off */
    double frequency_penalty, presence_penalty;
    const struct token_bias *bias; /* [n_bias], borrowed; ids that do not exist are ignored */
    size_t n_bias;
    uint64_t seed;
};

/* What leaves every score as it is: temperature 1, everything else off, seed 0. */
extern const struct sampler_params sampler_params_default;

/* Fails (STATUS_INVALID) naming the field when a value is outside its bounds or no number. */
enum status sampler_params_check(const struct sampler_params *params, struct error *err);

/* A token of the text so far, each id once. */
struct token_count {
    int id;
    uint32_t n_in_answer; /* 0: only the prompt has it */
};

struct sampler_context {
    const struct token_count *counts; /* [n_counts], borrowed; empty when no penalty is in use */
    size_t n_counts;
    uint32_t position; /* of the token being chosen: the number of tokens before it */
};

struct sampled_token {
    int id;
    /* log of the id's probability in the whole distribution after penalties and bias, before any cut, at the request's temperature (at 1
     * when it is 0). Only when asked for. */
    double log_probability;
};

/* Working memory that sampler_pick needs for n_tokens ids. */
size_t sampler_scratch_bytes(int n_tokens);

/* Picks a token. logits: [at least n_tokens], unchanged; n_tokens: the tokenizer's size, > 0. scratch: sampler_scratch_bytes(n_tokens)
 * bytes, aligned for double; one per thread. params must have passed sampler_params_check. Time: n log k for a k that covers top_k or the
 * nucleus; with neither, one Philox a token. Fails (STATUS_INVALID) naming the id when a logit is NaN or +infinity, or when all are
 * -infinity (-infinity alone means never). */
enum status sampler_pick(const struct sampler_params *params, const struct sampler_context *context, const float *logits, int n_tokens,
                         void *scratch, int wants_log_probability, struct sampled_token *out, struct error *err);

/* G of an id at a position: the noise that sampler_pick adds. For drafting with the same noise. */
double sampler_noise(uint64_t seed, uint32_t position, int id);

/* log of the sum over i of exp(scores[i] / temperature), i ascending, scores[best] the largest. For the tail of a pipeline: sums of one row must
 * have the same bits wherever they are made. */
double sampler_log_sum_exp(const double *scores, int n, int best, double temperature);

#endif
