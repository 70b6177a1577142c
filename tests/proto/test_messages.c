/* Goal: proto/messages.inc names exactly the messages of the envelope, and docs/PROTOCOL.md shows exactly its rows.
 * Method: the rows against the descriptor and against the text of the page. With the argument --table the program prints the table for the
 * page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <stdio.h>

#include "common/memory.h"
#include "proto/envelope.pb-c.h"
#include "proto/transport.h"

static const struct row {
    const char *name;
    unsigned number;
    const char *way;
    enum channel channel;
    const char *sentence;
} rows[] = {
#define MESSAGE(name, number, way, channel, sentence) {#name, number, way, channel, sentence},
#include "proto/messages.inc"
#undef MESSAGE
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static void table(struct text *out)
{
    text_append_string(out, "| message | number | way | channel | what it says |\n|---|---|---|---|---|\n");
    for (int i = 0; i < N_ROWS; i++) {
        char *line = xasprintf("| %s | %u | %s | %s | %s |\n", rows[i].name, rows[i].number, rows[i].way,
                               rows[i].channel == CHANNEL_CONTROL ? "control" : "rows", rows[i].sentence);
        text_append_string(out, line);
        free(line);
    }
}

static void rows_are_the_messages_of_the_envelope(void **state)
{
    (void)state;
    const ProtobufCMessageDescriptor *envelope = &hearth__envelope__descriptor;
    int n = 0;
    for (unsigned i = 0; i < envelope->n_fields; i++) {
        if (!(envelope->fields[i].flags & PROTOBUF_C_FIELD_FLAG_ONEOF))
            continue;
        assert_true(n < N_ROWS);
        assert_string_equal(rows[n].name, envelope->fields[i].name);
        assert_int_equal(rows[n].number, envelope->fields[i].id);
        n++;
    }
    assert_int_equal(n, N_ROWS);
}

static void the_page_shows_the_rows(void **state)
{
    (void)state;
    struct text page = {0}, expected = {0};
    FILE *f = fopen(SOURCE_DIR "/docs/PROTOCOL.md", "r");
    assert_non_null(f);
    char buffer[4096];
    for (size_t got; (got = fread(buffer, 1, sizeof buffer, f)) > 0;)
        text_append(&page, buffer, got);
    fclose(f);
    table(&expected);
    if (!strstr(page.bytes, expected.bytes))
        fail_msg("docs/PROTOCOL.md does not have the table of proto/messages.inc (proto_messages --table prints it)");
    text_free(&page);
    text_free(&expected);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--table")) {
        struct text out = {0};
        table(&out);
        fputs(out.bytes, stdout);
        text_free(&out);
        return EXIT_SUCCESS;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_messages_of_the_envelope),
        cmocka_unit_test(the_page_shows_the_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
