/* Goal: a made-up pack is a good model to measure with: the same bytes from any number of threads and on any machine, weights without a
 * mean, routing as diverse and as skewed as asked for, finite numbers far into a sequence; and whatever stops it leaves nothing. Method:
 * small packs with sizes that need padding are written, read back element by element, and run with an observer on the router. kill -9, a
 * full disk: tests/cli/test_synth.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/memory.h"
#include "kernels/parallel.h"
#include "model/pack.h"
#include "model/synth.h"
#include "tests/lib/golden.h"
#include "tests/lib/packs.h"

/* Columns that fill neither a block nor a group. */
static struct synth_options small(void)
{
    struct synth_options o = {.shape = *synth_shape_find("kindling"), .precision = PRECISION_INT4, .seed = 5};
    o.shape.n_layers = 3;
    o.shape.n_dense_layers = 1;
    o.shape.hidden_size = 200;
    o.shape.moe_intermediate_size = 72;
    o.shape.n_experts = 12;
    o.shape.vocab_size = 400;
    return o;
}

static char *write_or_fail(const struct synth_options *o, char identity[33])
{
    char *dir = temporary_folder();
    struct synth_result result;
    struct error err = {0};
    if (synth_pack(dir, o, &result, &err))
        fail_msg("%s", err.text);
    if (identity)
        memcpy(identity, result.identity, sizeof result.identity);
    return dir;
}

static void any_number_of_threads_gives_the_same_bytes(void **state)
{
    (void)state;
    for (int precision = PRECISION_INT8; precision <= PRECISION_INT4; precision++) {
        struct synth_options o = small();
        o.precision = (enum precision)precision;
        parallel_set_threads(1);
        char *one = write_or_fail(&o, NULL);
        for (int threads = 2; threads <= 8; threads += 3) {
            parallel_set_threads(threads);
            char *more = write_or_fail(&o, NULL);
            assert_same_folders(one, more);
            temporary_remove(&more);
        }
        parallel_set_threads(1);
        temporary_remove(&one);
    }
}

/* Figures of a benchmark belong to a pack that anybody can make again: a change of its bytes has to be meant. */
static void the_same_seed_is_the_same_pack_on_any_machine(void **state)
{
    (void)state;
    char id[33], other[33];
    struct synth_options o = small();
    char *dir = write_or_fail(&o, id);
    temporary_remove(&dir);
    assert_string_equal(id, "7c904651e69a61f1e1000fc4c2c225a3");
    o.seed = 6;
    dir = write_or_fail(&o, other);
    temporary_remove(&dir);
    assert_string_not_equal(id, other);
    o = small();
    o.shape.skew = 0.5;
    dir = write_or_fail(&o, other);
    temporary_remove(&dir);
    assert_string_not_equal(id, other);
}

struct moments {
    double n, sum, squares;
    float largest;
};

static void add_matrix(struct moments *m, const struct matrix *matrix)
{
    float *row = xcalloc((size_t)matrix->cols, sizeof *row);
    for (int r = 0; r < matrix->rows; r++) {
        matrix_row_to_f32(matrix, r, row);
        for (int c = 0; c < matrix->cols; c++) {
            m->n++;
            m->sum += row[c];
            m->squares += (double)row[c] * row[c];
            m->largest = fabsf(row[c]) > m->largest ? fabsf(row[c]) : m->largest;
        }
    }
    free(row);
}

/* Mean within 5 standard errors of 0, deviation within 5 % of what keeps a vector's size. */
static void assert_moments(const struct moments *m, double deviation)
{
    double mean = m->sum / m->n, found = sqrt(m->squares / m->n);
    assert_true(fabs(mean) < 5 * found / sqrt(m->n));
    assert_true(fabs(found / deviation - 1) < 0.05);
    assert_true(m->largest > 2 * deviation && m->largest < 6 * deviation);
}

