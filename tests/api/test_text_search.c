/* Stop strings: whatever the pieces, the text that comes out and the end that is found are those of a naive search over the whole text, and
 * nothing is held back that cannot be the beginning of a stop string. Random texts and strings over two letters, where borders overlap
 * most. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/text_search.h"

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void fill(uint64_t *state, char *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (char)('a' + next(state) % 2);
    out[n] = 0;
}

/* Where the first string ends (SIZE_MAX: nowhere) and the length of the longest that ends there. */
static size_t naive(const char *text, size_t n, const char *const *strings, size_t n_strings, size_t *length)
{
    for (size_t end = 1; end <= n; end++) {
        *length = 0;
        for (size_t k = 0; k < n_strings; k++) {
            size_t m = strlen(strings[k]);
            if (m <= end && m > *length && !memcmp(text + end - m, strings[k], m))
                *length = m;
        }
        if (*length)
            return end;
    }
    return SIZE_MAX;
}

/* The longest end of text that begins a string. */
static size_t longest_beginning(const char *text, size_t n, const char *const *strings, size_t n_strings)
{
    size_t longest = 0;
    for (size_t k = 0; k < n_strings; k++)
        for (size_t m = 1; m < strlen(strings[k]) && m <= n; m++)
            if (m > longest && !memcmp(text + n - m, strings[k], m))
                longest = m;
    return longest;
}

static void pieces_do_not_matter(void **state)
{
    (void)state;
    enum { CASES = 20000, TEXT_MAX = 40, STRINGS_MAX = 4, STRING_MAX = 8 };
    uint64_t seed = 1;
    for (int i = 0; i < CASES; i++) {
        char text[TEXT_MAX + 1], bytes[STRINGS_MAX][STRING_MAX + 1];
        const char *strings[STRINGS_MAX];
        size_t n = next(&seed) % (TEXT_MAX + 1), n_strings = 1 + next(&seed) % STRINGS_MAX, length = 0, rest = 0;
        fill(&seed, text, n);
        for (size_t k = 0; k < n_strings; k++) {
            fill(&seed, bytes[k], 1 + next(&seed) % STRING_MAX);
            strings[k] = bytes[k];
        }
        size_t end = naive(text, n, strings, n_strings, &length);
        struct text_search search;
        struct text out = {0};
        int found = 0;
        text_search_init(&search, strings, n_strings);
        for (size_t at = 0, piece; at < n && !found; at += piece) {
            piece = 1 + next(&seed) % 5;
            piece = piece < n - at ? piece : n - at;
            found = text_search_feed(&search, text + at, piece, &out, &rest);
            if (found)
                assert_int_equal(at + piece - rest, end);
            else
                assert_int_equal(out.length, at + piece - longest_beginning(text, at + piece, strings, n_strings));
        }
        assert_int_equal(found, end != SIZE_MAX);
        if (!found)
            text_search_flush(&search, &out);
        size_t expected = found ? end - length : n;
        assert_int_equal(out.length, expected);
        assert_memory_equal(out.bytes ? out.bytes : "", text, expected);
        text_free(&out);
        text_search_release(&search);
    }
}

static void no_strings_hold_nothing_back(void **state)
{
    (void)state;
    struct text_search search;
    struct text out = {0};
    size_t rest;
    text_search_init(&search, NULL, 0);
    assert_false(text_search_feed(&search, "abc", 3, &out, &rest));
    assert_string_equal(out.bytes, "abc");
    text_free(&out);
    text_search_release(&search);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_do_not_matter),
        cmocka_unit_test(no_strings_hold_nothing_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
