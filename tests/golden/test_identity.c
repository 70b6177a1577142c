/* Goal: a row's numbers depend on that row alone. The same bytes of logits and MTP logits come out whatever the chunks, threads, instruction set, company
 * and history of a sequence are.
 * Method: every tiny checkpoint and kindling, exact and int4; each variation alone against the baseline, then 20 seeded combinations. HEARTH's own seed is
 * printed; give one as the first argument to replay. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/memory.h"
#include "model/convert.h"
#include "tests/lib/golden.h"

enum { CASES_MAX = 8, COMBINATIONS = CASE_STRIDE == 1 ? 20 : 3 };

struct variation {
    const char *isa;
    int threads, chunk;
    int together; /* all sequences side by side, a few rows of each at a time */
    int redo;     /* lower the length, run other tokens, lower it again, run the right ones */
    int fork;     /* go on in a second sequence that shares the first one's blocks */
};

static const struct variation baseline = {"auto", 1, 64, 0, 0, 0};

struct cases {
    int n;
    const int *tokens[CASES_MAX];
    int length[CASES_MAX];
};

struct outputs {
    float *logits[CASES_MAX], *hidden[CASES_MAX], *drafts[CASES_MAX];
};

static uint32_t seed = 20261130;

static uint32_t draw(uint32_t *state, uint32_t n)
{
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(*state >> 8) * n >> 24);
}

static struct cases cases_of(struct arrays *arrays, int n_max, int shortest)
{
    struct cases cases = {0};
    size_t shape[2];
    for (int i = 0; cases.n < n_max; i++) {
        const int *tokens = arrays_find(arrays, shape, "case%d.tokens", i);
        if (!tokens)
            break;
        if ((int)shape[0] < shortest)
            continue;
        cases.tokens[cases.n] = tokens;
        cases.length[cases.n++] = (int)shape[0];
    }
    return cases;
}

static void allocate(struct outputs *o, const struct cases *cases, const struct model_config *c)
{
    for (int i = 0; i < cases->n; i++) {
        size_t n = (size_t)cases->length[i];
        o->logits[i] = xcalloc(n * (size_t)c->vocab_size, sizeof(float));
        o->drafts[i] = xcalloc(n * (size_t)c->vocab_size, sizeof(float));
        o->hidden[i] = xcalloc(n * (size_t)c->hidden_size, sizeof(float));
    }
}

static void release(struct outputs *o, const struct cases *cases)
{
    for (int i = 0; i < cases->n; i++) {
        free(o->logits[i]);
        free(o->drafts[i]);
        free(o->hidden[i]);
    }
}

#define OK(call)                                                                                                                           \
    do {                                                                                                                                   \
        if (call)                                                                                                                          \
            fail_msg("%s", err.text);                                                                                                      \
    } while (0)

/* Rows [from, to) of a case. */
static struct model_input part_of(const struct model *m, struct sequence_state *s, const struct cases *cases, int i, int from, int to, struct outputs *o)
{
    return (struct model_input){s, cases->tokens[i] + from, to - from, o->logits[i] + (size_t)from * (size_t)m->config->vocab_size,
                                o->hidden[i] + (size_t)from * (size_t)m->config->hidden_size};
}

static void run_mtp(struct model *m, struct sequence_state *s, const struct cases *cases, int i, struct outputs *o)
{
    struct error err;
    int from = s->mtp_length, n = cases->length[i] - 1 - from;
    if (m->config->n_mtp_layers && n > 0)
        OK(model_mtp_rows(m, s, from, cases->tokens[i] + 1 + from, n, o->hidden[i] + (size_t)from * (size_t)m->config->hidden_size,
                          o->drafts[i] + (size_t)from * (size_t)m->config->vocab_size, &err));
}

static void run_together(struct model *m, struct sequence_state *sequences, const struct cases *cases, struct outputs *o)
{
    struct error err;
    enum { STRIDE = 5 };
    for (int from = 0, n = 1; n; from += STRIDE) {
        struct model_input inputs[CASES_MAX];
        n = 0;
        for (int i = 0; i < cases->n; i++) {
            int to = from + STRIDE < cases->length[i] ? from + STRIDE : cases->length[i];
            if (from < to)
                inputs[n++] = part_of(m, &sequences[i], cases, i, from, to, o);
        }
        if (n)
            OK(model_forward(m, inputs, n, &err));
    }
}