static void weights_have_no_mean_and_the_size_that_keeps_activations(void **state)
{
    (void)state;
    struct synth_options o = small();
    char *dir = write_or_fail(&o, NULL);
    struct weights_source *source;
    struct error err = {0};
    assert_int_equal(weights_source_open(&source, dir, &err), STATUS_OK);
    struct weights_part part;
    struct moments all[3] = {{0}};
    assert_int_equal(weights_source_load(source, PART_EXPERTS, 1, &part, &err), STATUS_OK);
    for (int e = 0; e < part.n_experts; e++) {
        add_matrix(&all[0], &part.experts[e].gate);
        add_matrix(&all[1], &part.experts[e].up);
        add_matrix(&all[2], &part.experts[e].down);
    }
    for (int i = 0; i < 3; i++)
        assert_moments(&all[i], 1 / sqrt(i == 2 ? o.shape.moe_intermediate_size : o.shape.hidden_size));
    weights_part_release(&part);
    assert_int_equal(weights_source_load(source, PART_DENSE, 1, &part, &err), STATUS_OK);
    static const char *const names[] = {"q_a_proj", "kv_b_keys", "kv_b_values", "router", "shared.down_proj"};
    const int inputs[] = {o.shape.hidden_size, o.shape.kv_lora_rank, o.shape.kv_lora_rank, o.shape.hidden_size,
                          o.shape.moe_intermediate_size};
    for (int i = 0; i < 5; i++) {
        struct moments m = {0};
        add_matrix(&m, weights_part_matrix(&part, names[i]));
        assert_moments(&m, 1 / sqrt(inputs[i]));
    }
    weights_part_release(&part);
    weights_source_close(&source);
    temporary_remove(&dir);
}

/* Padding elements are value 0, padding groups have scale 0, -8 never occurs. */
static void assert_int4_rows(const struct matrix *m)
{
    int n = blocks_of(m->cols) * BLOCK_ELEMENTS;
    for (int r = 0; r < m->rows; r++) {
        const uint8_t *row = (const uint8_t *)m->data + (size_t)r * format_row_bytes(m->format, m->cols);
        const uint16_t *scales = (const uint16_t *)((const uint8_t *)m->scales + (size_t)r * format_scale_row_bytes(m->format, m->cols));
        for (int i = 0; i < n; i++) {
            int nibble = row[i / 2] >> 4 * (i % 2) & 15;
            assert_int_not_equal(nibble, 0);
            if (i >= m->cols)
                assert_int_equal(nibble, 8);
        }
        for (int g = 0; g < n / GROUP_ELEMENTS; g++)
            assert_int_equal(scales[g] == 0, g * GROUP_ELEMENTS >= m->cols);
    }
}

static void assert_int8_rows(const struct matrix *m)
{
    int n = blocks_of(m->cols) * BLOCK_ELEMENTS;
    for (int r = 0; r < m->rows; r++) {
        const int8_t *row = (const int8_t *)m->data + (size_t)r * format_row_bytes(m->format, m->cols);
        const float *scales = (const float *)((const uint8_t *)m->scales + (size_t)r * format_scale_row_bytes(m->format, m->cols));
        for (int i = 0; i < n; i++) {
            int value = row[i / BLOCK_ELEMENTS * BLOCK_ELEMENTS + i % 2 * GROUP_ELEMENTS + i % BLOCK_ELEMENTS / 2];
            assert_int_not_equal(value, -128);
            if (i >= m->cols)
                assert_int_equal(value, 0);
        }
        for (int g = 0; g < n / GROUP_ELEMENTS; g++)
            assert_int_equal(scales[g] == 0, g * GROUP_ELEMENTS >= m->cols);
    }
}

