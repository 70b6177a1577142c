/* One layer for a large set of prefill rows, so that an expert is fetched once for all of them, in steps that can be interrupted. What the
 * rows become is what layer_forward makes of them, byte for byte, however the pass is cut. */
#ifndef HEARTH_MODEL_LAYER_PASS_H
#define HEARTH_MODEL_LAYER_PASS_H

#include "model/layer.h"
#include "model/moe.h"

struct layer_pass {
    void *memory;
    int max_rows;
    struct row **rows; /* [max_rows]; NULL: the row was forgotten */
    float *normed;     /* [max_rows][H] */
    void *normed_q;
    float *out; /* [max_rows][H] */
    struct routing routing;
    /* progress; n_rows 0: no pass is under way */
    int layer, n_rows;
    int attended, left; /* rows [0, attended) have passed attention and router, [0, left) have left the layer */
    int is_grouped;
    struct moe_set set;
};

size_t layer_pass_bytes(const struct model_config *config, int max_rows);
enum status layer_pass_init(struct layer_pass *pass, const struct model_config *config, int max_rows, struct error *err);
void layer_pass_release(struct layer_pass *pass);

/* rows as for layer_forward, at most max_rows of them and none only_cache; they stay untouchable until the pass is done. */
void layer_pass_begin(struct layer_pass *pass, int layer, struct row **rows, int n_rows);

/* Goes on until the pass is done (*is_done 1; the rows have left the layer) or, at the next opportunity (a block of rows, an expert),
 * until_ns (monotonic; 0: no limit) has passed. In between other rows may use the context, but none of a sequence that is in the pass may
 * enter this layer. On failure the pass is over and its rows are void. */
enum status layer_pass_run(const struct layer_context *ctx, struct layer_pass *pass, uint64_t until_ns, int *is_done, struct error *err);

/* The row is void and its memory will be used for others: the pass leaves it alone from now on. Its numbers may still be computed and lead
 * nowhere. With the last row the pass is over. Between two runs only. */
void layer_pass_forget(struct layer_pass *pass, const struct row *row);

#endif
