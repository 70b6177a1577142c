#include "model/text_splitter.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "common/check.h"
#include "common/memory.h"

enum {
    EXPRESSION_BYTES_MAX = 1 << 16,
    /* GLM's expression needs next to none; a foreign one that wants more is stopped with a sentence, not by a signal. */
    JIT_STACK_START_BYTES = 32 << 10,
    JIT_STACK_MAX_BYTES = 8 << 20,
    /* Backtracking points of one match. GLM's expression uses a handful on any text; (a+)+$ passes this within a second. */
    MATCH_STEPS_MAX = 10 * 1000 * 1000,
    PROBE_RUN_BYTES = 4096,
    /* Of one match of the probe: 24 for each byte of its run. */
    PROBE_STEPS_MAX = 100 * 1000,
    /* Processor time of the whole probe, looked at after every match; GLM's expression takes 7. */
    PROBE_MS_MAX = 500,
};

struct text_splitter {
    pcre2_code *code;
    pcre2_match_context *limits;
};

struct split_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    /* The match found last, when it lies behind a piece that no match covers: it is the next piece. */
    size_t pending_begin, pending_end;
};

/* Copies the expression, with what Oniguruma means spelt for PCRE2: \s there is the property White_Space, PCRE2's own also takes U+180E. */
static enum status translate(struct text *out, const char *expression, size_t length, struct error *err)
{
    for (size_t i = 0; i < length; i++) {
        if (expression[i] == 0)
            return error_set(err, STATUS_INVALID, "a zero byte at %zu", i);
        if (expression[i] != '\\') {
            text_append(out, expression + i, 1);
            continue;
        }
        char escaped = i + 1 < length ? expression[i + 1] : 0;
        int is_letter = (escaped >= 'a' && escaped <= 'z') || (escaped >= 'A' && escaped <= 'Z') || (escaped >= '0' && escaped <= '9');
        if (!escaped || (is_letter && !strchr("sSrntpP", escaped)))
            return error_set(err, STATUS_UNSUPPORTED, "\\%c at byte %zu is not supported", escaped ? escaped : ' ', i);
        if (escaped == 's' || escaped == 'S')
            text_append_string(out, escaped == 's' ? "\\p{White_Space}" : "\\P{White_Space}");
        else
            text_append(out, expression + i, 2);
        i++;
    }
    return STATUS_OK;
}

