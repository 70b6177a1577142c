/* Goal: options are read as their rows say, and every mistake is a sentence that names the option.
 * Method: one row of each type. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/options.h"

struct values {
    int flag;
    int64_t number, size;
    double share;
    const char *text, *choice;
};

static const struct option_row rows[] = {
    {"flag", OPTION_FLAG, offsetof(struct values, flag), .help = "f"},
    {"number", OPTION_INT, offsetof(struct values, number), "7", -5, 100, .metavar = "N", .help = "n"},
    {"size", OPTION_SIZE, offsetof(struct values, size), "2M", 0, 1e15, .metavar = "SIZE", .help = "s"},
    {"share", OPTION_NUMBER, offsetof(struct values, share), "0.5", 0, 1, .metavar = "X", .help = "x"},
    {"text", OPTION_TEXT, offsetof(struct values, text), .metavar = "TEXT", .help = "t"},
    {"choice", OPTION_CHOICE, offsetof(struct values, choice), "red", .choices = "red|green", .metavar = "COLOUR", .help = "c"},
};

static enum status parse(struct values *v, const char **positional, int *n, struct error *err, const char *arguments)
{
    static char copy[256];
    char *argv[16] = {"program"};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", arguments);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    return options_parse(rows, sizeof rows / sizeof *rows, argc, argv, v, positional, 2, n, err);
}

static void values_and_defaults_are_read(void **state)
{
    (void)state;
    struct values v;
    struct error err;
    const char *positional[2];
    int n;
    assert_int_equal(parse(&v, positional, &n, &err, ""), STATUS_OK);
    assert_true(!v.flag && v.number == 7 && v.size == 2 << 20 && v.share == 0.5 && !v.text && !strcmp(v.choice, "red") && n == 0);
    assert_int_equal(parse(&v, positional, &n, &err, "a --flag --number -5 --size=3G --share 1 b --text x --choice green"), STATUS_OK);
    assert_true(v.flag && v.number == -5 && v.size == 3ll << 30 && v.share == 1 && !strcmp(v.text, "x") && !strcmp(v.choice, "green"));
    assert_true(n == 2 && !strcmp(positional[0], "a") && !strcmp(positional[1], "b"));
    assert_int_equal(parse(&v, positional, &n, &err, "-- --flag"), STATUS_OK);
    assert_true(!v.flag && n == 1 && !strcmp(positional[0], "--flag"));
}

static void mistakes_name_the_option(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"--nmber 3", "--nmber"},      {"--number", "--number needs"},    {"--number 101", "--number: 101"},   {"--number 1x", "--number: '1x'"},
        {"--number 1e99", "--number"}, {"--size 3Q", "--size"},           {"--size 9999999T", "--size"},       {"--share nan", "--share"},
        {"--share 1.01", "--share"},   {"--choice blue", "red|green"},    {"--choice red|green", "--choice"},  {"--flag=1", "--flag"},
        {"a b c", "'c'"},              {"-x", "-x"},                      {"--number=", "--number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct values v;
        struct error err = {0};
        const char *positional[2];
        int n;
        if (!parse(&v, positional, &n, &err, cases[i][0]))
            fail_msg("%s was accepted", cases[i][0]);
        if (!strstr(err.text, cases[i][1]))
            fail_msg("%s: the sentence lacks %s: %s", cases[i][0], cases[i][1], err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_and_defaults_are_read), cmocka_unit_test(mistakes_name_the_option)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