static void padding_is_stored_as_the_format_says(void **state)
{
    (void)state;
    for (int precision = PRECISION_INT8; precision <= PRECISION_INT4; precision++) {
        struct synth_options o = small();
        o.precision = (enum precision)precision;
        char *dir = write_or_fail(&o, NULL);
        struct weights_source *source;
        struct weights_part part;
        struct error err = {0};
        assert_int_equal(weights_source_open(&source, dir, &err), STATUS_OK);
        assert_int_equal(weights_source_load(source, PART_EXPERTS, 3, &part, &err), STATUS_OK);
        void (*check)(const struct matrix *) = precision == PRECISION_INT4 ? assert_int4_rows : assert_int8_rows;
        check(&part.experts[11].gate);
        check(&part.experts[11].down);
        weights_part_release(&part);
        assert_int_equal(weights_source_load(source, PART_DENSE, 3, &part, &err), STATUS_OK);
        assert_int8_rows(weights_part_matrix(&part, "kv_b_keys"));
        assert_int8_rows(weights_part_matrix(&part, "q_a_proj"));
        weights_part_release(&part);
        weights_source_close(&source);
        temporary_remove(&dir);
    }
}

/* --- routing --- */

enum { POSITIONS = 1500, TOP_K = 8, EXPERTS = 64, LAYER = 3 };

struct trace {
    int n, chosen[POSITIONS][TOP_K];
};

static void on_routing(void *ctx, int layer, const struct row *row, const int *experts, const float *weights, int n)
{
    (void)row, (void)weights;
    struct trace *trace = ctx;
    if (layer == LAYER && n == TOP_K && trace->n < POSITIONS)
        memcpy(trace->chosen[trace->n++], experts, sizeof trace->chosen[0]);
}

/* Share of uses that a least-recently-used cache of n_slots experts would answer. */
static double hit_rate(const struct trace *trace, int n_slots)
{
    int slots[EXPERTS], used = 0, hits = 0; /* most recent first */
    for (int i = 0; i < trace->n * TOP_K; i++) {
        int expert = trace->chosen[i / TOP_K][i % TOP_K], at = 0;
        while (at < used && slots[at] != expert)
            at++;
        hits += at < used;
        if (at == used)
            used = at = used < n_slots ? used + 1 : used, at--;
        memmove(slots + 1, slots, (size_t)at * sizeof *slots);
        slots[0] = expert;
    }
    return (double)hits / (trace->n * TOP_K);
}

