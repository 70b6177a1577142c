#include "model/moe.h"

#include <math.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "kernels/float_math.h"
#include "model/swiglu.h"

/* Is a before b: larger score, then lower index. NaN never wins, so it cannot break the order. */
static int is_better(float a, int ia, float b, int ib)
{
    return a > b || (a == b && ia < ib) || (b != b && (a == a || ia < ib));
}

/* The k best of scores [n], best first. */
static void top_k(const float *scores, int n, int k, int *out)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        int at = count;
        while (at > 0 && is_better(scores[i], i, scores[out[at - 1]], out[at - 1]))
            at--;
        if (at >= k)
            continue;
        count = count < k ? count + 1 : k;
        memmove(out + at + 1, out + at, (size_t)(count - 1 - at) * sizeof *out);
        out[at] = i;
    }
}

/* Experts of the groups that are not among the topk_group best become ineligible: minus infinity, not 0, because biased scores may be negative. A
 * group's score is the sum of its two largest. */
static void mask_groups(const struct model_config *c, float *biased)
{
    int size = c->n_experts / c->n_group, best[EXPERTS_MAX];
    float score[EXPERTS_MAX];
    for (int g = 0; g < c->n_group; g++) {
        int two[2];
        top_k(biased + g * size, size, 2, two);
        score[g] = biased[g * size + two[0]] + biased[g * size + two[1]];
    }
    top_k(score, c->n_group, c->topk_group, best);
    unsigned char kept[EXPERTS_MAX] = {0};
    for (int i = 0; i < c->topk_group; i++)
        kept[best[i]] = 1;
    for (int e = 0; e < c->n_experts; e++)
        if (!kept[e / size])
            biased[e] = -INFINITY;
}

static void sort_ascending(int *ids, int n)
{
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && ids[j] < ids[j - 1]; j--) {
            int swap = ids[j];
            ids[j] = ids[j - 1];
            ids[j - 1] = swap;
        }
}

/* The experts that a row prefers, best first, and their unbiased scores. */
static void rank_experts(const struct model_config *c, const float *logits, const float *bias, float *score, int *ids)
{
    float biased[EXPERTS_MAX];
    for (int e = 0; e < c->n_experts; e++) {
        score[e] = f32_sigmoid(logits[e]);
        biased[e] = score[e] + bias[e];
    }
    if (c->n_group > 1)
        mask_groups(c, biased);
    top_k(biased, c->n_experts, c->top_k, ids);
}

void moe_choose(const struct model_config *c, const float *logits, const float *bias, int *ids, float *weights)
{
    float score[EXPERTS_MAX];
    rank_experts(c, logits, bias, score, ids);
    sort_ascending(ids, c->top_k);
    float sum = 0; /* of the unbiased scores, ascending id */
    for (int i = 0; i < c->top_k; i++)
        sum += score[ids[i]];
    for (int i = 0; i < c->top_k; i++)
        weights[i] = (c->norm_topk_prob ? score[ids[i]] / (sum + 1e-20f) : score[ids[i]]) * c->routed_scaling_factor;
}

/* Groups the choices of n_rows rows by expert. Returns how many experts are in list. */
static int group_by_expert(const struct model_config *c, struct routing *r, int n_rows)
{
    int k = c->top_k, n_experts = c->n_experts, n_list = 0, total = 0;
    int *count = r->first; /* first counts, then turned into starts */
    memset(count, 0, (size_t)(n_experts + 1) * sizeof *count);
    for (int i = 0; i < n_rows * k; i++)
        count[r->chosen[i]]++;
    for (int e = 0; e <= n_experts; e++) {
        int own = count[e];
        if (e < n_experts && own) {
            r->uses[n_list] = own;
            r->list[n_list++] = e;
        }
        count[e] = total;
        total += own;
    }
    int next[EXPERTS_MAX];
    memcpy(next, count, (size_t)n_experts * sizeof *next);
    for (int i = 0; i < n_rows * k; i++) {
        int at = next[r->chosen[i]]++;
        r->expert_rows[at] = i / k;
        r->place[i] = at;
    }
    memset(r->landed, 0, (size_t)n_experts);
    return n_list;
}

/* One expert for some of the rows that chose it: rows [n] are row numbers, at most work->max_rows; out [n][H]. */
static void expert_ffn(const struct layer_context *ctx, const struct expert_view *view, struct activations *normed, const int *rows, int n, float *out)
{
    struct workspace *work = ctx->work;
    CHECK(view->place == EXPERT_IN_RAM && n <= work->max_rows);
    struct activations some, *x = normed;
    if (n < normed->n) {
        activations_gather(&some, work->gathered, work->gathered_q, normed, rows, n, view->gate.format, ctx->kernels);
        x = &some;
    }
    swiglu_forward(ctx, &view->gate, &view->up, &view->down, x, out, (size_t)ctx->config->hidden_size);
}

