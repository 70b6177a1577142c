#include "cli/plan_machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include "cli/kernel_rates.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/memory.h"
#include "kernels/parallel.h"
#include "model/checksums.h"
#include "model/part_layout.h"
#include "node/drive_files.h"
#include "node/machine_profile.h"

enum {
    WEIGHTS_BYTES = 192 << 20, /* well above any last cache of a home machine */
    DRIVE_MS = 600,
    CHECKED_BYTES = 64 << 20, /* more than a cache holds: experts come from memory when they are checked */
    CHECK_ROUNDS = 4,
    MIX_ROUNDS = 20,
    MIX_ROWS = 512,
    MIX_HEADS = 8, /* as many as attention takes at once */
    MIX_WIDTH = 512,
};
#define KERNEL_SECONDS 0.25

/* Two threads that are awake start and end a parallel region in 0.2 us; norms, quantised rows and the router's choice come between regions.
 * Together a token of a model with 576 regions took 0.6 ms more than its weights. */
#define REGION_SECONDS 1e-6

static double seconds_since(uint64_t begin_ns)
{
    return (double)(clock_now_ns(clock_monotonic()) - begin_ns) / 1e9;
}

/* ---- drives ---- */

/* Nothing there brings bytes but a core that copies them. */
static int is_memory(const char *dir)
{
    struct statfs fs;
    return !statfs(dir, &fs) && fs.f_type == TMPFS_MAGIC;
}

static int needs_copying(const struct drive_files *files)
{
    int n = 0;
    for (int i = 0; i < files->n_stores; i++)
        n += is_memory(files->stores[i]);
    for (int i = 0; i < files->n_files; i++)
        n += files->files[i].direct_errno != 0;
    return n > 0;
}

/* Drives of a profile that was named: another machine's. */
static enum status drives_of_profile(struct plan_machine *m, const struct machine_profile *p, const struct plan_machine_request *q,
                                     struct error *err)
{
    if (!p->n_stores)
        return error_set(err, STATUS_UNSUPPORTED, "%s: has no drive: probe again", q->profile);
    m->speed.drive_bytes_per_second = machine_profile_drives_rate(p, expert_read_depth(q->experts, p->n_stores));
    m->speed.drive_latency_seconds = (double)p->stores[p->n_stores - 1].latency_p50_ns / 1e9;
    snprintf(m->drive_text, sizeof m->drive_text, "the profile of %s", p->date);
    return STATUS_OK;
}

static enum status look_at_drives(struct plan_machine *m, const struct plan_machine_request *q, double *copy_seconds_per_byte,
                                  struct error *err)
{
    struct emulated_drive drive = {0};
    struct drive_files files;
    uint64_t latency_ns = 0;
    enum status status = emulated_drive_parse(q->experts->emulate_disk, &drive, err);
    if (!status)
        status = drive_files_open(&files, q->dir, q->experts->store, err);
    if (status)
        return status;
    status = drive_files_rate(&files, q->experts, DRIVE_MS * UINT64_C(1000000), &m->speed.drive_bytes_per_second, &latency_ns, err);
    m->speed.drive_latency_seconds = (double)latency_ns / 1e9;
    *copy_seconds_per_byte = needs_copying(&files) && !status ? 1 / m->speed.drive_bytes_per_second : 0;
    if (drive.bytes_per_second > 0 && !status) {
        double raw = m->speed.drive_bytes_per_second, asked = expert_emulated_rate(q->experts);
        m->speed.drive_bytes_per_second = asked < raw ? asked : raw;
        m->speed.drive_latency_seconds = (double)(drive.latency_ns + drive.jitter_ns / 2) / 1e9;
        snprintf(m->drive_text, sizeof m->drive_text, "emulated; the real one gives %.2f GB/s%s", raw / 1e9,
                 asked < raw / 1.5 ? "" : ", too little to emulate that");
    } else {
        snprintf(m->drive_text, sizeof m->drive_text, "measured now on this model's files");
    }
    drive_files_close(&files);
    return status;
}

