#include "tests/lib/exposition.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define NAME_LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

/* The name that text begins with goes to out; returns what follows, NULL when there is none. */
static const char *take_name(const char *text, char out[SAMPLE_TEXT_BYTES])
{
    size_t n = strspn(text, NAME_LETTERS);
    if (!n || n >= SAMPLE_TEXT_BYTES || (*text >= '0' && *text <= '9'))
        return NULL;
    snprintf(out, SAMPLE_TEXT_BYTES, "%.*s", (int)n, text);
    return text + n;
}

/* A label's value up to its closing quote, unescaped. Returns what follows the quote. */
static const char *take_value(const char *text, char out[SAMPLE_TEXT_BYTES])
{
    int n = 0;
    for (; *text != '"'; text++) {
        char c = *text;
        if (c == '\\') {
            c = *++text;
            if (c != 'n' && c != '\\' && c != '"')
                return NULL;
            c = c == 'n' ? '\n' : c;
        } else if (c == '\n' || !c)
            return NULL;
        if (n == SAMPLE_TEXT_BYTES - 1)
            return NULL;
        out[n++] = c;
    }
    out[n] = 0;
    return text + 1;
}

static const char *take_labels(const char *text, struct sample *sample)
{
    if (*text != '{')
        return text;
    do {
        text++;
        if (sample->n_labels == SAMPLE_LABELS_MAX)
            return NULL;
        text = take_name(text, sample->label_names[sample->n_labels]);
        if (!text || strncmp(text, "=\"", 2))
            return NULL;
        text = take_value(text + 2, sample->label_values[sample->n_labels++]);
    } while (text && *text == ',');
    return text && *text == '}' ? text + 1 : NULL;
}

/* One line "name{labels} value" without its end; 0: it is none. */
static int take_sample(const char *line, struct sample *sample)
{
    memset(sample, 0, sizeof *sample);
    const char *at = take_name(line, sample->name);
    at = at ? take_labels(at, sample) : NULL;
    if (!at || *at++ != ' ' || !*at || strlen(at) >= SAMPLE_TEXT_BYTES || strpbrk(at, " \t"))
        return 0;
    char *end;
    snprintf(sample->value_text, sizeof sample->value_text, "%s", at);
    sample->value = strtod(at, &end);
    return !*end;
}

static int same_labels(const struct sample *a, const struct sample *b)
{
    int n_same = 0;
    for (int i = 0; i < a->n_labels; i++)
        for (int k = 0; k < b->n_labels; k++)
            n_same += !strcmp(a->label_names[i], b->label_names[k]) && !strcmp(a->label_values[i], b->label_values[k]);
    return a->n_labels == b->n_labels && n_same == a->n_labels;
}

/* Where the reading is: the name whose HELP and TYPE came last. */
struct reading {
    char name[SAMPLE_TEXT_BYTES];
    int has_type, is_counter, n_samples;
};

/* "# HELP name text", "# TYPE name counter". Returns what is wrong, NULL: nothing. */
static const char *read_comment(const char *line, struct reading *reading, const struct exposition *out)
{
    char name[SAMPLE_TEXT_BYTES];
    int is_help = !strncmp(line, "# HELP ", 7);
    if (!is_help && strncmp(line, "# TYPE ", 7))
        return "a comment that is neither HELP nor TYPE";
    const char *rest = take_name(line + 7, name);
    if (!rest || *rest != ' ' || !rest[1])
        return "HELP or TYPE without name or text";
    if (is_help) {
        if (*reading->name && !reading->n_samples)
            return "a name without samples";
        for (int i = 0; i < out->n; i++)
            if (!strcmp(out->samples[i].name, name))
                return "a name in two groups";
        for (const char *c = rest; *c; c++)
            if (*c == '\\' && *++c != 'n' && *c != '\\')
                return "an unknown escape in a help text";
        *reading = (struct reading){0};
        snprintf(reading->name, sizeof reading->name, "%s", name);
        return NULL;
    }
    if (strcmp(name, reading->name) || reading->has_type || reading->n_samples)
        return "TYPE does not follow the HELP of its name";
    reading->is_counter = !strcmp(rest, " counter");
    reading->has_type = 1;
    return reading->is_counter || !strcmp(rest, " gauge") ? NULL : "another type than counter or gauge";
}

static const char *read_sample(const char *line, struct reading *reading, struct exposition *out)
{
    out->samples = xrealloc(out->samples, ((size_t)out->n + 1) * sizeof *out->samples);
    struct sample *sample = &out->samples[out->n];
    if (!take_sample(line, sample))
        return "no sample";
    if (strcmp(sample->name, reading->name) || !reading->has_type)
        return "a sample outside the group of its name";
    for (int i = 0; i < out->n; i++)
        if (!strcmp(out->samples[i].name, sample->name) && same_labels(&out->samples[i], sample))
            return "a sample twice";
    sample->is_counter = reading->is_counter;
    if (sample->is_counter && !(sample->value >= 0 && isfinite(sample->value)))
        return "a counter that is no number from 0 on";
    reading->n_samples++;
    out->n++;
    return NULL;
}

void exposition_parse(struct exposition *out, const char *text)
{
    struct reading reading = {0};
    *out = (struct exposition){0};
    const char *wrong = NULL;
    while (*text && !wrong) {
        const char *end = strchr(text, '\n');
        char *line = strndup(text, end ? (size_t)(end - text) : strlen(text));
        wrong = !end ? "the last line has no end" : *line == '#' ? read_comment(line, &reading, out) : read_sample(line, &reading, out);
        if (wrong)
            snprintf(out->why, sizeof out->why, "%s: %.200s", wrong, line);
        free(line);
        text = end ? end + 1 : "";
    }
    if (!wrong && *reading.name && !reading.n_samples)
        snprintf(out->why, sizeof out->why, "the last name has no samples");
}

void exposition_release(struct exposition *exposition)
{
    free(exposition->samples);
    *exposition = (struct exposition){0};
}

const struct sample *exposition_find(const struct exposition *exposition, const char *name, const char *label, const char *value)
{
    for (int i = 0; i < exposition->n; i++) {
        const struct sample *s = &exposition->samples[i];
        if (!strcmp(s->name, name) && s->n_labels == (label != NULL) &&
            (!label || (!strcmp(s->label_names[0], label) && !strcmp(s->label_values[0], value))))
            return s;
    }
    return NULL;
}
