/* How often each token id occurs in prompt and answer: what the penalties of a request look at. */
#ifndef HEARTH_MODEL_TOKEN_COUNTS_H
#define HEARTH_MODEL_TOKEN_COUNTS_H

#include "model/sampler.h"

struct token_counts {
    struct token_count *list; /* [n] each id once, in order of first occurrence; NULL when nobody asks */
    int *place;               /* [n_tokens] index in list + 1, 0: not there */
    size_t n;
    int n_tokens;
};

/* Does nothing (and token_counts_add neither) when the parameters use no penalty. */
void token_counts_init(struct token_counts *counts, const struct sampler_params *params, int n_tokens);
void token_counts_release(struct token_counts *counts);
void token_counts_add(struct token_counts *counts, int id, int in_answer);

/* 1 when scores depend on what came before. */
int sampler_has_penalties(const struct sampler_params *params);

#endif
