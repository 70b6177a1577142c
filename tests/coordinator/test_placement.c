/* Goal: layers are cut only where a layer runs its own indexer, the split by bytes is the best one, and layers given by hand are checked by name.
 * Method: GLM-5.2's schedule; every split compared with trying all of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "coordinator/placement.h"

/* Full indexers at 0, 1, 2, 6, 10, ...; one MTP layer. */
static struct model_config glm52(int n_layers)
{
    struct model_config c = {.n_layers = n_layers, .n_mtp_layers = 1};
    for (int i = 0; i < n_layers; i++)
        c.has_indexer[i] = i < 2 || (i - 2) % 4 == 0;
    c.has_indexer[n_layers] = 1;
    return c;
}

static uint64_t bytes_of(const struct model_config *c, const uint64_t *bytes, int begin, int end)
{
    uint64_t sum = end == c->n_layers ? bytes[c->n_layers] : 0;
    for (int i = begin; i < end; i++)
        sum += bytes[i];
    return sum;
}

static uint64_t best_by_trying(const struct model_config *c, const uint64_t *bytes, int begin, int n)
{
    if (n == 1)
        return bytes_of(c, bytes, begin, c->n_layers);
    uint64_t best = UINT64_MAX;
    for (int cut = begin + 1; cut < c->n_layers; cut++) {
        if (!placement_is_legal_cut(c, cut))
            continue;
        uint64_t first = bytes_of(c, bytes, begin, cut), rest = best_by_trying(c, bytes, cut, n - 1), worst = first > rest ? first : rest;
        best = worst < best ? worst : best;
    }
    return best;
}

static void the_split_has_the_smallest_largest_range(void **state)
{
    (void)state;
    uint32_t random = 5;
    for (int round = 0; round < 300; round++) {
        struct model_config c = glm52(3 + round % 20);
        uint64_t bytes[LAYERS_MAX + 1];
        for (int i = 0; i <= c.n_layers; i++)
            bytes[i] = (random = random * 1664525u + 1013904223u) >> 20;
        for (int n = 1; n <= 4; n++) {
            struct layer_range ranges[4];
            struct error err;
            uint64_t best = best_by_trying(&c, bytes, 0, n), worst = 0;
            enum status status = placement_split(&c, bytes, n, ranges, &err);
            assert_int_equal(status != STATUS_OK, best == UINT64_MAX);
            for (int i = 0; i < n && !status; i++) {
                uint64_t own = bytes_of(&c, bytes, ranges[i].begin, ranges[i].end);
                worst = own > worst ? own : worst;
                assert_int_equal(ranges[i].begin, i ? ranges[i - 1].end : 0);
                assert_true(i == 0 || placement_is_legal_cut(&c, ranges[i].begin));
            }
            if (!status) {
                assert_int_equal(ranges[n - 1].end, c.n_layers);
                assert_true(worst == best);
            }
        }
    }
}

static void layers_by_hand_are_read_or_refused_by_name(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"a:0-3,b:3-10", "layer 3"},   {"a:0-3,b:3-10", "1, 2, 6"},  {"a:0-2,b:6-10", "'b' has 6-10"}, {"a:0-2", "end at 10"},   {"a:0-2,a:2-10", "twice"},
        {"a:1-10", "begin at 0"},      {"a:0-11", "'a' has 0-11"},   {"a", "'a' is not"},              {":0-10", "':0-10'"},     {"a:0-10x", "'a:0-10x'"},
        {"", "end at 10"},             {"a:2-2,b:2-10", "'a'"},      {"a:0-2,b:2-6,c:6-10,d:10-10", "more than 3"},
    };
    struct model_config c = glm52(10);
    const char *names[3];
    struct layer_range ranges[3];
    struct error err;
    char *storage;
    int n;
    assert_int_equal(placement_parse(&c, "desktop:0-2, laptop:2-6,old.one:6-10", 3, names, ranges, &n, &storage, &err), STATUS_OK);
    assert_true(n == 3 && !strcmp(names[0], "desktop") && !strcmp(names[2], "old.one") && ranges[1].begin == 2 && ranges[1].end == 6);
    free(storage);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err.text[0] = 0;
        if (!placement_parse(&c, bad[i][0], 3, names, ranges, &n, &storage, &err))
            fail_msg("'%s' was accepted", bad[i][0]);
        if (!strstr(err.text, bad[i][1]))
            fail_msg("'%s': the sentence lacks %s: %s", bad[i][0], bad[i][1], err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_split_has_the_smallest_largest_range),
        cmocka_unit_test(layers_by_hand_are_read_or_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
