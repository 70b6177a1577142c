/* Goal: processes that could give different bits never exchange rows, and the sentence tells a person both sides' values and the way out.
 * Method: one difference at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "proto/handshake.h"
#include "proto/limits.h"

static const struct numeric_class own = {3, "int8", "f32", "f32", "a2fb0000000000000000000000000000"};

static Hearth__NumericClass numeric;
static Hearth__Hello hello;

static void set_up(void)
{
    hearth__numeric_class__init(&numeric);
    numeric.contract = 3;
    numeric.activations = "int8";
    numeric.cache = numeric.wire = "f32";
    numeric.model_identity = "a2fb0000000000000000000000000000";
    hearth__hello__init(&hello);
    hello.protocol = PROTOCOL_VERSION;
    hello.node = "laptop";
    hello.version = "0.0.9";
    hello.numeric = &numeric;
    hello.n_layers = 78;
}

static void expect_refusal(uint32_t expected_code, const char *const words[])
{
    uint32_t code = 0;
    struct error err = {0};
    assert_int_equal(handshake_check(&hello, PROTOCOL_VERSION, &own, 78, &code, &err), STATUS_INVALID);
    assert_int_equal(code, expected_code);
    for (int i = 0; words[i]; i++)
        if (!strstr(err.text, words[i]))
            fail_msg("the sentence lacks '%s': %s", words[i], err.text);
    assert_true(strlen(err.text) <= TEXT_BYTES_MAX);
    set_up();
}
#define REFUSED(code, ...) expect_refusal(code, (const char *const[]){"node 'laptop'", __VA_ARGS__, NULL})

static void equals_are_welcome(void **state)
{
    (void)state;
    set_up();
    uint32_t code = 99;
    struct error err;
    assert_int_equal(handshake_check(&hello, PROTOCOL_VERSION, &own, 78, &code, &err), STATUS_OK);
    assert_int_equal(code, 0);
    hello.version = "another";
    assert_int_equal(handshake_check(&hello, PROTOCOL_VERSION, &own, 78, &code, &err), STATUS_OK); /* for people only */
}

static void every_difference_is_refused_with_both_values(void **state)
{
    (void)state;
    set_up();
    hello.protocol = 2;
    REFUSED(REFUSE_PROTOCOL, "protocol 2", "speaks 1", "0.0.9", HEARTH_VERSION, "same version");
    numeric.model_identity = "3aac0000000000000000000000000000";
    REFUSED(REFUSE_MODEL, "model 3aac0000000000000000000000000000", "a2fb0000000000000000000000000000", "hearth inspect");
    hello.n_layers = 46;
    REFUSED(REFUSE_MODEL, "46 layers", "78");
    numeric.contract = 4;
    REFUSED(REFUSE_NUMERIC, "version 4", "by 3", "same version");
    numeric.activations = "f32";
    REFUSED(REFUSE_NUMERIC, "activations in f32", "has int8", "--exact");
    numeric.cache = "bf16";
    REFUSED(REFUSE_NUMERIC, "caches in bf16", "has f32");
    numeric.wire = "f16";
    REFUSED(REFUSE_NUMERIC, "wire in f16", "has f32");
}

static void the_first_difference_counts(void **state)
{
    (void)state;
    set_up();
    hello.protocol = 9;
    numeric.contract = 9;
    numeric.model_identity = "3aac0000000000000000000000000000";
    REFUSED(REFUSE_PROTOCOL, "protocol 9"); /* what else it says may mean something else in its version */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_are_welcome),
        cmocka_unit_test(every_difference_is_refused_with_both_values),
        cmocka_unit_test(the_first_difference_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
