#include "node/speed_plan.h"

#include <stdint.h>

#include "common/check.h"
#include "common/splitmix64.h"
#include "node/expert_store.h"

/* Parallel regions as the code has them: quantising and multiplying count one each. Attention: the two down-projections, q_b, keys, scores
 * and mix, values, o_proj, and on most layers the indexer; the router is one more. An MLP: gate and up, silu, quantise, down. */
enum { REGIONS_ATTENTION = 12, REGIONS_MLP = 4, REGIONS_HEAD = 2 };

/* Share of what is read on a guess that the next layer then asks for: its router on the present residual chose 0.72 of the experts on a
 * trained model and 0.95 on random weights. */
#define GUESS_RECALL 0.8

enum {
    LAYERS_SIMULATED = 8192,      /* so many that another seed changes a token's time by less than 1 % */
};

const char *const speed_bound_names[N_SPEED_BOUNDS] = {"the drive", "memory", "computing"};

/* ---- decode ---- */

static double mlp_seconds(const struct speed_machine *m, double bytes, const struct speed_rates *rates)
{
    return bytes > 0 ? bytes / rates->one_row + REGIONS_MLP * m->region_seconds : 0;
}

/* One row over what was before it, a layer's share. */
static double history_seconds(const struct speed_machine *m, const struct speed_model *model, double n_positions)
{
    double attended = n_positions < model->attended_max ? n_positions : model->attended_max;
    double macs = attended * model->position_macs + (n_positions > attended ? n_positions * model->index_macs : 0);
    return macs > 0 ? macs / m->macs_per_second / (model->n_dense_layers + model->n_sparse_layers) : 0;
}

static double attention_seconds(const struct speed_machine *m, const struct speed_model *model, const struct speed_setup *setup,
                                double bytes)
{
    return bytes / m->dense.one_row + history_seconds(m, model, setup->n_positions) + REGIONS_ATTENTION * m->region_seconds;
}

/* From an expert's last byte on the wire until it is known to be good: the last piece's checksum, and half a wake-up is in the latency. */
static double check_seconds(const struct speed_machine *m, const struct speed_model *model)
{
    double piece = model->expert_bytes < EXPERT_PIECE_BYTES ? model->expert_bytes : EXPERT_PIECE_BYTES;
    return m->check_bytes_per_second > 0 ? piece / m->check_bytes_per_second : 0;
}

double speed_layer_seconds(const struct speed_machine *m, const struct speed_model *model, const struct speed_setup *setup, int n_missed,
                           double *ahead_bytes)
{
    CHECK(n_missed >= 0 && n_missed <= model->top_k && *ahead_bytes >= 0);
    double attention = attention_seconds(m, model, setup, model->attention_bytes), one = mlp_seconds(m, model->expert_bytes, &m->experts);
    double computing = mlp_seconds(m, model->shared_bytes, &m->dense) + model->top_k * one;
    double missed = n_missed * model->expert_bytes, left = missed > *ahead_bytes ? missed - *ahead_bytes : 0,
           drive = left / m->drive_bytes_per_second;
    /* Either computing never waits, and shares its cores with the landing of what is read; or the drive is waited for, and the last expert
     * that comes is computed when everything else has been. */
    double seconds = attention + computing + left * m->landing_seconds_per_byte;
    double waiting = attention + m->drive_latency_seconds + drive + check_seconds(m, model) + one;
    if (left > 0 && waiting > seconds)
        seconds = waiting;
    /* A request of more experts than are read ahead has no slots to spare for guesses. */
    int may_guess = setup->guesses != PREFETCH_OFF && left <= EXPERT_AHEAD_BYTES + model->expert_bytes;
    double idle = may_guess && seconds > drive + m->drive_latency_seconds ? seconds - drive - m->drive_latency_seconds : 0;
    *ahead_bytes = GUESS_RECALL * idle * m->drive_bytes_per_second;
    return seconds;
}

/* A layer's misses vary from row to row, and one with few of them does not make up for one with many, because computing and drive take
 * turns in being the slower: so many layers one after another, each expert missed or not by chance. */
static double simulate_layers(const struct speed_machine *m, const struct speed_model *model, const struct speed_setup *setup,
                              double hit_rate)
{
    double ahead = 0, sum = 0;
    uint64_t state = 1;
    for (int i = 0; i < LAYERS_SIMULATED; i++) {
        int n_missed = 0;
        for (int k = 0; k < model->top_k && setup->streams; k++)
            n_missed += splitmix64_unit(&state) >= hit_rate;
        sum += speed_layer_seconds(m, model, setup, n_missed, &ahead);
    }
    return sum / LAYERS_SIMULATED;
}

/* The store tries both ways and keeps the better one, where it may. */
static double layer_seconds(const struct speed_machine *m, const struct speed_model *model, const struct speed_setup *setup)
{
    struct speed_setup always = *setup, never = *setup;
    always.guesses = PREFETCH_ON;
    never.guesses = PREFETCH_OFF;
    double with = simulate_layers(m, model, &always, setup->hit_rate_guessing),
           without = simulate_layers(m, model, &never, setup->hit_rate);
    if (setup->guesses == PREFETCH_AUTO)
        return with < without ? with : without;
    return setup->guesses == PREFETCH_ON ? with : without;
}

