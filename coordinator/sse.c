#include "coordinator/sse.h"

#include "common/check.h"

static int append(const char *bytes, size_t length, void *out)
{
    text_append(out, bytes, length);
    return 0;
}

void sse_event(struct text *out, json_t *value)
{
    text_append_string(out, "data: ");
    int failed = json_dump_callback(value, append, out, JSON_COMPACT);
    CHECK(!failed);
    text_append_string(out, "\n\n");
    json_decref(value);
}

void sse_done(struct text *out)
{
    text_append_string(out, "data: [DONE]\n\n");
}

void sse_comment(struct text *out, const char *comment)
{
    text_append_string(out, ": ");
    text_append_string(out, comment);
    text_append_string(out, "\n\n");
}