/* ---- kernels ---- */

/* The format that a part's bulk is in. */
static enum weight_format bulk_format(const struct weights_source *source, enum part_kind part, int layer)
{
    struct part_layout layout;
    weights_source_layout(source, part, layer, &layout);
    int largest = 0;
    for (int i = 1; i < layout.n_tensors; i++)
        if (layout.tensors[i].data_bytes > layout.tensors[largest].data_bytes)
            largest = i;
    return layout.tensors[largest].format;
}

static struct speed_rates measure_format(struct plan_machine *m, const struct kernels *kernels, struct rates_weights *weights,
                                         const struct rates_inputs *inputs, enum weight_format format, int n_threads)
{
    static const int rows[] = {1, SPEED_BATCH_ROWS};
    double rate[2];
    rates_weights_fill(weights, format);
    for (int i = 0; i < 2; i++) {
        struct rates_usual usual = rates_measure_usual(weights, inputs, kernels, rows[i], n_threads, KERNEL_SECONDS);
        rate[i] = usual.kernel;
        m->speed.memory_bytes_per_second = fmax(m->speed.memory_bytes_per_second, usual.read);
        m->is_disturbed |= usual.is_disturbed;
    }
    return (struct speed_rates){rate[0], rate[1]};
}

static enum status measure_kernels(struct plan_machine *m, const struct plan_machine_request *q, enum weight_format dense,
                                   enum weight_format experts, struct error *err)
{
    struct kernels kernels;
    struct rates_weights weights;
    struct rates_inputs inputs;
    enum status status = kernels_select(&kernels, q->isa, err);
    if (!status)
        status = rates_weights_open(&weights, WEIGHTS_BYTES, err);
    if (status)
        return status;
    rates_inputs_init(&inputs);
    rates_set_threads(q->n_threads);
    m->n_threads = q->n_threads;
    m->speed.dense = measure_format(m, &kernels, &weights, &inputs, dense, q->n_threads);
    m->speed.experts = experts == dense ? m->speed.dense : measure_format(m, &kernels, &weights, &inputs, experts, q->n_threads);
    rates_inputs_release(&inputs);
    rates_weights_release(&weights);
    snprintf(m->kernels_text, sizeof m->kernels_text, "measured now with %d threads%s", q->n_threads,
             m->is_disturbed ? ", while other programs used the cores" : "; hearth probe keeps better figures");
    return STATUS_OK;
}

static int rates_of_profile(const struct machine_profile *p, enum weight_format format, struct speed_rates *out)
{
    const struct profile_matmul *one = machine_profile_matmul(p, format_info(format)->name, 1);
    const struct profile_matmul *batch = machine_profile_matmul(p, format_info(format)->name, SPEED_BATCH_ROWS);
    if (one && batch)
        *out = (struct speed_rates){one->bytes_per_second, batch->bytes_per_second};
    return one && batch;
}

/* 1: the profile has what is needed. A profile that was named is taken wherever it was made: that is how one asks for another machine. */
static enum status look_at_profile(struct plan_machine *m, const struct plan_machine_request *q, enum weight_format dense,
                                   enum weight_format experts, struct error *err)
{
    struct machine_profile *p = xcalloc(1, sizeof *p);
    struct error ignored;
    enum status status = machine_profile_load(p, q->profile, q->profile ? err : &ignored);
    int is_usable = !status && rates_of_profile(p, dense, &m->speed.dense) && rates_of_profile(p, experts, &m->speed.experts);
    if (is_usable && !q->profile)
        is_usable = machine_profile_is_of_this_machine(p) && p->n_cores == q->n_threads && !p->is_disturbed && !strcmp(q->isa, "auto");
    if (is_usable) {
        m->speed.memory_bytes_per_second = p->memory_bytes_per_second;
        m->is_profile = 1;
        m->n_threads = p->n_cores;
        snprintf(m->kernels_text, sizeof m->kernels_text, "the profile of %s", p->date);
        if (q->profile && q->streams && !q->experts->emulate_disk)
            status = drives_of_profile(m, p, q, err);
    } else if (q->profile && !status) {
        status = error_set(err, STATUS_UNSUPPORTED, "%s: has no rates for weights of this model's formats: measure without --profile",
                           q->profile);
    }
    free(p);
    return q->profile ? status : STATUS_OK;
}

