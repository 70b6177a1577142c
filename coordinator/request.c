#include "coordinator/request.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/memory.h"

static const unsigned next_states[N_REQUEST_STATES] = {
#define TO(state) (1u << REQUEST_##state)
    [REQUEST_QUEUED] = TO(OPENING) | TO(FAILED) | TO(CANCELLED),
    [REQUEST_OPENING] = TO(PREFILL) | TO(FAILED) | TO(CANCELLED),
    [REQUEST_PREFILL] = TO(DECODE) | TO(DONE) | TO(FAILED) | TO(CANCELLED),
    [REQUEST_DECODE] = TO(DONE) | TO(FAILED) | TO(CANCELLED),
#undef TO
};

void request_set_state(struct request *request, enum request_state state)
{
    CHECK(next_states[request->state] & 1u << state);
    request->state = state;
}

static void log_token(struct request *r, int token)
{
    r->tokens[r->n_tokens] = token;
    r->hashes[r->n_tokens + 1] = wire_hash_next(r->hashes[r->n_tokens], (uint32_t)token);
    r->n_tokens++;
}

struct request *request_new(uint64_t id, const struct cluster_request *ask, int positions, int n_tokens, uint64_t now_ns, uint64_t deadline_ns)
{
    struct request *r = xcalloc(1, sizeof *r);
    size_t room = (size_t)ask->n_prompt + (size_t)ask->max_new;
    *r = (struct request){.id = id, .ask = *ask, .positions = positions, .deadline_ns = deadline_ns, .moved_ns = now_ns, .cut_from = NO_CUT};
    r->tokens = xcalloc(room, sizeof *r->tokens);
    r->hashes = xcalloc(room + 1, sizeof *r->hashes);
    r->hashes[0] = WIRE_HASH_EMPTY;
    if (ask->sampling.n_bias) {
        struct token_bias *bias = xcalloc(ask->sampling.n_bias, sizeof *bias);
        memcpy(bias, ask->sampling.bias, ask->sampling.n_bias * sizeof *bias);
        r->ask.sampling.bias = bias;
    }
    token_counts_init(&r->counts, &ask->sampling, n_tokens);
    for (int i = 0; i < ask->n_prompt; i++) {
        log_token(r, ask->prompt[i]);
        token_counts_add(&r->counts, ask->prompt[i], 0);
    }
    r->ask.prompt = r->tokens;
    return r;
}

void request_free(struct request **request)
{
    struct request *r = *request;
    token_counts_release(&r->counts);
    if (r->ask.sampling.n_bias)
        free((void *)r->ask.sampling.bias);
    free(r->tokens);
    free(r->hashes);
    free(r);
    *request = NULL;
}

void request_append(struct request *r, int token)
{
    CHECK(r->n_tokens < r->ask.n_prompt + r->ask.max_new);
    log_token(r, token);
    token_counts_add(&r->counts, token, 1);
    r->n_new++;
}

uint32_t request_want(const struct request *r)
{
    const struct sampler_params *p = &r->ask.sampling;
    if (r->ask.teacher_forced)
        return WANT_LOGITS | WANT_EVERY_ROW | (r->ask.want_drafts ? WANT_DRAFT_LOGITS : 0);
    if (sampler_has_penalties(p) || p->n_bias)
        return WANT_LOGITS;
    if (p->temperature < 1e-6 || (p->top_k >= 1 && p->top_k <= CANDIDATES_MAX))
        return WANT_CANDIDATES;
    return WANT_LOGITS; /* without top_k the nucleus needs the sum over the whole row */
}
