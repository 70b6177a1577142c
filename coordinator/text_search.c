#include "coordinator/text_search.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

static void pattern_init(struct text_pattern *p, const char *string)
{
    p->bytes = xstrdup(string);
    p->length = strlen(string);
    CHECK(p->length);
    p->border = xcalloc(p->length, sizeof *p->border);
    p->n_matched = 0;
    for (size_t i = 1, k = 0; i < p->length; i++) {
        while (k && p->bytes[i] != p->bytes[k])
            k = p->border[k - 1];
        k += p->bytes[i] == p->bytes[k];
        p->border[i] = k;
    }
}

/* 1 when the pattern ends at this byte. */
static int pattern_step(struct text_pattern *p, char byte)
{
    while (p->n_matched && byte != p->bytes[p->n_matched])
        p->n_matched = p->border[p->n_matched - 1];
    p->n_matched += byte == p->bytes[p->n_matched];
    return p->n_matched == p->length;
}

void text_search_init(struct text_search *search, const char *const *strings, size_t n)
{
    *search = (struct text_search){.patterns = n ? xcalloc(n, sizeof *search->patterns) : NULL, .n = n};
    for (size_t i = 0; i < n; i++)
        pattern_init(&search->patterns[i], strings[i]);
}

void text_search_release(struct text_search *search)
{
    for (size_t i = 0; i < search->n; i++) {
        free(search->patterns[i].bytes);
        free(search->patterns[i].border);
    }
    free(search->patterns);
    text_free(&search->held);
    *search = (struct text_search){0};
}

static void start_anew(struct text_search *search)
{
    for (size_t i = 0; i < search->n; i++)
        search->patterns[i].n_matched = 0;
    text_clear(&search->held);
}

/* Moves all but the last `keep` bytes to out. */
static void release_all_but(struct text_search *search, size_t keep, struct text *out)
{
    struct text *held = &search->held;
    size_t n = held->length - keep;
    if (!n)
        return;
    text_append(out, held->bytes, n);
    memmove(held->bytes, held->bytes + n, keep);
    held->length = keep;
    held->bytes[keep] = 0;
}

int text_search_feed(struct text_search *search, const char *bytes, size_t length, struct text *out, size_t *rest)
{
    size_t longest = 0;
    for (size_t i = 0; i < length; i++) {
        size_t found = 0;
        longest = 0;
        for (size_t k = 0; k < search->n; k++) {
            struct text_pattern *p = &search->patterns[k];
            if (pattern_step(p, bytes[i]) && p->length > found)
                found = p->length;
            if (p->n_matched > longest)
                longest = p->n_matched;
        }
        if (found) {
            text_append(&search->held, bytes, i + 1);
            release_all_but(search, found, out);
            start_anew(search);
            *rest = length - i - 1;
            return 1;
        }
    }
    if (length)
        text_append(&search->held, bytes, length);
    release_all_but(search, length ? longest : search->held.length, out);
    *rest = 0;
    return 0;
}

void text_search_flush(struct text_search *search, struct text *out)
{
    release_all_but(search, 0, out);
    start_anew(search);
}