static void lower_and_redo(struct model *m, struct sequence_state *s, const struct cases *cases, int i, struct outputs *o, uint32_t *random)
{
    struct error err;
    int length = cases->length[i], from = (int)draw(random, (uint32_t)length), other = (int)draw(random, (uint32_t)(length - from)) + 1;
    int *wrong = xcalloc((size_t)other, sizeof *wrong);
    for (int t = 0; t < other; t++)
        wrong[t] = (int)draw(random, (uint32_t)m->config->vocab_size);
    sequence_state_truncate(s, from);
    OK(model_forward(m, &(struct model_input){s, wrong, other, NULL, NULL}, 1, &err));
    sequence_state_truncate(s, from);
    memset(o->logits[i] + (size_t)from * (size_t)m->config->vocab_size, 0, (size_t)(length - from) * (size_t)m->config->vocab_size * sizeof(float));
    struct model_input rest = part_of(m, s, cases, i, from, length, o);
    OK(model_forward(m, &rest, 1, &err));
    run_mtp(m, s, cases, i, o);
    free(wrong);
}

/* A second sequence shares the first `from` positions and overwrites the rest of the last shared block, then the first redoes its own tail: neither may
 * see the other's rows. */
static void fork_and_go_on(struct model *m, struct sequence_state *s, const struct cases *cases, int i, struct outputs *o, uint32_t *random)
{
    struct error err;
    int length = cases->length[i], from = (int)draw(random, (uint32_t)length), vocab = m->config->vocab_size;
    struct sequence_state second;
    size_t tail_bytes = (size_t)(length - from) * (size_t)vocab * sizeof(float);
    float *tail = xcalloc(1, tail_bytes); /* the second's: o keeps the first's, which same_bytes compares */
    OK(sequence_state_fork(&second, s, from, length, &err));
    int *wrong = xcalloc((size_t)(length - from), sizeof *wrong);
    OK(model_forward(m, &(struct model_input){&second, wrong, length - from, NULL, NULL}, 1, &err));
    free(wrong);
    sequence_state_truncate(s, from + (length - from) / 2);
    int again = s->length;
    struct model_input rest = part_of(m, s, cases, i, again, length, o);
    OK(model_forward(m, &rest, 1, &err));
    sequence_state_truncate(&second, from);
    OK(model_forward(m, &(struct model_input){&second, cases->tokens[i] + from, length - from, tail, NULL}, 1, &err));
    if (memcmp(tail, o->logits[i] + (size_t)from * (size_t)vocab, tail_bytes))
        fail_msg("case %d: a sequence forked at %d gives other logits than the one it came from (seed %u)", i, from, seed);
    free(tail);
    run_mtp(m, &second, cases, i, o);
    sequence_state_release(&second);
}

static void run(const char *dir, const struct variation *v, const struct cases *cases, struct outputs *o, uint32_t random)
{
    struct error err;
    int positions = 0;
    for (int i = 0; i < cases->n; i++)
        positions += 3 * (cases->length[i] + CACHE_BLOCK_POSITIONS);
    struct model *m =
        open_or_fail(dir, &(struct model_options){.isa = v->isa, .n_threads = v->threads, .max_rows = v->chunk, .max_positions = positions});
    allocate(o, cases, m->config);
    struct sequence_state sequences[CASES_MAX];
    for (int i = 0; i < cases->n; i++)
        OK(model_sequence_init(m, &sequences[i], cases->length[i], &err));
    if (v->together)
        run_together(m, sequences, cases, o);
    for (int i = 0; i < cases->n; i++) {
        if (!v->together) {
            struct model_input all = part_of(m, &sequences[i], cases, i, 0, cases->length[i], o);
            OK(model_forward(m, &all, 1, &err));
        }
        run_mtp(m, &sequences[i], cases, i, o);
        if (v->redo)
            lower_and_redo(m, &sequences[i], cases, i, o, &random);
        if (v->fork)
            fork_and_go_on(m, &sequences[i], cases, i, o, &random);
    }
    for (int i = 0; i < cases->n; i++)
        sequence_state_release(&sequences[i]);
    assert_int_equal(m->cache.n_free, m->cache.n_blocks);
    model_close(&m);
}