/* Random tokens through a model with 64 experts of which a token uses 8; every hidden value must be finite. */
static void trace_of(struct trace *trace, double skew)
{
    struct synth_options o = {.shape = *synth_shape_find("kindling"), .precision = PRECISION_INT4, .seed = 1};
    o.shape.n_layers = LAYER + 1;
    o.shape.n_dense_layers = 1;
    o.shape.n_mtp_layers = 0;
    o.shape.n_experts = EXPERTS;
    o.shape.top_k = TOP_K;
    o.shape.skew = skew;
    char *dir = write_or_fail(&o, NULL);
    *trace = (struct trace){0};
    struct layer_observer observer = {.ctx = trace, .on_routing = on_routing};
    struct model *model =
        open_or_fail(dir, &(struct model_options){.isa = "auto", .n_threads = 2, .max_positions = POSITIONS, .observer = &observer});
    int *tokens = xcalloc(POSITIONS, sizeof *tokens);
    float *hidden = xcalloc((size_t)POSITIONS * (size_t)o.shape.hidden_size, sizeof *hidden);
    uint32_t random = 12345;
    for (int i = 0; i < POSITIONS; i++)
        tokens[i] = (int)((random = random * 1664525 + 1013904223) >> 8) % 3000;
    struct sequence_state sequence = {0};
    struct error err = {0};
    assert_int_equal(model_sequence_init(model, &sequence, POSITIONS, &err), STATUS_OK);
    struct model_input input = {.sequence = &sequence, .tokens = tokens, .n = POSITIONS, .hidden = hidden};
    if (model_forward(model, &input, 1, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < POSITIONS * o.shape.hidden_size; i++)
        assert_true(isfinite(hidden[i]) && fabsf(hidden[i]) < 20);
    assert_int_equal(trace->n, POSITIONS);
    sequence_state_release(&sequence);
    model_close(&model);
    free(hidden);
    free(tokens);
    temporary_remove(&dir);
}

static void tokens_choose_differently_and_skew_decides_how_much(void **state)
{
    (void)state;
    static struct trace even, skewed;
    trace_of(&even, 0);
    trace_of(&skewed, 0.12);
    for (int slots = 8; slots <= 32; slots *= 2)
        printf("least recently used, %d of %d slots: %.1f %% without skew, %.1f %% with 0.12\n", slots, EXPERTS,
               100 * hit_rate(&even, slots), 100 * hit_rate(&skewed, slots));
    /* without skew a cache holds little more than its share of the experts; were the tokens alike, it would hit nearly always */
    assert_true(hit_rate(&even, 16) > 0.15 && hit_rate(&even, 16) < 0.35);
    assert_true(hit_rate(&skewed, 16) > 0.35 && hit_rate(&skewed, 16) < 0.55);
    assert_true(hit_rate(&skewed, 32) > 0.65 && hit_rate(&skewed, 32) < 0.85);
}

/* --- stopping --- */

static volatile sig_atomic_t stop;
static int reports_left;

static void count_down(void *ctx, const struct synth_progress *progress)
{
    (void)ctx, (void)progress;
    if (--reports_left <= 0)
        __atomic_store_n(&stop, 1, __ATOMIC_RELAXED); /* other threads look at it */
}

static void assert_gone(const char *dir)
{
    assert_int_equal(access(dir, F_OK), -1);
}

static void stopped_at_any_moment_it_leaves_nothing(void **state)
{
    (void)state;
    char *parent = temporary_folder(), *dir = xasprintf("%s/pack", parent);
    struct synth_options o = small();
    o.report = count_down;
    o.stop = &stop;
    parallel_set_threads(3);
    int n_stopped = 0;
    for (int after = 1;; after++) {
        struct synth_result result;
        struct error err = {0};
        stop = 0;
        reports_left = after;
        enum status status = synth_pack(dir, &o, &result, &err);
        if (!status)
            break; /* it ended before the flag was looked at */
        n_stopped++;
        assert_int_equal(status, STATUS_CANCELLED);
        assert_gone(dir);
    }
    parallel_set_threads(1);
    assert_true(n_stopped > 20);
    free(dir);
    temporary_remove(&parent);
}

/* The limit on file sizes stands for a disk that fills up while we write: here after some parts are complete. */
static void a_write_that_fails_leaves_nothing_and_names_the_file(void **state)
{
    (void)state;
    char *parent = temporary_folder(), *dir = xasprintf("%s/pack", parent);
    struct synth_options o = small();
    o.shape.n_experts = 64;
    struct rlimit before, limit;
    struct synth_result result;
    struct error err = {0};
    getrlimit(RLIMIT_FSIZE, &before);
    limit = (struct rlimit){1500000, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    enum status status = synth_pack(dir, &o, &result, &err);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, STATUS_IO);
    assert_non_null(strstr(err.text, "experts-01"));
    assert_non_null(strstr(err.text, "File too large"));
    assert_gone(dir);
    free(dir);
    temporary_remove(&parent);
}

static void a_folder_that_holds_something_is_left_alone(void **state)
{
    (void)state;
    struct synth_options o = small();
    char *dir = write_or_fail(&o, NULL), *copy = temporary_copy(dir);
    struct synth_result result;
    struct error err = {0};
    o.seed++;
    assert_int_equal(synth_pack(dir, &o, &result, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "not an empty folder"));
    assert_same_folders(dir, copy);
    temporary_remove(&copy);
    temporary_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_threads_gives_the_same_bytes),
        cmocka_unit_test(the_same_seed_is_the_same_pack_on_any_machine),
        cmocka_unit_test(weights_have_no_mean_and_the_size_that_keeps_activations),
        cmocka_unit_test(padding_is_stored_as_the_format_says),
        cmocka_unit_test(tokens_choose_differently_and_skew_decides_how_much),
        cmocka_unit_test(stopped_at_any_moment_it_leaves_nothing),
        cmocka_unit_test(a_write_that_fails_leaves_nothing_and_names_the_file),
        cmocka_unit_test(a_folder_that_holds_something_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
