/* Tokens one after another from one sequence, in this process: prefill, then sample and decode (docs/ARCHITECTURE.md, section 5, without the network). */
#ifndef HEARTH_MODEL_GENERATE_H
#define HEARTH_MODEL_GENERATE_H

#include <stdint.h>

#include "model/model.h"
#include "model/sampler.h"

enum generation_end {
    GENERATION_STOPPED, /* a stop id was chosen; it was not handed out */
    GENERATION_LENGTH,  /* max_new tokens, or the sequence is full */
    GENERATION_ENDED_BY_CALLER,
};

struct generation {
    /* The whole prompt; the first sequence->length tokens of it are in the sequence already, at least one is not. */
    const int *prompt;
    int n_prompt;
    struct sampler_params sampling;
    const int *stop_ids;
    int n_stop_ids;
    int n_tokens; /* the tokenizer's size: ids from here on are never chosen */
    int max_new;
    int (*on_token)(void *ctx, int id); /* non-zero ends the generation */
    void *ctx;
    /* results */
    enum generation_end end;
    int n_new;                       /* tokens handed out */
    uint64_t prefill_ns, decode_ns; /* decode: from the first token on */
};

/* Every token that was handed out, but the last, is in the sequence afterwards. */
enum status generate(struct model *model, struct sequence_state *sequence, struct generation *g, struct error *err);

#endif