/* ---- small costs ---- */

/* The best of some rounds: other programs only make it slower. */
static double check_rate(void)
{
    char *bytes = xcalloc(CHECKED_BYTES, 1), sink[33];
    double best = 0;
    memset(bytes, 1, CHECKED_BYTES);
    for (int i = 0; i < CHECK_ROUNDS; i++) {
        uint64_t begin = clock_now_ns(clock_monotonic());
        identity_text(sink, bytes, CHECKED_BYTES); /* XXH3-128; on much data as fast as the XXH3-64 of records */
        double rate = CHECKED_BYTES / seconds_since(begin);
        best = rate > best ? rate : best;
    }
    free(bytes);
    return best;
}

/* Attention's latent mix, as the model runs it; its scores are as fast. One thread, the best of some rounds. */
static enum status measure_macs(const char *isa, double *rate, struct error *err)
{
    struct kernels kernels;
    enum status status = kernels_select(&kernels, isa, err);
    if (status)
        return status;
    float *memory = xcalloc(MIX_ROWS * MIX_WIDTH + MIX_HEADS * (MIX_ROWS + MIX_WIDTH), sizeof *memory);
    float *p = memory + MIX_ROWS * MIX_WIDTH, *out = p + MIX_HEADS * MIX_ROWS;
    const float *list[MIX_ROWS];
    for (int i = 0; i < MIX_ROWS; i++)
        list[i] = memory + i * MIX_WIDTH;
    *rate = 0;
    for (int i = 0; i < MIX_ROUNDS; i++) {
        uint64_t begin = clock_now_ns(clock_monotonic());
        kernels.mix_rows(out, MIX_WIDTH, p, MIX_ROWS, list, MIX_ROWS, MIX_HEADS, MIX_WIDTH);
        double seconds = seconds_since(begin), now = (double)MIX_ROWS * MIX_HEADS * MIX_WIDTH / (seconds > 1e-9 ? seconds : 1e-9);
        *rate = now > *rate ? now : *rate;
    }
    free(memory);
    return STATUS_OK;
}

enum status plan_machine_look(struct plan_machine *m, const struct plan_machine_request *q, struct error *err)
{
    const struct model_config *c = weights_source_config(q->source);
    double copy_seconds_per_byte = 0;
    int sparse = 0;
    while (sparse < c->n_layers - 1 && !c->is_sparse[sparse])
        sparse++;
    enum weight_format dense = bulk_format(q->source, PART_DENSE, 0);
    enum weight_format experts = c->is_sparse[sparse] ? bulk_format(q->source, PART_EXPERTS, sparse) : dense;
    *m = (struct plan_machine){0};
    /* Drives first: measuring kernels pins this thread to a core, and a reader's threads would inherit that. */
    enum status status =
        q->streams && (!q->profile || q->experts->emulate_disk) ? look_at_drives(m, q, &copy_seconds_per_byte, err) : STATUS_OK;
    if (!status)
        status = look_at_profile(m, q, dense, experts, err);
    if (!status && !m->is_profile)
        status = measure_kernels(m, q, dense, experts, err);
    if (!status)
        status = measure_macs(q->isa, &m->speed.macs_per_second, err);
    if (status)
        return status;
    m->speed.macs_per_second *= m->n_threads;
    m->speed.check_bytes_per_second = check_rate();
    m->speed.region_seconds = REGION_SECONDS;
    if (q->profile || m->n_threads >= parallel_cores()) /* else the I/O thread has a core of its own; a profile is of all cores */
        m->speed.landing_seconds_per_byte = 1 / m->speed.check_bytes_per_second + copy_seconds_per_byte;
    return STATUS_OK;
}
