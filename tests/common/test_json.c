/* Goal: whatever a sentence quotes, it can be put into JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/json.h"

static void a_sentence_is_always_a_string(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", ""}, {"plain", "plain"}, {"5 \xe2\x82\xac", "5 \xe2\x82\xac"}, {"cut \xe2\x82", "cut ??"}, {"\xff whole \xe2\x82\xac", "? whole ???"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *value = json_sentence(cases[i][0]);
        assert_non_null(value);
        assert_string_equal(json_string_value(value), cases[i][1]);
        json_decref(value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_sentence_is_always_a_string)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