static void same_bytes(const struct outputs *want, const struct outputs *got, const struct cases *cases, int vocab, const struct variation *v,
                       const char *what)
{
    for (int i = 0; i < cases->n; i++) {
        size_t n = (size_t)cases->length[i] * (size_t)vocab;
        for (size_t j = 0; j < n; j++)
            if (memcmp(&want->logits[i][j], &got->logits[i][j], 4) || memcmp(&want->drafts[i][j], &got->drafts[i][j], 4))
                fail_msg("%s: isa %s, threads %d, chunk %d, together %d, redo %d, fork %d: case %d position %zu id %zu: %.9g %.9g, baseline %.9g %.9g "
                         "(seed %u)",
                         what, v->isa, v->threads, v->chunk, v->together, v->redo, v->fork, i, j / (size_t)vocab, j % (size_t)vocab,
                         (double)got->logits[i][j], (double)got->drafts[i][j], (double)want->logits[i][j], (double)want->drafts[i][j], seed);
    }
}

static const char *const isas[] = {"scalar", "avx2", "avx512"};
static const int chunks[] = {1, 7, 64, 512};

static int isa_runs_here(const char *isa)
{
    struct kernels kernels;
    return kernels_select(&kernels, isa, NULL) == STATUS_OK;
}

static void compare(const char *dir, const struct cases *cases, const char *what)
{
    struct weights_source *source;
    struct error err;
    OK(weights_source_open(&source, dir, &err));
    int vocab = weights_source_config(source)->vocab_size;
    weights_source_close(&source);
    struct variation list[16 + COMBINATIONS];
    int n = 0;
    for (int i = 0; i < 3; i++)
        if (isa_runs_here(isas[i]))
            list[n++] = (struct variation){isas[i], 1, 64, 0, 0, 0};
    for (int i = 0; i < 4; i++)
        list[n++] = (struct variation){"auto", 1, chunks[i], 0, 0, 0};
    list[n++] = (struct variation){"auto", 2, 64, 0, 0, 0};
    list[n++] = (struct variation){"auto", 1, 64, 1, 0, 0};
    list[n++] = (struct variation){"auto", 1, 64, 0, 1, 0};
    list[n++] = (struct variation){"auto", 1, 64, 0, 0, 1};
    uint32_t random = seed;
    for (int i = 0; i < COMBINATIONS; i++) {
        const char *isa = isas[draw(&random, 3)];
        list[n++] = (struct variation){isa_runs_here(isa) ? isa : "auto", 1 + (int)draw(&random, 2), chunks[draw(&random, 4)], (int)draw(&random, 2),
                                       (int)draw(&random, 2), (int)draw(&random, 2)};
    }
    struct outputs want, got;
    run(dir, &baseline, cases, &want, 1);
    for (int i = 0; i < n; i++) {
        run(dir, &list[i], cases, &got, random + (uint32_t)i);
        same_bytes(&want, &got, cases, vocab, &list[i], what);
        release(&got, cases);
    }
    release(&want, cases);
}

static void same_bytes_however_it_is_run(void **state)
{
    const char *name = *state;
    char path[512];
    int is_kindling = !strcmp(name, "kindling");
    struct arrays *arrays = arrays_open(golden_path(path, name, is_kindling ? "teacher.safetensors" : "expected.safetensors"));
    /* Two of kindling's conversations above index_topk = 64 positions, so that selections matter. */
    struct cases cases = cases_of(arrays, is_kindling ? (CASE_STRIDE == 1 ? 2 : 1) : CASES_MAX, is_kindling ? (CASE_STRIDE == 1 ? 130 : 70) : 1);
    assert_true(cases.n > 0);
    char *source = temporary_copy(is_kindling ? kindling_dir() : golden_path(path, name, "checkpoint")), *packs = temporary_folder();
    compare(source, &cases, "exact");
    struct error err;
    char *pack = xasprintf("%s/int4", packs);
    struct convert_result result;
    OK(convert_model(source, pack, &(struct convert_options){.precision = PRECISION_INT4}, &result, &err));
    compare(pack, &cases, "int4");
    free(pack);
    temporary_remove(&packs);
    temporary_remove(&source);
    arrays_close(&arrays);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        seed = (uint32_t)strtoul(argv[1], NULL, 0);
    printf("seed %u; replay: golden_identity %u\n", seed, seed);
    struct CMUnitTest tests[8];
    int n = 0;
    for (const char *const *name = tiny_names; *name; name++)
        tests[n++] = (struct CMUnitTest){*name, same_bytes_however_it_is_run, NULL, NULL, (void *)*name};
    tests[n++] = (struct CMUnitTest){"kindling", same_bytes_however_it_is_run, NULL, NULL, "kindling"};
    return _cmocka_run_group_tests("the same bytes however it is run", tests, (size_t)n, NULL, NULL);
}