/* Few rows (decode): experts are computed as they arrive, each output is kept, and every row adds its own in ascending id at the end. */
static enum status run_buffered(const struct layer_context *ctx, int layer, int n_list, int n_rows, struct activations *normed, struct error *err)
{
    struct workspace *work = ctx->work;
    struct routing *r = &work->routing;
    const struct model_config *c = ctx->config;
    size_t hidden = (size_t)c->hidden_size;
    for (int done = 0; done < n_list; done++) {
        int expert;
        struct expert_view view;
        enum status status = ctx->experts->wait_any(ctx->experts, layer, &expert, &view, err);
        if (status) {
            for (int i = 0; i < n_list; i++)
                if (!r->landed[r->list[i]])
                    ctx->experts->release(ctx->experts, layer, r->list[i]);
            return status;
        }
        int first = r->first[expert];
        expert_ffn(ctx, &view, normed, r->expert_rows + first, r->first[expert + 1] - first, work->expert_out + (size_t)first * hidden);
        r->landed[expert] = 1;
        ctx->experts->release(ctx->experts, layer, expert);
    }
    for (int i = 0; i < n_rows; i++) {
        float *out = work->out + (size_t)i * hidden;
        memset(out, 0, hidden * sizeof(float));
        for (int j = i * c->top_k; j < (i + 1) * c->top_k; j++)
            ctx->kernels->axpy(out, r->weight[j], work->expert_out + (size_t)r->place[j] * hidden, c->hidden_size);
    }
    return STATUS_OK;
}

/* ---- many rows, expert by expert ---- */

void moe_set_begin(const struct layer_context *ctx, struct moe_set *set)
{
    set->n_list = group_by_expert(ctx->config, set->routing, set->n_rows);
    set->next = set->was_requested = 0;
    memset(set->out, 0, (size_t)set->n_rows * (size_t)ctx->config->hidden_size * sizeof(float));
}

static void give_up_rest(const struct layer_context *ctx, struct moe_set *set)
{
    for (int i = set->next; i < set->n_list; i++) {
        ctx->experts->release(ctx->experts, set->layer, set->routing->list[i]);
        set->routing->landed[set->routing->list[i]] = 0;
    }
}

/* An expert for all of its rows, added to their partial sums; more rows than fit in the scratch go in pieces. */
static void add_expert(const struct layer_context *ctx, struct moe_set *set, int expert)
{
    const struct routing *r = set->routing;
    const struct model_config *c = ctx->config;
    size_t hidden = (size_t)c->hidden_size;
    for (int at = r->first[expert], n; at < r->first[expert + 1]; at += n) {
        n = r->first[expert + 1] - at;
        n = n < ctx->work->max_rows ? n : ctx->work->max_rows;
        expert_ffn(ctx, &r->views[expert], &set->normed, r->expert_rows + at, n, ctx->work->expert_out);
        for (int i = 0; i < n; i++) {
            int row = r->expert_rows[at + i], j = row * c->top_k;
            while (r->chosen[j] != expert)
                j++;
            ctx->kernels->axpy(set->out + (size_t)row * hidden, r->weight[j], ctx->work->expert_out + (size_t)i * hidden, c->hidden_size);
        }
    }
}

static enum status wait_for(const struct layer_context *ctx, struct moe_set *set, int expert, struct error *err)
{
    while (!set->routing->landed[expert]) {
        int landed;
        struct expert_view view;
        enum status status = ctx->experts->wait_any(ctx->experts, set->layer, &landed, &view, err);
        if (status)
            return status;
        set->routing->views[landed] = view;
        set->routing->landed[landed] = 1;
    }
    return STATUS_OK;
}

enum status moe_set_run(const struct layer_context *ctx, struct moe_set *set, uint64_t until_ns, struct error *err)
{
    struct routing *r = set->routing;
    if (set->next == set->n_list)
        return STATUS_OK;
    struct expert_request rest = {set->layer, r->list + set->next, r->uses + set->next, set->n_list - set->next,
                                  set->was_requested ? 0 : set->n_rows};
    enum status status = ctx->experts->request(ctx->experts, &rest, err);
    if (status)
        return status;
    set->was_requested = 1;
    while (set->next < set->n_list) {
        int expert = r->list[set->next];
        status = wait_for(ctx, set, expert, err);
        if (status)
            break;
        add_expert(ctx, set, expert);
        ctx->experts->release(ctx->experts, set->layer, expert);
        set->next++;
        if (until_ns && set->next < set->n_list && clock_now_ns(clock_monotonic()) >= until_ns)
            break;
    }
    give_up_rest(ctx, set);
    return status;
}

