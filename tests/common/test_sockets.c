/* Goal: an address says where to listen, in IPv4 and IPv6, and what is no address gets a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/sockets.h"

static void addresses_of_both_kinds_are_listened_at(void **state)
{
    (void)state;
    static const struct {
        const char *address;
        int is_loopback;
    } cases[] = {{"127.0.0.1:0", 1}, {"localhost:0", 1}, {"127.8.8.8:0", 1}, {"0.0.0.0:0", 0}, {"[::1]:0", 1}, {"[::]:0", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int fd;
        struct error err = {0};
        if (socket_listen(&fd, cases[i].address, 1, &err)) { /* a machine may have no IPv6 */
            assert_true(*cases[i].address == '[' && err.status == STATUS_IO);
            printf("%s: passed over\n", err.text);
            continue;
        }
        assert_true(socket_port(fd) > 0);
        assert_int_equal(socket_is_loopback(fd), cases[i].is_loopback);
        char again[32];
        int other;
        snprintf(again, sizeof again, "%.*s:%d", (int)(strrchr(cases[i].address, ':') - cases[i].address), cases[i].address,
                 socket_port(fd));
        assert_int_equal(socket_listen(&other, again, 1, &err), STATUS_IO);
        assert_int_equal(other, -1);
        assert_non_null(strstr(err.text, again));
        close(fd);
    }
}

static void what_is_no_address_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      ":",
                                      "7603",
                                      ":7603",
                                      "127.0.0.1",
                                      "127.0.0.1:",
                                      "127.0.0.1:x",
                                      "127.0.0.1:70000",
                                      "127.0.0.1:-1",
                                      "127.0.0.1:1x",
                                      "my host:7603",
                                      "[::1:7603",
                                      "::1]:7603",
                                      "[]:7603",
                                      "::1:7603",
                                      "desk.example:7603",
                                      "on"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int fd;
        struct error err = {0};
        assert_int_equal(socket_listen(&fd, bad[i], 1, &err), STATUS_INVALID);
        assert_int_equal(fd, -1);
        assert_non_null(strstr(err.text, "'"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_of_both_kinds_are_listened_at),
        cmocka_unit_test(what_is_no_address_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