static double token_seconds(const struct speed_machine *m, const struct speed_model *model, const struct speed_setup *setup)
{
    double dense = attention_seconds(m, model, setup, model->dense_layer_bytes) + REGIONS_MLP * m->region_seconds;
    double head = model->head_bytes / m->dense.one_row + REGIONS_HEAD * m->region_seconds;
    return model->n_dense_layers * dense + model->n_sparse_layers * layer_seconds(m, model, setup) + head;
}

/* ---- long prompts ---- */

/* One row's share of a matrix that `rows` rows read together: no faster than the batch kernel, and no faster than memory brings the weights
 * once. */
static double batch_seconds(double bytes, const struct speed_rates *rates, double rows)
{
    double batched = bytes / rates->batch / SPEED_BATCH_ROWS, once = bytes / rates->one_row / rows;
    return batched > once ? batched : once;
}

/* A row of a chunk. A chunk's experts of a layer are read once; what is resident of them is what memory holds, not what single rows would
 * hit. */
static double prompt_row_seconds(const struct speed_machine *m, const struct speed_model *model, const struct speed_setup *setup,
                                 double *missed_bytes)
{
    double rows = setup->chunk_rows, distinct = setup->chunk_experts, each = rows * model->top_k / distinct;
    double missed = setup->streams ? distinct * (1 - setup->resident_share) * model->expert_bytes / rows : 0;
    double attention = batch_seconds(model->attention_bytes + model->shared_bytes, &m->dense, rows);
    double experts =
        model->top_k * batch_seconds(model->expert_bytes, &m->experts, each) + REGIONS_MLP * m->region_seconds * distinct / rows;
    double busy = experts + missed * m->landing_seconds_per_byte, drive = missed > 0 ? missed / m->drive_bytes_per_second : 0;
    double history = history_seconds(m, model, setup->prompt_rows / 2.0); /* a middling row */
    double layer = attention + history + (busy > drive ? busy : drive);
    *missed_bytes = missed * model->n_sparse_layers;
    return model->n_sparse_layers * layer + model->n_dense_layers * (history + batch_seconds(model->dense_layer_bytes, &m->dense, rows));
}

/* ---- what bounds it ---- */

static const double NO_TIME = 1e30; /* bytes per second */

static struct speed_machine without_drive(const struct speed_machine *m)
{
    struct speed_machine fast = *m;
    fast.drive_bytes_per_second = NO_TIME;
    fast.drive_latency_seconds = fast.landing_seconds_per_byte = fast.check_bytes_per_second = 0;
    return fast;
}

static struct speed_machine without_computing(const struct speed_machine *m)
{
    struct speed_machine fast = *m;
    fast.dense = fast.experts = (struct speed_rates){NO_TIME, NO_TIME};
    fast.macs_per_second = NO_TIME;
    fast.region_seconds = fast.landing_seconds_per_byte = 0;
    return fast;
}

/* Kernels within a quarter of the plain read rate wait for memory, not for arithmetic. */
static enum speed_bound kind_of_computing(const struct speed_machine *m, double bytes_per_second)
{
    return bytes_per_second >= 0.75 * m->memory_bytes_per_second ? BOUND_MEMORY : BOUND_COMPUTING;
}

struct speed_plan speed_plan(const struct speed_machine *m, const struct speed_model *model, const struct speed_setup *setup)
{
    CHECK(setup->hit_rate >= 0 && setup->hit_rate <= 1 && setup->hit_rate_guessing >= 0 && setup->hit_rate_guessing <= 1 &&
          setup->chunk_rows >= 1 && setup->chunk_experts > 0);
    struct speed_machine no_drive = without_drive(m), no_computing = without_computing(m);
    struct speed_plan p = {.token_seconds = token_seconds(m, model, setup), .computing_seconds = token_seconds(&no_drive, model, setup)};
    double ignored;
    p.tokens_per_second = 1 / p.token_seconds;
    p.missed_bytes = setup->streams ? (1 - setup->hit_rate) * model->top_k * model->n_sparse_layers * model->expert_bytes : 0;
    int is_drive = setup->streams && p.computing_seconds < token_seconds(&no_computing, model, setup);
    p.bound = is_drive ? BOUND_DRIVE : kind_of_computing(m, m->experts.one_row);
    p.prompt_row_seconds = prompt_row_seconds(m, model, setup, &p.prompt_missed_bytes);
    p.prompt_tokens_per_second = 1 / p.prompt_row_seconds;
    is_drive =
        setup->streams && prompt_row_seconds(&no_drive, model, setup, &ignored) < prompt_row_seconds(&no_computing, model, setup, &ignored);
    p.prompt_bound = is_drive ? BOUND_DRIVE : kind_of_computing(m, m->experts.batch);
    return p;
}