void moe_route(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct activations *normed, struct routing *r, int first)
{
    const struct model_config *c = ctx->config;
    const struct layer_weights *w = &ctx->weights->layers[layer];
    float *logits = r->logits + (size_t)first * (size_t)c->n_experts;
    linear_run(ctx->kernels, &(struct linear){&w->router, normed, logits, (size_t)c->n_experts}, 1);
    for (int i = 0; i < n_rows; i++) {
        int *ids = r->chosen + (first + i) * c->top_k;
        float *weights = r->weight + (first + i) * c->top_k;
        moe_choose(c, logits + (size_t)i * (size_t)c->n_experts, w->router_bias, ids, weights);
        if (ctx->observer && ctx->observer->on_routing)
            ctx->observer->on_routing(ctx->observer->ctx, layer, rows[i], ids, weights, c->top_k);
    }
}

void moe_shared(const struct layer_context *ctx, int layer, struct activations *normed, float *out)
{
    const struct mlp_weights *shared = &ctx->weights->layers[layer].mlp;
    if (ctx->config->n_shared_experts)
        swiglu_forward(ctx, &shared->gate, &shared->up, &shared->down, normed, out, (size_t)ctx->config->hidden_size);
}

/* What the experts added up to, plus the shared expert's. */
void moe_add_shared(const struct layer_context *ctx, int n_rows, float *out, const float *shared)
{
    for (size_t i = 0; i < (size_t)n_rows * (size_t)ctx->config->hidden_size && ctx->config->n_shared_experts; i++)
        out[i] += shared[i];
}

/* Tells the source which experts the next layer will probably want: what its router says of the residual as it is now, before this layer's experts and the
 * next attention have changed it (docs/PERFORMANCE.md, "Prefetch"). Changes no result. */
static void hint_next_layer(const struct layer_context *ctx, int layer, struct row **rows, int n_rows)
{
    struct workspace *work = ctx->work;
    const struct model_config *c = ctx->config;
    int next = layer + 1, ranked[BUFFERED_ROWS_MAX * EXPERTS_MAX], list[EXPERTS_MAX], n = 0;
    if (!ctx->experts->wants_hints || n_rows > BUFFERED_ROWS_MAX || next >= ctx->weights->layer_end || next >= c->n_layers || !c->is_sparse[next])
        return;
    const struct layer_weights *w = &ctx->weights->layers[next];
    for (int i = 0; i < n_rows; i++)
        ctx->kernels->rms_norm(work->gathered + (size_t)i * (size_t)c->hidden_size, rows[i]->residual, w->post_attention_norm, c->hidden_size, c->rms_norm_eps);
    struct activations normed = activations_of(work->gathered, (size_t)c->hidden_size, n_rows, c->hidden_size, work->gathered_q);
    linear_run(ctx->kernels, &(struct linear){&w->router, &normed, work->routing.logits, (size_t)c->n_experts}, 1);
    for (int i = 0; i < n_rows; i++) {
        float score[EXPERTS_MAX];
        rank_experts(c, work->routing.logits + (size_t)i * (size_t)c->n_experts, w->router_bias, score, ranked + i * c->top_k);
    }
    unsigned char is_listed[EXPERTS_MAX] = {0};
    for (int rank = 0; rank < c->top_k; rank++)
        for (int i = 0; i < n_rows; i++) {
            int expert = ranked[i * c->top_k + rank];
            if (!is_listed[expert])
                list[n++] = expert;
            is_listed[expert] = 1;
        }
    ctx->experts->expect(ctx->experts, next, list, n);
}

static enum status forward_few(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct activations *normed, struct error *err)
{
    struct routing *r = &ctx->work->routing;
    int n_list = group_by_expert(ctx->config, r, n_rows);
    struct expert_request request = {layer, r->list, r->uses, n_list, n_rows};
    enum status status = ctx->experts->request(ctx->experts, &request, err);
    if (status)
        return status;
    hint_next_layer(ctx, layer, rows, n_rows);
    moe_shared(ctx, layer, normed, ctx->work->shared_out); /* while the reads fly */
    return run_buffered(ctx, layer, n_list, n_rows, normed, err);
}

static enum status forward_many(const struct layer_context *ctx, int layer, int n_rows, struct activations *normed, struct error *err)
{
    struct moe_set set = {.layer = layer, .n_rows = n_rows, .normed = *normed, .routing = &ctx->work->routing, .out = ctx->work->out};
    moe_set_begin(ctx, &set);
    enum status status = moe_set_run(ctx, &set, 0, err);
    if (!status)
        moe_shared(ctx, layer, &set.normed, ctx->work->shared_out);
    return status;
}

enum status moe_forward(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct activations *normed, struct error *err)
{
    moe_route(ctx, layer, rows, n_rows, normed, &ctx->work->routing, 0);
    enum status status = n_rows <= BUFFERED_ROWS_MAX ? forward_few(ctx, layer, rows, n_rows, normed, err) : forward_many(ctx, layer, n_rows, normed, err);
    if (!status)
        moe_add_shared(ctx, n_rows, ctx->work->out, ctx->work->shared_out);
    return status;
}
