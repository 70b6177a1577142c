#include "model/generate.h"

#include <stdlib.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/memory.h"

static int is_stop(const struct generation *g, int id)
{
    for (int i = 0; i < g->n_stop_ids; i++)
        if (g->stop_ids[i] == id)
            return 1;
    return 0;
}

/* Only the last row's logits are needed, so the rows before it go without a head. */
static enum status prefill(struct model *model, struct sequence_state *sequence, const struct generation *g, float *logits, struct error *err)
{
    enum status status = STATUS_OK;
    if (g->n_prompt > 1)
        status = model_forward(model, &(struct model_input){sequence, g->prompt, g->n_prompt - 1, NULL, NULL}, 1, err);
    if (!status)
        status = model_forward(model, &(struct model_input){sequence, g->prompt + g->n_prompt - 1, 1, logits, NULL}, 1, err);
    return status;
}

static enum status decode(struct model *model, struct sequence_state *sequence, struct generation *g, float *logits, void *scratch, struct error *err)
{
    int room = sequence->blocks_max * CACHE_BLOCK_POSITIONS - sequence->length + 1;
    g->end = GENERATION_LENGTH;
    while (g->n_new < g->max_new && g->n_new < room) {
        struct sampler_context context = {.position = (uint32_t)sequence->length};
        struct sampled_token token;
        enum status status = sampler_pick(&g->sampling, &context, logits, g->n_tokens, scratch, 0, &token, err);
        if (status)
            return status;
        if (is_stop(g, token.id)) {
            g->end = GENERATION_STOPPED;
            return STATUS_OK;
        }
        g->n_new++;
        if (g->on_token(g->ctx, token.id)) {
            g->end = GENERATION_ENDED_BY_CALLER;
            return STATUS_OK;
        }
        if (g->n_new == g->max_new || g->n_new == room)
            break;
        status = model_forward(model, &(struct model_input){sequence, &token.id, 1, logits, NULL}, 1, err);
        if (status)
            return status;
    }
    return STATUS_OK;
}

enum status generate(struct model *model, struct sequence_state *sequence, struct generation *g, struct error *err)
{
    CHECK(g->n_prompt >= 1 && g->n_tokens >= 1 && g->n_tokens <= model->config->vocab_size);
    float *logits = xcalloc((size_t)model->config->vocab_size, sizeof *logits);
    void *scratch = xcalloc(1, sampler_scratch_bytes(g->n_tokens));
    struct clock *clock = clock_monotonic();
    uint64_t start = clock_now_ns(clock);
    g->n_new = 0;
    enum status status = prefill(model, sequence, g, logits, err);
    uint64_t first = clock_now_ns(clock);
    if (!status)
        status = decode(model, sequence, g, logits, scratch, err);
    g->prefill_ns = first - start;
    g->decode_ns = clock_now_ns(clock) - first;
    free(scratch);
    free(logits);
    return status;
}
