#include "model/moe.h"

#include <math.h>
#include <string.h>

#include "common/check.h"
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

void moe_choose(const struct model_config *c, const float *logits, const float *bias, int *ids, float *weights)
{
    float score[EXPERTS_MAX], biased[EXPERTS_MAX];
    for (int e = 0; e < c->n_experts; e++) {
        score[e] = f32_sigmoid(logits[e]);
        biased[e] = score[e] + bias[e];
    }
    if (c->n_group > 1)
        mask_groups(c, biased);
    top_k(biased, c->n_experts, c->top_k, ids);
    sort_ascending(ids, c->top_k);
    float sum = 0; /* of the unbiased scores, ascending id */
    for (int i = 0; i < c->top_k; i++)
        sum += score[ids[i]];
    for (int i = 0; i < c->top_k; i++)
        weights[i] = (c->norm_topk_prob ? score[ids[i]] / (sum + 1e-20f) : score[ids[i]]) * c->routed_scaling_factor;
}

/* Groups the choices by expert: expert_list (ascending, n returned) with expert_uses, expert_first, expert_rows; expert_place is the way back. */
static int group_by_expert(const struct layer_context *ctx, int n_rows)
{
    struct workspace *work = ctx->work;
    int k = ctx->config->top_k, n_experts = ctx->config->n_experts, n_list = 0, total = 0;
    int *count = work->expert_first; /* first counts, then turned into starts */
    memset(count, 0, (size_t)(n_experts + 1) * sizeof *count);
    for (int i = 0; i < n_rows * k; i++)
        count[work->chosen[i]]++;
    for (int e = 0; e <= n_experts; e++) {
        int own = count[e];
        if (e < n_experts && own) {
            work->expert_uses[n_list] = own;
            work->expert_list[n_list++] = e;
        }
        count[e] = total;
        total += own;
    }
    int next[EXPERTS_MAX];
    memcpy(next, count, (size_t)n_experts * sizeof *next);
    for (int i = 0; i < n_rows * k; i++) {
        int at = next[work->chosen[i]]++;
        work->expert_rows[at] = i / k;
        work->expert_place[i] = at;
    }
    return n_list;
}

/* One expert for every row that chose it; out [its rows][H]. */
static void expert_ffn(const struct layer_context *ctx, int expert, const struct expert_view *view, int n_rows, struct activations *normed, float *out)
{
    struct workspace *work = ctx->work;
    CHECK(view->place == EXPERT_IN_RAM);
    int first = work->expert_first[expert], n = work->expert_first[expert + 1] - first;
    struct activations some, *x = normed;
    if (n < n_rows) {
        activations_gather(&some, work->gathered, work->gathered_q, normed, work->expert_rows + first, n, view->gate.format, ctx->kernels);
        x = &some;
    }
    swiglu_forward(ctx, &view->gate, &view->up, &view->down, x, out, (size_t)ctx->config->hidden_size);
}

static void release_from(const struct layer_context *ctx, int layer, const int *list, int begin, int end)
{
    for (int i = begin; i < end; i++)
        ctx->experts->release(ctx->experts, layer, list[i]);
}

/* Few rows (decode): experts are computed as they arrive, each output is kept, and every row adds its own in ascending id at the end. */
static enum status run_buffered(const struct layer_context *ctx, int layer, int n_list, int n_rows, struct activations *normed, struct error *err)
{
    struct workspace *work = ctx->work;
    const struct model_config *c = ctx->config;
    size_t hidden = (size_t)c->hidden_size;
    for (int done = 0; done < n_list; done++) {
        int expert;
        struct expert_view view;
        enum status status = ctx->experts->wait_any(ctx->experts, layer, &expert, &view, err);
        if (status) {
            for (int i = 0; i < n_list; i++)
                if (!work->expert_landed[work->expert_list[i]])
                    ctx->experts->release(ctx->experts, layer, work->expert_list[i]);
            return status;
        }
        expert_ffn(ctx, expert, &view, n_rows, normed, work->expert_out + (size_t)work->expert_first[expert] * hidden);
        work->expert_landed[expert] = 1;
        ctx->experts->release(ctx->experts, layer, expert);
    }
    for (int i = 0; i < n_rows; i++) {
        float *out = work->out + (size_t)i * hidden;
        memset(out, 0, hidden * sizeof(float));
        for (int j = i * c->top_k; j < (i + 1) * c->top_k; j++)
            ctx->kernels->axpy(out, work->chosen_weight[j], work->expert_out + (size_t)work->expert_place[j] * hidden, c->hidden_size);
    }
    return STATUS_OK;
}

