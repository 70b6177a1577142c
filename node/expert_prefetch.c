#include "node/expert_prefetch.h"

#include <string.h>

void prefetch_trial_init(struct prefetch_trial *t, enum prefetch_mode mode)
{
    memset(t, 0, sizeof *t);
    t->mode = mode;
    t->is_on = mode != PREFETCH_OFF;
}

/* The median of the windows of one arm: a single slow window (another program, a warming cache) decides nothing. */
static uint64_t median_of_arm(const struct prefetch_trial *t, int arm)
{
    uint64_t sorted[PREFETCH_TRIAL_WINDOWS];
    int n = 0;
    for (int i = arm; i < PREFETCH_TRIAL_WINDOWS; i += 2) {
        int at = n++;
        for (; at > 0 && sorted[at - 1] > t->window_ns[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = t->window_ns[i];
    }
    return sorted[n / 2];
}

void prefetch_trial_pass(struct prefetch_trial *t, uint64_t pass_ns)
{
    if (t->mode != PREFETCH_AUTO)
        return;
    if (t->windows == PREFETCH_TRIAL_WINDOWS) { /* decided */
        if (++t->passes < PREFETCH_KEEP_PASSES)
            return;
        memset(t->window_ns, 0, sizeof t->window_ns);
        t->windows = t->passes = 0;
        t->is_on = 1;
        return;
    }
    t->window_ns[t->windows] += pass_ns;
    if (++t->passes < PREFETCH_WINDOW_PASSES)
        return;
    t->passes = 0;
    t->is_on = ++t->windows % 2 == 0; /* even windows guess */
    if (t->windows < PREFETCH_TRIAL_WINDOWS)
        return;
    uint64_t on = median_of_arm(t, 0), off = median_of_arm(t, 1);
    t->last_ratio = off ? (double)on / (double)off : 0;
    t->is_on = on < off;
}
