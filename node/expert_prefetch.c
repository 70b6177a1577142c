#include "node/expert_prefetch.h"

#include <string.h>

void prefetch_trial_init(struct prefetch_trial *t, enum prefetch_mode mode)
{
    memset(t, 0, sizeof *t);
    t->mode = mode;
    t->is_on = mode != PREFETCH_OFF;
}

/* Which windows guess. Where the rate rises or falls during the trial, as it does while the memory fills, the middle windows of both arms
 * (3 and 4, 2 and 5) lie around the same moment: it favours neither. */
static const unsigned char guesses[PREFETCH_TRIAL_WINDOWS] = {1, 0, 0, 1, 1, 0, 0, 1};

/* The middle of the windows of one arm, twice: a single slow window (another program) decides nothing. */
static uint64_t middle_of_arm(const struct prefetch_trial *t, int arm)
{
    uint64_t sorted[PREFETCH_TRIAL_WINDOWS];
    int n = 0;
    for (int i = 0; i < PREFETCH_TRIAL_WINDOWS; i++) {
        if (guesses[i] != arm)
            continue;
        int at = n++;
        for (; at > 0 && sorted[at - 1] > t->window_ns[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = t->window_ns[i];
    }
    return sorted[n / 2 - 1] + sorted[n / 2];
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
        t->is_on = guesses[0];
        return;
    }
    t->window_ns[t->windows] += pass_ns;
    if (++t->passes < PREFETCH_WINDOW_PASSES)
        return;
    t->passes = 0;
    if (++t->windows < PREFETCH_TRIAL_WINDOWS) {
        t->is_on = guesses[t->windows];
        return;
    }
    uint64_t on = middle_of_arm(t, 1), off = middle_of_arm(t, 0);
    t->last_ratio = off ? (double)on / (double)off : 1;
    t->is_on = t->last_ratio <= 1 + PREFETCH_COST_MAX;
}
