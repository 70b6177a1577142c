/* Goal: what options say of one drive is worth for all of them: no reader is asked for more reads than it has, and every emulated drive
 * has a rate of its own. Method: all numbers of stores. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "node/block_reader.h"
#include "node/expert_options.h"
#include "node/expert_store.h"

static void reads_of_all_stores_fit_into_a_reader(void **state)
{
    (void)state;
    for (int n_stores = 1; n_stores <= BLOCK_STORES_MAX; n_stores++)
        for (int asked = 0; asked <= 32; asked++) {
            struct expert_options o = {.read_depth = asked};
            int depth = expert_read_depth(&o, n_stores), wanted = asked ? asked : EXPERT_READ_DEPTH;
            assert_true(depth >= 1 && depth <= wanted && depth * n_stores <= BLOCK_READS_MAX);
            assert_true(depth == wanted || (depth + 1) * n_stores > BLOCK_READS_MAX);
        }
}

static void every_store_has_an_emulated_drive_of_its_own(void **state)
{
    (void)state;
    struct expert_options o = {.emulate_disk = "2,80"};
    assert_true(expert_emulated_rate(&o) == 2e9);
    for (int n = 1; n <= BLOCK_STORES_MAX; n++) {
        o.store = &"a,b,c,d,e,f,g,h"[2 * (BLOCK_STORES_MAX - n)];
        assert_true(expert_emulated_rate(&o) == n * 2e9);
    }
    o.emulate_disk = NULL;
    assert_true(expert_emulated_rate(&o) == 0);
    o.emulate_disk = "fast";
    assert_true(expert_emulated_rate(&o) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_of_all_stores_fit_into_a_reader),
        cmocka_unit_test(every_store_has_an_emulated_drive_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
