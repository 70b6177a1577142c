#include "model/token_counts.h"

#include <stdlib.h>

#include "common/memory.h"

int sampler_has_penalties(const struct sampler_params *p)
{
    return p->repetition_penalty != 1 || p->frequency_penalty != 0 || p->presence_penalty != 0;
}

void token_counts_init(struct token_counts *counts, const struct sampler_params *params, int n_tokens)
{
    *counts = (struct token_counts){.n_tokens = n_tokens};
    if (!sampler_has_penalties(params))
        return;
    counts->list = xcalloc((size_t)n_tokens, sizeof *counts->list);
    counts->place = xcalloc((size_t)n_tokens, sizeof *counts->place);
}

void token_counts_release(struct token_counts *counts)
{
    free(counts->list);
    free(counts->place);
    *counts = (struct token_counts){0};
}

void token_counts_add(struct token_counts *counts, int id, int in_answer)
{
    if (!counts->list || id >= counts->n_tokens)
        return;
    if (!counts->place[id]) {
        counts->list[counts->n].id = id;
        counts->place[id] = (int)++counts->n;
    }
    counts->list[counts->place[id] - 1].n_in_answer += (uint32_t)in_answer;
}