/* Adds one expert's outputs, work->expert_out [its rows][H], to the partial sums of its rows. */
static void add_expert(const struct layer_context *ctx, int expert)
{
    struct workspace *work = ctx->work;
    const struct model_config *c = ctx->config;
    size_t hidden = (size_t)c->hidden_size;
    int first = work->expert_first[expert];
    for (int i = first; i < work->expert_first[expert + 1]; i++) {
        int row = work->expert_rows[i], j = row * c->top_k;
        while (work->chosen[j] != expert)
            j++;
        ctx->kernels->axpy(work->out + (size_t)row * hidden, work->chosen_weight[j], work->expert_out + (size_t)(i - first) * hidden, c->hidden_size);
    }
}

/* Many rows (prefill): experts in ascending id, one partial sum a row. Waits for the next expert in order; what lands early is kept. */
static enum status run_in_order(const struct layer_context *ctx, int layer, int n_list, int n_rows, struct activations *normed, struct error *err)
{
    struct workspace *work = ctx->work;
    memset(work->out, 0, (size_t)n_rows * (size_t)ctx->config->hidden_size * sizeof(float));
    for (int i = 0; i < n_list; i++) {
        int expert = work->expert_list[i];
        while (!work->expert_landed[expert]) {
            int landed;
            struct expert_view view;
            enum status status = ctx->experts->wait_any(ctx->experts, layer, &landed, &view, err);
            if (status) {
                release_from(ctx, layer, work->expert_list, i, n_list);
                return status;
            }
            work->expert_views[landed] = view;
            work->expert_landed[landed] = 1;
        }
        expert_ffn(ctx, expert, &work->expert_views[expert], n_rows, normed, work->expert_out);
        add_expert(ctx, expert);
        ctx->experts->release(ctx->experts, layer, expert);
    }
    return STATUS_OK;
}

static void route(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct activations *normed)
{
    struct workspace *work = ctx->work;
    const struct model_config *c = ctx->config;
    const struct layer_weights *w = &ctx->weights->layers[layer];
    linear_run(ctx->kernels, &(struct linear){&w->router, normed, work->router_logits, (size_t)c->n_experts}, 1);
    for (int i = 0; i < n_rows; i++) {
        int *ids = work->chosen + i * c->top_k;
        float *weights = work->chosen_weight + i * c->top_k;
        moe_choose(c, work->router_logits + (size_t)i * (size_t)c->n_experts, w->router_bias, ids, weights);
        if (ctx->observer && ctx->observer->on_routing)
            ctx->observer->on_routing(ctx->observer->ctx, layer, rows[i], ids, weights, c->top_k);
    }
}

enum status moe_forward(const struct layer_context *ctx, int layer, struct row **rows, int n_rows, struct activations *normed, struct error *err)
{
    struct workspace *work = ctx->work;
    const struct model_config *c = ctx->config;
    const struct mlp_weights *shared = &ctx->weights->layers[layer].mlp;
    route(ctx, layer, rows, n_rows, normed);
    int n_list = group_by_expert(ctx, n_rows);
    memset(work->expert_landed, 0, (size_t)c->n_experts);
    struct expert_request request = {layer, work->expert_list, work->expert_uses, n_list, n_rows};
    enum status status = ctx->experts->request(ctx->experts, &request, err);
    if (status)
        return status;
    if (c->n_shared_experts) /* while the reads fly */
        swiglu_forward(ctx, &shared->gate, &shared->up, &shared->down, normed, work->shared_out, (size_t)c->hidden_size);
    status = (n_rows <= BUFFERED_ROWS_MAX ? run_buffered : run_in_order)(ctx, layer, n_list, n_rows, normed, err);
    if (status)
        return status;
    for (size_t i = 0; i < (size_t)n_rows * (size_t)c->hidden_size && c->n_shared_experts; i++)
        work->out[i] += work->shared_out[i];
    return STATUS_OK;
}
