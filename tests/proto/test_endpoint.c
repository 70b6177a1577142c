/* Goal: neighbours are told an address that they can connect to, or a person is told what to say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "proto/endpoint.h"

static void a_host_gets_the_port_that_is_bound(void **state)
{
    (void)state;
    static const struct {
        const char *bound, *host, *want;
    } cases[] = {{"tcp://127.0.0.1:7602", NULL, "tcp://127.0.0.1:7602"},          {"tcp://[::1]:7602", NULL, "tcp://[::1]:7602"},
                 {"tcp://0.0.0.0:7602", "10.1.2.3", "tcp://10.1.2.3:7602"},       {"tcp://0.0.0.0:1", "desk.home", "tcp://desk.home:1"},
                 {"tcp://[::]:7602", "fd00::7", "tcp://[fd00::7]:7602"},          {"tcp://0.0.0.0:9", "[fd00::7]", "tcp://[fd00::7]:9"},
                 {"tcp://[::]:7602", "fe80::7%eth0", "tcp://[fe80::7%eth0]:7602"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *endpoint;
        struct error err;
        assert_int_equal(endpoint_advertised(&endpoint, cases[i].bound, cases[i].host, &err), STATUS_OK);
        assert_string_equal(endpoint, cases[i].want);
        free(endpoint);
    }
}

static void what_nobody_can_connect_to_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bound, *host, *words;
    } cases[] = {{"tcp://0.0.0.0:7602", NULL, "--advertise HOST"},
                 {"tcp://[::]:7602", NULL, "--advertise HOST"},
                 {"tcp://127.0.0.1:1", "0.0.0.0", "--advertise HOST"},
                 {"tcp://127.0.0.1:1", "::", "--advertise HOST"},
                 {"tcp://0.0.0.0:7602", "my desk", "'my desk' is no host"},
                 {"tcp://0.0.0.0:7602", "", "'' is no host"},
                 {"tcp://0.0.0.0:7602", "desk:7602", "'desk:7602' is no host"},
                 {"tcp://0.0.0.0:7602", "[fd00::7", "is no host"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *endpoint;
        struct error err;
        assert_int_equal(endpoint_advertised(&endpoint, cases[i].bound, cases[i].host, &err), STATUS_INVALID);
        assert_null(endpoint);
        assert_non_null(strstr(err.text, cases[i].words));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_gets_the_port_that_is_bound),
        cmocka_unit_test(what_nobody_can_connect_to_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
