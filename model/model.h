/* The whole model in one process: every layer, experts all in RAM or from elsewhere. What `hearth run` uses, and what every other arrangement must equal byte for byte. */
#ifndef HEARTH_MODEL_MODEL_H
#define HEARTH_MODEL_MODEL_H

#include "common/budget.h"
#include "model/head.h"
#include "model/layer.h"
#include "model/layer_pass.h"
#include "model/mtp.h"
#include "model/resident_experts.h"
#include "model/weights_source.h"

struct model_options {
    const char *isa;          /* "auto", "scalar", "avx2", "avx512" */
    int n_threads;            /* 0: one per core that this process may use */
    int max_rows;             /* rows that go through a layer together, so that an expert is fetched once for all of them; 0: 64 */
    int max_positions;        /* positions of all sequences together; 0: the smaller of 8192 and what the model was made for */
    uint64_t memory_limit;    /* bytes; 0: what is available */
    const struct layer_observer *observer; /* or NULL */
};

struct model {
    struct weights_source *source;
    const struct model_config *config;
    struct kernels kernels;
    struct model_weights weights;
    struct resident_experts experts; /* empty when somebody else brought them */
    struct workspace work;
    struct layer_pass pass; /* for sets of more rows than the scratch takes at once */
    struct position_cache cache;
    struct layer_context context; /* points at the above */
    struct model_options options;
    int max_positions;
    int max_rows; /* of a set */
    /* rows of the set that is under way */
    struct row *rows;     /* [max_rows] */
    struct row **row_list;
    float *residuals;     /* [max_rows][H] */
    int *selections;      /* [max_rows][index_topk + DRAFT_DEPTH_MAX] */
    float *hidden;        /* [max_rows][H] after the final norm */
};

/* Opens a pack or vendor folder, sums the memory and refuses before allocating, loads and verifies everything. */
enum status model_open(struct model **model, const char *dir, const struct model_options *options, struct error *err);
void model_close(struct model **model);

/* The same in steps, for those who bring their own experts (node/expert_store.h): model_prepare opens the folder, chooses kernels and sizes and allocates nothing
 * large; model_budget adds accounts of all that model_load will allocate; experts, borrowed until model_close, must have every sparse layer. */
enum status model_prepare(struct model **model, const char *dir, const struct model_options *options, struct error *err);
void model_budget(const struct model *model, struct budget *budget);
void model_set_max_rows(struct model *model, int max_rows); /* before model_load: other rows than the options said */
uint64_t model_prefill_bytes(const struct model_config *config, int max_rows); /* that max_rows rows take */
enum status model_load(struct model *model, struct expert_source *experts, struct error *err);
enum status model_load_resident(struct model *model, struct error *err); /* with all experts in RAM */

/* Sequences of this model; `positions` is what it may grow to. */
enum status model_sequence_init(struct model *model, struct sequence_state *sequence, int positions, struct error *err);

/* New tokens of one sequence, at positions sequence->length and up. */
struct model_input {
    struct sequence_state *sequence;
    const int *tokens; /* [n] each in [0, vocab_size) */
    int n;
    float *logits;     /* [n][vocab], or NULL */
    float *hidden;     /* [n][H] after the final norm, or NULL */
};

/* Runs the tokens of several different sequences through the model together, in sets of at most max_rows rows, and raises the lengths. A value
 * that is not finite fails with the layer and position in the sentence; lengths then hold what the sets before that one raised them to. */
enum status model_forward(struct model *model, const struct model_input *inputs, int n_inputs, struct error *err);

/* True MTP rows of positions [first, first + n): tokens [n] are those at first + 1 ..., hidden [n][H] their h. logits [n][vocab] or NULL: only the cache
 * entries are made. Continues at sequence->mtp_length (first must equal it) and raises it. */
enum status model_mtp_rows(struct model *model, struct sequence_state *sequence, int first, const int *tokens, int n, const float *hidden, float *logits,
                           struct error *err);

/* Greedy drafts: the true row of position `position` with the token after it, then chained rows. Writes `depth` ids. The provisional rows
 * are not counted in mtp_length; the true one is. n_tokens: ids at and above it are never drafted. */
enum status model_draft_chain(struct model *model, struct sequence_state *sequence, int position, int token, const float *hidden, int depth, int n_tokens,
                              int *ids, struct error *err);

#endif
