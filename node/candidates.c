#include "node/candidates.h"

#include <math.h>
#include <stdlib.h>

#include "common/check.h"
#include "common/memory.h"
#include "model/sampler.h"

/* The sampler counts less as 0 too. */
#define TEMPERATURE_MIN 1e-6

void candidates_init(struct candidates *candidates, int vocab_size)
{
    candidates->scores = xcalloc((size_t)vocab_size, sizeof *candidates->scores);
    candidates->heap = xcalloc(CANDIDATES_MAX, sizeof *candidates->heap);
}

void candidates_release(struct candidates *candidates)
{
    free(candidates->scores);
    free(candidates->heap);
    candidates->scores = NULL;
    candidates->heap = NULL;
}

static int is_better(const float *logits, int a, int b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* The worst of the kept ids stands on top. */
static void sift_down(int *heap, int n, const float *logits)
{
    for (int at = 0, child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && is_better(logits, heap[child], heap[child + 1]))
            child++;
        if (is_better(logits, heap[child], heap[at]))
            return;
        int id = heap[at];
        heap[at] = heap[child];
        heap[child] = id;
    }
}

static void sift_up(int *heap, int at, const float *logits)
{
    for (int parent; at && is_better(logits, heap[parent = (at - 1) / 2], heap[at]); at = parent) {
        int id = heap[at];
        heap[at] = heap[parent];
        heap[parent] = id;
    }
}

enum status candidates_choose(struct candidates *c, const float *logits, int n_tokens, double temperature, struct error *err)
{
    CHECK(n_tokens >= 1);
    int n = 0, best = 0;
    for (int id = 0; id < n_tokens; id++) {
        if (!isfinite(logits[id]))
            return error_set(err, STATUS_CORRUPT, "the logit of token %d is not finite", id);
        c->scores[id] = (double)logits[id];
        best = logits[id] > logits[best] ? id : best;
        if (n < CANDIDATES_MAX) {
            c->heap[n] = id;
            sift_up(c->heap, n++, logits);
        } else if (is_better(logits, id, c->heap[0])) {
            c->heap[0] = id;
            sift_down(c->heap, n, logits);
        }
    }
    c->n = n;
    c->log_sum_exp = sampler_log_sum_exp(c->scores, n_tokens, best, temperature < TEMPERATURE_MIN ? 1 : temperature);
    for (; n; sift_down(c->heap, n, logits)) {
        n--;
        c->ids[n] = (uint32_t)c->heap[0];
        c->logits[n] = logits[c->heap[0]];
        c->heap[0] = c->heap[n];
    }
    return STATUS_OK;
}
