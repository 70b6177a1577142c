#include "model/generate.h"

#include <stdlib.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/memory.h"
#include "model/token_counts.h"

static int is_stop(const struct generation *g, int id)
{
    for (int i = 0; i < g->n_stop_ids; i++)
        if (g->stop_ids[i] == id)
            return 1;
    return 0;
}

/* One generation under way. */
struct run {
    struct model *model;
    struct sequence_state *sequence;
    struct generation *g;
    struct token_counts counts;
    float *logits; /* [vocab] of the last row */
    void *scratch;
};

/* Only the last row's logits are needed, so the rows before it go without a head. */
static enum status prefill(struct run *r, struct error *err)
{
    const int *prompt = r->g->prompt + r->sequence->length;
    int n = r->g->n_prompt - r->sequence->length;
    enum status status = STATUS_OK;
    if (n > 1)
        status = model_forward(r->model, &(struct model_input){r->sequence, prompt, n - 1, NULL, NULL}, 1, err);
    if (!status)
        status = model_forward(r->model, &(struct model_input){r->sequence, prompt + n - 1, 1, r->logits, NULL}, 1, err);
    return status;
}

static enum status pick(struct run *r, int *id, struct error *err)
{
    struct sampler_context context = {r->counts.list, r->counts.n, (uint32_t)r->sequence->length};
    struct sampled_token token = {0};
    enum status status = sampler_pick(&r->g->sampling, &context, r->logits, r->g->n_tokens, r->scratch, 0, &token, err);
    *id = token.id;
    return status;
}

static enum status decode(struct run *r, struct error *err)
{
    struct generation *g = r->g;
    int room = r->sequence->positions_max - r->sequence->length + 1, id;
    int most = g->max_new < room ? g->max_new : room;
    g->end = GENERATION_LENGTH;
    while (g->n_new < most) {
        enum status status = pick(r, &id, err);
        if (status)
            return status;
        if (is_stop(g, id)) {
            g->end = GENERATION_STOPPED;
            break;
        }
        g->n_new++;
        token_counts_add(&r->counts, id, 1);
        if (g->on_token(g->ctx, id)) {
            g->end = GENERATION_ENDED_BY_CALLER;
            break;
        }
        if (g->n_new == most)
            break;
        status = model_forward(r->model, &(struct model_input){r->sequence, &id, 1, r->logits, NULL}, 1, err);
        if (status)
            return status;
    }
    return STATUS_OK;
}

enum status generate(struct model *model, struct sequence_state *sequence, struct generation *g, struct error *err)
{
    CHECK(g->n_prompt > sequence->length && g->n_tokens >= 1 && g->n_tokens <= model->config->vocab_size);
    struct run r = {.model = model, .sequence = sequence, .g = g};
    r.logits = xcalloc((size_t)model->config->vocab_size, sizeof *r.logits);
    r.scratch = xcalloc(1, sampler_scratch_bytes(g->n_tokens));
    token_counts_init(&r.counts, &g->sampling, g->n_tokens);
    for (int i = 0; i < g->n_prompt; i++)
        token_counts_add(&r.counts, g->prompt[i], 0);
    struct clock *clock = clock_monotonic();
    uint64_t start = clock_now_ns(clock);
    g->n_new = 0;
    enum status status = prefill(&r, err);
    uint64_t first = clock_now_ns(clock);
    if (!status)
        status = decode(&r, err);
    g->prefill_ns = first - start;
    g->decode_ns = clock_now_ns(clock) - first;
    token_counts_release(&r.counts);
    free(r.scratch);
    free(r.logits);
    return status;
}
