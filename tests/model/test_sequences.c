/* Goal: sequences share, copy and give back cache blocks rightly; a value that is not finite fails its sequence and no other.
 * Method: the real caches with tiny-share's sizes; counts of free blocks; contents written through one sequence and read through another. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/lib/golden.h"
#include "tests/lib/packs.h"

static struct model_config config;
static struct position_cache cache;

enum { BLOCKS = 10 };

static void mark(struct sequence_state *s, int begin, int end, float value)
{
    struct error err;
    assert_int_equal(sequence_state_prepare(s, begin, end, &err), STATUS_OK);
    for (int p = begin; p < end; p++)
        for (int layer = 0; layer < config_layers_with_mtp(&config); layer++) {
            for (int i = 0; i < cache.latent_width; i++)
                sequence_state_latent(s, layer, p)[i] = value + (float)p;
            for (int i = 0; i < cache.index_dim && config.has_indexer[layer]; i++)
                sequence_state_index_key(s, layer, p)[i] = -value - (float)p;
        }
    s->length = end > s->length ? end : s->length;
}

static void expect(const struct sequence_state *s, int begin, int end, float value)
{
    for (int p = begin; p < end; p++)
        for (int layer = 0; layer < config_layers_with_mtp(&config); layer++) {
            for (int i = 0; i < cache.latent_width; i++)
                assert_true(sequence_state_latent(s, layer, p)[i] == value + (float)p);
            for (int i = 0; i < cache.index_dim && config.has_indexer[layer]; i++)
                assert_true(sequence_state_index_key(s, layer, p)[i] == -value - (float)p);
        }
}

static void promised_positions_are_taken_at_once_or_refused(void **state)
{
    (void)state;
    struct sequence_state a, b;
    struct error err;
    assert_int_equal(sequence_state_init(&a, &cache, 64 * 7 + 1, &err), STATUS_OK);
    assert_int_equal(cache.n_free, BLOCKS - 8);
    assert_int_equal(sequence_state_init(&b, &cache, 64 * 2 + 1, &err), STATUS_BUSY);
    assert_int_equal(cache.n_free, BLOCKS - 8); /* nothing half taken */
    assert_int_equal(sequence_state_init(&b, &cache, 64 * 2, &err), STATUS_OK);
    assert_int_equal(sequence_state_prepare(&b, 0, 129, &err), STATUS_INVALID);
    sequence_state_release(&a);
    sequence_state_release(&b);
    assert_int_equal(cache.n_free, BLOCKS);
}

static void forked_sequences_share_until_one_writes(void **state)
{
    (void)state;
    struct sequence_state a, b;
    struct error err;
    assert_int_equal(sequence_state_init(&a, &cache, 200, &err), STATUS_OK);
    mark(&a, 0, 150, 1000);
    assert_int_equal(sequence_state_fork(&b, &a, 100, 200, &err), STATUS_OK);
    assert_int_equal(cache.n_free, BLOCKS - 4 - 2); /* two blocks shared, two of b's own */
    expect(&b, 0, 100, 1000);
    mark(&b, 100, 140, 2000); /* copies the block of 64..127 */
    assert_int_equal(cache.n_free, BLOCKS - 4 - 3);
    expect(&a, 0, 150, 1000);
    expect(&b, 0, 100, 1000);
    expect(&b, 100, 140, 2000);
    mark(&a, 10, 20, 3000); /* copies the block of 0..63, which b still reads */
    expect(&b, 0, 100, 1000);
    expect(&a, 10, 20, 3000);
    sequence_state_release(&a);
    expect(&b, 0, 100, 1000);
    sequence_state_release(&b);
    assert_int_equal(cache.n_free, BLOCKS);
}

static void lowering_a_length_lowers_the_true_mtp_rows(void **state)
{
    (void)state;
    struct sequence_state a;
    struct error err;
    assert_int_equal(sequence_state_init(&a, &cache, 100, &err), STATUS_OK);
    a.length = 50;
    a.mtp_length = 49;
    sequence_state_truncate(&a, 60);
    assert_true(a.length == 50 && a.mtp_length == 49);
    sequence_state_truncate(&a, 30); /* M_29 was made from the token at 30, which is gone */
    assert_true(a.length == 30 && a.mtp_length == 29);
    sequence_state_truncate(&a, 0);
    assert_true(a.length == 0 && a.mtp_length == 0);
    sequence_state_release(&a);
}