static enum status compile(struct text_splitter *splitter, const struct text *expression, struct error *err)
{
    int code;
    PCRE2_SIZE where;
    splitter->code = pcre2_compile((PCRE2_SPTR)expression->bytes, expression->length,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT, &code, &where, NULL);
    if (!splitter->code) {
        char reason[256];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        return error_set(err, STATUS_INVALID, "%s (byte %zu)", reason, (size_t)where);
    }
    uint32_t matches_nothing = 0;
    pcre2_pattern_info(splitter->code, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
    if (matches_nothing)
        return error_set(err, STATUS_INVALID, "it can match the empty string");
    code = pcre2_jit_compile(splitter->code, PCRE2_JIT_COMPLETE);
    if (code && code != PCRE2_ERROR_JIT_BADOPTION) /* a PCRE2 built without JIT interprets: slower, the same pieces */
        return error_set(err, STATUS_UNSUPPORTED, "PCRE2 cannot compile it to machine code (error %d)", code);
    return STATUS_OK;
}

/* The next match from `begin` on; bounds stays as it is when there is none. */
static enum status find(const struct text_splitter *splitter, struct split_scratch *scratch, const char *text, size_t length, size_t begin,
                        size_t bounds[2], struct error *err)
{
    int n = pcre2_match(splitter->code, (PCRE2_SPTR)text, length, begin, PCRE2_NO_UTF_CHECK, scratch->match, scratch->context);
    if (n == PCRE2_ERROR_NOMATCH)
        return STATUS_OK;
    if (n < 0)
        return error_set(err, STATUS_UNSUPPORTED, "it backtracks too much at byte %zu of a text of %zu bytes (PCRE2 error %d)", begin,
                         length, n);
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(scratch->match);
    if (found[0] < begin || found[1] <= found[0] || found[1] > length) /* \K can do that */
        return error_set(err, STATUS_UNSUPPORTED, "its match at byte %zu lies outside the rest of the text", begin);
    bounds[0] = found[0];
    bounds[1] = found[1];
    return STATUS_OK;
}

static int64_t thread_cpu_ms(void)
{
    struct timespec t;
    CHECK(!clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t));
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Long runs of every printable character, broken off by one that fits nothing: what makes nested repeats explode. All printable characters
 * follow, or an expression that needs a certain one would be found hopeless before it is tried. A step can be dear (a look-ahead over the
 * whole run) and there are half a million places to try, so the time is bounded besides the steps; it is this thread's processor time, or
 * other programs could make us refuse. PCRE2 counts steps anew at every place where it tries, so each call here tries one place. */
static enum status probe(const struct text_splitter *splitter, struct error *err)
{
    struct split_scratch *scratch = split_scratch_new(splitter);
    pcre2_set_match_limit(scratch->context, PROBE_STEPS_MAX);
    char run[PROBE_RUN_BYTES + 128];
    size_t length = PROBE_RUN_BYTES;
    run[length++] = 1;
    for (int c = '\t'; c < 127; c++)
        run[length++] = (char)c;
    CHECK(length <= sizeof run);
    enum status status = STATUS_OK;
    int64_t begin_ms = thread_cpu_ms();
    for (int c = '\t'; c < 127 && !status; c++) {
        memset(run, c, PROBE_RUN_BYTES);
        for (size_t at = 0; at < length && !status;) {
            size_t bounds[2] = {at, at + 1};
            pcre2_set_offset_limit(scratch->context, at);
            status = find(splitter, scratch, run, length, at, bounds, err);
            at = bounds[1];
            if (!status && thread_cpu_ms() - begin_ms > PROBE_MS_MAX)
                status =
                    error_set(err, STATUS_UNSUPPORTED, "it backtracks too much: a trial on short texts took more than %d ms", PROBE_MS_MAX);
        }
    }
    split_scratch_free(&scratch);
    return status;
}

enum status text_splitter_open(struct text_splitter **out, const char *expression, size_t length, struct error *err)
{
    if (!length || length > EXPRESSION_BYTES_MAX)
        return error_set(err, STATUS_INVALID, "%zu bytes long, allowed are 1 to %d", length, EXPRESSION_BYTES_MAX);
    struct text_splitter *splitter = xcalloc(1, sizeof *splitter);
    struct text translated = {0};
    splitter->limits = pcre2_match_context_create(NULL);
    CHECK(splitter->limits);
    pcre2_set_match_limit(splitter->limits, MATCH_STEPS_MAX);
    enum status status = translate(&translated, expression, length, err);
    if (!status)
        status = compile(splitter, &translated, err);
    if (!status)
        status = probe(splitter, err);
    text_free(&translated);
    if (status)
        text_splitter_close(&splitter);
    *out = splitter;
    return status;
}

void text_splitter_close(struct text_splitter **splitter)
{
    if (!*splitter)
        return;
    pcre2_code_free((*splitter)->code);
    pcre2_match_context_free((*splitter)->limits);
    free(*splitter);
    *splitter = NULL;
}

struct split_scratch *split_scratch_new(const struct text_splitter *splitter)
{
    struct split_scratch *scratch = xcalloc(1, sizeof *scratch);
    scratch->match = pcre2_match_data_create(1, NULL);
    scratch->context = pcre2_match_context_copy(splitter->limits);
    scratch->stack = pcre2_jit_stack_create(JIT_STACK_START_BYTES, JIT_STACK_MAX_BYTES, NULL);
    CHECK(scratch->match && scratch->context);
    if (scratch->stack) /* NULL without JIT */
        pcre2_jit_stack_assign(scratch->context, NULL, scratch->stack);
    return scratch;
}

void split_scratch_free(struct split_scratch **scratch)
{
    if (!*scratch)
        return;
    pcre2_match_data_free((*scratch)->match);
    pcre2_match_context_free((*scratch)->context);
    pcre2_jit_stack_free((*scratch)->stack);
    free(*scratch);
    *scratch = NULL;
}

enum status text_splitter_next(const struct text_splitter *splitter, struct split_scratch *scratch, const char *text, size_t length,
                               size_t begin, size_t *end, struct error *err)
{
    CHECK(begin < length);
    if (begin && scratch->pending_begin == begin && scratch->pending_end > begin) {
        *end = scratch->pending_end;
        scratch->pending_end = 0;
        return STATUS_OK;
    }
    scratch->pending_end = 0;
    size_t bounds[2] = {length, length};
    enum status status = find(splitter, scratch, text, length, begin, bounds, err);
    if (status)
        return status;
    *end = bounds[1];
    if (bounds[0] > begin && bounds[0] < length) {
        *end = scratch->pending_begin = bounds[0];
        scratch->pending_end = bounds[1];
    }
    return STATUS_OK;
}
