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

/* Straight line through the trial's passes: time = base_ns + ns_per_record * records. */
struct line {
    double base_ns, ns_per_record;
};

static struct line fit(const struct prefetch_trial *t)
{
    double n = PREFETCH_TRIAL_WINDOWS * PREFETCH_WINDOW_PASSES, spread = n * t->sum_rr - t->sum_r * t->sum_r;
    double slope = spread > 0 ? (n * t->sum_rt - t->sum_r * t->sum_t) / spread : 0;
    slope = slope > 0 ? slope : 0;
    return (struct line){(t->sum_t - slope * t->sum_r) / n, slope};
}

/* Time of a window as a share of what its passes and records lead one to expect. */
static double judge(const struct prefetch_trial *t, int window, struct line line)
{
    double expected = PREFETCH_WINDOW_PASSES * line.base_ns + line.ns_per_record * (double)t->window_needed[window];
    return expected > 0 ? (double)t->window_ns[window] / expected : 1;
}

/* The middle of the windows of one arm, twice: a single slow window (another program) decides nothing. */
static double middle_of_arm(const struct prefetch_trial *t, int arm)
{
    struct line line = fit(t);
    double sorted[PREFETCH_TRIAL_WINDOWS];
    int n = 0;
    for (int i = 0; i < PREFETCH_TRIAL_WINDOWS; i++) {
        if (guesses[i] != arm)
            continue;
        double value = judge(t, i, line);
        int at = n++;
        for (; at > 0 && sorted[at - 1] > value; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = value;
    }
    return sorted[n / 2 - 1] + sorted[n / 2];
}

static void begin_trial(struct prefetch_trial *t)
{
    memset(t->window_ns, 0, sizeof t->window_ns);
    memset(t->window_needed, 0, sizeof t->window_needed);
    t->sum_t = t->sum_r = t->sum_rr = t->sum_rt = 0;
    t->windows = t->passes = 0;
    t->is_on = guesses[0];
}

void prefetch_trial_pass(struct prefetch_trial *t, uint64_t pass_ns, int n_needed)
{
    if (t->mode != PREFETCH_AUTO)
        return;
    if (t->windows == PREFETCH_TRIAL_WINDOWS) { /* decided */
        if (++t->passes >= PREFETCH_KEEP_PASSES)
            begin_trial(t);
        return;
    }
    t->window_ns[t->windows] += pass_ns;
    t->window_needed[t->windows] += (uint64_t)n_needed;
    t->sum_t += (double)pass_ns;
    t->sum_r += n_needed;
    t->sum_rr += (double)n_needed * n_needed;
    t->sum_rt += (double)n_needed * (double)pass_ns;
    if (++t->passes < PREFETCH_WINDOW_PASSES)
        return;
    t->passes = 0;
    if (++t->windows < PREFETCH_TRIAL_WINDOWS) {
        t->is_on = guesses[t->windows];
        return;
    }
    double on = middle_of_arm(t, 1), off = middle_of_arm(t, 0);
    t->last_ratio = off > 0 ? on / off : 1;
    t->is_on = t->last_ratio <= 1 + PREFETCH_COST_MAX;
}
