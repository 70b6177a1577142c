/* Goal: a number is one process for ever, no key can take another's place, and a node that restarts again and again pushes out only itself.
 * Method: one speaker at a time, with a clock of our own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "proto/peer_table.h"

static struct peer_table table;

static int set_up(void **state)
{
    (void)state;
    peer_table_clear(&table);
    return 0;
}

/* Process `id` of a node with this key speaks. Returns its number; 0: refused. */
static int speak(int id, const char *key, uint64_t now_ns)
{
    struct node_peer *peer = peer_table_of(&table, &id, sizeof id, key, now_ns);
    return peer ? peer->number : 0;
}

static int is_there(int number)
{
    return peer_table_by_number(&table, number) != NULL;
}

static void a_number_belongs_to_one_process(void **state)
{
    (void)state;
    int a = speak(1, "A", 1), b = speak(2, "B", 2);
    assert_true(a >= PEER_FIRST_NODE && b >= PEER_FIRST_NODE && a != b);
    assert_int_equal(speak(1, "A", 3), a);
    assert_int_equal(speak(2, "B", 4), b);
    assert_int_equal(speak(1, "B", 5), 0); /* the id of another key */
    assert_int_equal(speak(1, "", 5), 0);
    assert_true(is_there(a) && is_there(b));
    for (int number = -1; number < PEER_FIRST_NODE; number++)
        assert_false(is_there(number));
    assert_false(is_there(a + PEERS_MAX)); /* the same place, another turn */
}

static void restarts_of_one_key_push_out_only_its_own(void **state)
{
    (void)state;
    int other = speak(1, "B", 1), numbers[1000];
    for (int i = 0; i < 1000; i++) {
        numbers[i] = speak(100 + i, "A", 2 + (uint64_t)i);
        for (int k = 0; k <= i; k++)
            assert_int_equal(is_there(numbers[k]), k > i - PEERS_PER_KEY);
        assert_true(is_there(other));
    }
}

/* Without keys, or with many of them, the longest silent goes. */
static void a_full_table_forgets_who_was_silent_longest(void **state)
{
    (void)state;
    int numbers[PEERS_MAX];
    for (int i = 0; i < PEERS_MAX; i++)
        numbers[i] = speak(i, "", 10 + (uint64_t)i);
    speak(0, "", 1000); /* speaks again: now 1 is the oldest */
    int late = speak(500, "", 1001);
    assert_true(is_there(numbers[0]) && !is_there(numbers[1]) && is_there(numbers[2]) && is_there(late));
    assert_true(late != numbers[1] && late % PEERS_MAX == numbers[1] % PEERS_MAX);
    char key[2] = "A";
    for (int i = 0; i < 4 * PEERS_MAX; i++, key[0] = (char)('A' + i % 26))
        assert_true(is_there(speak(1000 + i, key, 2000 + (uint64_t)i)));
}

/* What waited for the one before is never sent to the one after. */
static void a_new_peer_starts_with_an_empty_queue(void **state)
{
    (void)state;
    for (int i = 0; i < PEERS_PER_KEY; i++) {
        int number = speak(i, "A", 1 + (uint64_t)i);
        assert_true(send_queue_put(&peer_table_by_number(&table, number)->queue, (const uint8_t *)"x", 1, NULL, 0));
    }
    int number = speak(100, "A", 100);
    assert_int_equal(peer_table_by_number(&table, number)->queue.n, 0);
    assert_int_not_equal(speak(0, "A", 101), number); /* the oldest is gone; it comes back as a new one */
}

static int tear_down(void **state)
{
    (void)state;
    peer_table_clear(&table);
    return 0;
}

#define PEERS(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        PEERS(a_number_belongs_to_one_process),
        PEERS(restarts_of_one_key_push_out_only_its_own),
        PEERS(a_full_table_forgets_who_was_silent_longest),
        PEERS(a_new_peer_starts_with_an_empty_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