static void a_value_that_is_not_finite_names_layer_and_position(void **state)
{
    (void)state;
    char path[512];
    char *dir = temporary_copy(golden_path(path, "tiny-share", "checkpoint"));
    struct model *m = open_or_fail(dir, &(struct model_options){0});
    struct sequence_state good, bad;
    struct error err;
    int vocab = m->config->vocab_size;
    float *logits = calloc((size_t)vocab * 6, sizeof *logits), *again = logits + 3 * vocab;
    assert_int_equal(model_sequence_init(m, &good, 8, &err), STATUS_OK);
    assert_int_equal(model_sequence_init(m, &bad, 8, &err), STATUS_OK);
    assert_int_equal(m->weights.embedding.table.format, FORMAT_F32);
    assert_int_equal(model_forward(m, &(struct model_input){&good, (const int[]){1, 2, 3}, 3, logits, NULL}, 1, &err), STATUS_OK);
    ((float *)m->weights.embedding.table.data)[9 * m->config->hidden_size] = INFINITY; /* token 9 */
    assert_int_equal(model_forward(m, &(struct model_input){&bad, (const int[]){1, 9}, 2, NULL, NULL}, 1, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.text, "layer 0"));
    assert_non_null(strstr(err.text, "position 1"));
    assert_int_equal(bad.length, 0);
    sequence_state_truncate(&good, 0);
    assert_int_equal(model_forward(m, &(struct model_input){&good, (const int[]){1, 2, 3}, 3, again, NULL}, 1, &err), STATUS_OK);
    assert_memory_equal(logits, again, 3 * (size_t)vocab * sizeof *logits);
    free(logits);
    sequence_state_release(&good);
    sequence_state_release(&bad);
    model_close(&m);
    temporary_remove(&dir);
}

/* Goal: a NaN that appears between two matrices of an int8 layer is not lost when the row is quantised for the second. Method: the scale of one
 * row of layer 1's up projection (a dense MLP or the shared expert) becomes NaN, so one input of its down projection is. */
static void a_nan_inside_a_quantised_layer_names_layer_and_position(void **state)
{
    static const char *const isas[] = {"scalar", "avx2", "avx512"};
    (void)state;
    char path[512];
    char *dir = make_pack(checkpoint_path(path, "tiny-share"), PRECISION_INT8, NULL);
    struct error err;
    struct kernels kernels;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (kernels_select(&kernels, isas[i], &err))
            continue; /* not on this CPU */
        struct model *m = open_or_fail(dir, &(struct model_options){.isa = isas[i]});
        struct sequence_state s;
        assert_int_equal(model_sequence_init(m, &s, 8, &err), STATUS_OK);
        const struct matrix *up = &m->weights.layers[1].mlp.up;
        assert_true(up->rows > 0 && up->format == FORMAT_INT8);
        *(float *)(uintptr_t)up->scales = NAN;
        assert_int_equal(model_forward(m, &(struct model_input){&s, (const int[]){3}, 1, NULL, NULL}, 1, &err), STATUS_CORRUPT);
        assert_non_null(strstr(err.text, "layer 1, position 0"));
        assert_non_null(strstr(err.text, "not finite"));
        assert_int_equal(s.length, 0);
        sequence_state_release(&s);
        model_close(&m);
    }
    temporary_remove(&dir);
}

/* 40 positions are less than a block: the room that the block has beyond them is nobody's. */
static void a_sequence_ends_where_it_was_opened_to_end(void **state)
{
    (void)state;
    char path[512];
    char *dir = temporary_copy(golden_path(path, "tiny-share", "checkpoint"));
    struct model *m = open_or_fail(dir, &(struct model_options){.max_positions = 40});
    struct sequence_state s;
    struct error err;
    int tokens[41] = {0};
    assert_int_equal(model_sequence_init(m, &s, 40, &err), STATUS_OK);
    assert_int_equal(model_forward(m, &(struct model_input){&s, tokens, 41, NULL, NULL}, 1, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "position 40"));
    assert_int_equal(s.length, 0);
    assert_int_equal(model_forward(m, &(struct model_input){&s, tokens, 40, NULL, NULL}, 1, &err), STATUS_OK);
    assert_int_equal(model_forward(m, &(struct model_input){&s, tokens, 1, NULL, NULL}, 1, &err), STATUS_INVALID);
    assert_int_equal(s.length, 40);
    sequence_state_release(&s);
    model_close(&m);
    temporary_remove(&dir);
}

static void too_much_memory_is_refused_with_its_accounts(void **state)
{
    (void)state;
    char path[512];
    char *dir = temporary_copy(golden_path(path, "tiny-share", "checkpoint"));
    struct model *m;
    struct error err;
    assert_int_equal(model_open(&m, dir, &(struct model_options){.memory_limit = 1 << 20}, &err), STATUS_NO_MEMORY);
    assert_null(m);
    assert_non_null(strstr(err.text, "position caches"));
    assert_non_null(strstr(err.text, "--context"));
    assert_non_null(strstr(err.text, "1.0 MiB allowed"));
    temporary_remove(&dir);
}

static int set_up(void **state)
{
    (void)state;
    char path[512];
    struct error err;
    return model_config_read(&config, golden_path(path, "tiny-share", "checkpoint"), &err) ||
           position_cache_init(&cache, &config, 0, config_layers_with_mtp(&config), BLOCKS, &err);
}

static int tear_down(void **state)
{
    (void)state;
    position_cache_release(&cache);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(promised_positions_are_taken_at_once_or_refused),
        cmocka_unit_test(forked_sequences_share_until_one_writes),
        cmocka_unit_test(lowering_a_length_lowers_the_true_mtp_rows),
        cmocka_unit_test(a_value_that_is_not_finite_names_layer_and_position),
        cmocka_unit_test(a_nan_inside_a_quantised_layer_names_layer_and_position),
        cmocka_unit_test(a_sequence_ends_where_it_was_opened_to_end),
        cmocka_unit_test(too_much_memory_is_refused_with_its_accounts),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
