/* Reads Prometheus' text format and holds it to its rules, for tests of what we write. */
#ifndef HEARTH_TESTS_EXPOSITION_H
#define HEARTH_TESTS_EXPOSITION_H

enum { SAMPLE_LABELS_MAX = 8, SAMPLE_TEXT_BYTES = 128 };

struct sample {
    char name[SAMPLE_TEXT_BYTES];
    int n_labels;
    char label_names[SAMPLE_LABELS_MAX][SAMPLE_TEXT_BYTES], label_values[SAMPLE_LABELS_MAX][SAMPLE_TEXT_BYTES]; /* unescaped */
    char value_text[SAMPLE_TEXT_BYTES];
    double value;
    int is_counter;
};

struct exposition {
    struct sample *samples;
    int n;
    char why[400]; /* what is wrong, "" when nothing is */
};

/* Every line ends; HELP then TYPE then the samples of one name, each name once; no sample twice; names, escapes and numbers as they must
 * be. */
void exposition_parse(struct exposition *out, const char *text);
void exposition_release(struct exposition *exposition);

/* The sample of that name with exactly that label (label NULL: with none), or NULL. */
const struct sample *exposition_find(const struct exposition *exposition, const char *name, const char *label, const char *value);

#endif
