/* Goal: a file and the command line fill the same options by the same rows, the command line wins, and every mistake in a file names file
 * and line. Method: small files, one mistake each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <unistd.h>

#include "common/config_file.h"

struct values {
    const char *config, *text, *secret;
    int flag;
    int64_t number, long_name;
    double share;
    const char *choice;
};

static const struct option_row rows[] = {
    {"config", OPTION_TEXT, offsetof(struct values, config), .metavar = "FILE", .help = "f"},
    {"text", OPTION_TEXT, offsetof(struct values, text), "default", .metavar = "T", .help = "t"},
    {"flag", OPTION_FLAG, offsetof(struct values, flag), .help = "f"},
    {"number", OPTION_INT, offsetof(struct values, number), "7", -5, 100, .metavar = "N", .help = "n"},
    {"long-name", OPTION_SIZE, offsetof(struct values, long_name), "1K", 0, 1e15, .metavar = "N", .help = "n"},
    {"share", OPTION_NUMBER, offsetof(struct values, share), "0.5", 0, 1, .metavar = "X", .help = "x"},
    {"choice", OPTION_CHOICE, offsetof(struct values, choice), "red", .choices = "red|green", .metavar = "C", .help = "c"},
    {"secret", OPTION_SECRET, offsetof(struct values, secret), .metavar = "S", .help = "s"},
};

static char path[] = "/tmp/hearth-config-XXXXXX";

static enum status parse_bytes(struct values *v, struct error *err, const char *bytes, size_t n, const char *flags)
{
    FILE *f = fopen(path, "w");
    assert_true(f && fwrite(bytes, 1, n, f) == n && !fclose(f));
    static char copy[256];
    char *argv[16] = {"program", "--config", path};
    int argc = 3;
    snprintf(copy, sizeof copy, "%s", flags);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    return config_options_parse(rows, sizeof rows / sizeof *rows, "node", argc, argv, v, err);
}

static enum status parse(struct values *v, struct error *err, const char *file, const char *flags)
{
    return parse_bytes(v, err, file, strlen(file), flags);
}

static void flags_win_over_the_file_and_the_file_over_defaults(void **state)
{
    (void)state;
    struct values v;
    struct error err = {0};
    const char *file =
        "# comment\n; another\n\nnumber = 8\n[node]\nlong_name=2K\ntext = two words  \nflag: yes\nshare = 0.25 ; why\nchoice = green";
    if (parse(&v, &err, file, "--number 9"))
        fail_msg("%s", err.text);
    assert_true(v.number == 9 && v.long_name == 2048 && v.flag == 1 && v.share == 0.25 && !v.secret);
    assert_string_equal(v.text, "two words");
    assert_string_equal(v.choice, "green");
    assert_string_equal(v.config, path);
    assert_int_equal(parse(&v, &err, "flag = no\nlong-name = 3", ""), STATUS_OK);
    assert_true(v.flag == 0 && v.long_name == 3 && v.number == 7);
    assert_string_equal(v.text, "default"); /* nothing is left of the file before */
    assert_int_equal(parse(&v, &err, "flag = off", "--flag"), STATUS_OK);
    assert_int_equal(v.flag, 1);
    assert_int_equal(parse(&v, &err, "", "--text x"), STATUS_OK);
    assert_string_equal(v.text, "x");
}

static void every_mistake_names_file_and_line(void **state)
{
    (void)state;
    char *far = malloc(400);
    memset(far, 'x', 399);
    memcpy(far, "text = ", 7);
    far[399] = 0;
    const char *cases[][2] = {
        {"number = 1\nnmber = 2", ":2: unknown option 'nmber'"},
        {"\n\nnumber = 101", ":3: --number: 101 is outside"},
        {"number = ten", ":1: --number: 'ten'"},
        {"number =", ":1: --number: ''"},
        {"flag = maybe", ":1: --flag: 'maybe'"},
        {"choice = blue", ":1: --choice: 'blue'"},
        {"[coordinator]\nnumber = 1", ":1: unknown section '[coordinator]'"},
        {"number = 1\n[nodes]\n", ":2: unknown section '[nodes]'"},
        {"[node", ":1: "},
        {"number = 1\nnumber = 2", ":2: given twice: 'number'"},
        {"long-name = 1\nlong_name = 2", ":2: given twice"},
        {"text = a\n  more", ":2: a line that begins with a space"},
        {"just words", ":1: expected name = value"},
        {"config = other.ini", ":1: one file cannot name another"},
        {far, ":1: a line that is too long"},
        {"secret = 4711\nsecret = 4711", ":2: given twice: 'secret'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct values v;
        struct error err = {0};
        if (!parse(&v, &err, cases[i][0], ""))
            fail_msg("accepted: %s", cases[i][0]);
        if (!strstr(err.text, cases[i][1]) || strncmp(err.text, path, strlen(path)))
            fail_msg("%s: the sentence lacks '%s': %s", cases[i][0], cases[i][1], err.text);
        assert_null(strstr(err.text, "4711"));
    }
    free(far);
    struct values v;
    struct error err = {0};
    assert_int_equal(parse_bytes(&v, &err, "text = a\0b\n", 11, ""), STATUS_INVALID);
}

static void a_missing_file_and_wrong_flags_are_errors(void **state)
{
    (void)state;
    struct values v;
    struct error err = {0};
    char *argv[] = {"program", "--config", "/nowhere/node.ini"};
    assert_int_equal(config_options_parse(rows, sizeof rows / sizeof *rows, "node", 3, argv, &v, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nowhere/node.ini"));
    assert_int_equal(parse(&v, &err, "", "--wrong"), STATUS_INVALID);
    assert_int_equal(parse(&v, &err, "", "positional"), STATUS_INVALID);
    assert_int_equal(parse(&v, &err, "secret = 4711", "--number x"), STATUS_INVALID);
    assert_null(strstr(err.text, "4711"));
}

static int make_path(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 || close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_win_over_the_file_and_the_file_over_defaults),
        cmocka_unit_test(every_mistake_names_file_and_line),
        cmocka_unit_test(a_missing_file_and_wrong_flags_are_errors),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
