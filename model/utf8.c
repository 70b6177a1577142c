#include "model/utf8.h"

#include "common/check.h"

/* What may follow a lead byte: how many continuation bytes, and the bounds of the first of them (they rule out overlong forms, surrogates
 * and anything above U+10FFFF). */
struct lead {
    int n_continuation;
    unsigned char low, high;
};

static struct lead lead_of(unsigned char byte)
{
    if (byte < 0x80)
        return (struct lead){0, 0, 0};
    if (byte >= 0xC2 && byte <= 0xDF)
        return (struct lead){1, 0x80, 0xBF};
    if (byte == 0xE0)
        return (struct lead){2, 0xA0, 0xBF};
    if (byte == 0xED)
        return (struct lead){2, 0x80, 0x9F};
    if (byte >= 0xE1 && byte <= 0xEF)
        return (struct lead){2, 0x80, 0xBF};
    if (byte == 0xF0)
        return (struct lead){3, 0x90, 0xBF};
    if (byte >= 0xF1 && byte <= 0xF3)
        return (struct lead){3, 0x80, 0xBF};
    if (byte == 0xF4)
        return (struct lead){3, 0x80, 0x8F};
    return (struct lead){-1, 0, 0};
}

struct utf8_piece utf8_next(const char *bytes, size_t length)
{
    CHECK(length > 0);
    const unsigned char *b = (const unsigned char *)bytes;
    struct lead lead = lead_of(b[0]);
    if (lead.n_continuation < 0)
        return (struct utf8_piece){UTF8_BROKEN, 1, 0};
    uint32_t codepoint = lead.n_continuation ? b[0] & (0x3Fu >> lead.n_continuation) : b[0];
    for (int i = 1; i <= lead.n_continuation; i++) {
        if ((size_t)i == length)
            return (struct utf8_piece){UTF8_INCOMPLETE, length, 0};
        unsigned char low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
        if (b[i] < low || b[i] > high)
            return (struct utf8_piece){UTF8_BROKEN, (size_t)i, 0};
        codepoint = codepoint << 6 | (b[i] & 0x3Fu);
    }
    return (struct utf8_piece){UTF8_CHARACTER, (size_t)lead.n_continuation + 1, codepoint};
}

size_t utf8_valid_prefix(const char *bytes, size_t length)
{
    size_t at = 0;
    while (at < length) {
        struct utf8_piece piece = utf8_next(bytes + at, length - at);
        if (piece.kind != UTF8_CHARACTER)
            break;
        at += piece.length;
    }
    return at;
}

void utf8_append_repaired(struct text *out, const char *bytes, size_t length)
{
    size_t at = 0;
    while (at < length) {
        size_t valid = utf8_valid_prefix(bytes + at, length - at);
        text_append(out, bytes + at, valid);
        at += valid;
        if (at == length)
            break;
        at += utf8_next(bytes + at, length - at).length;
        text_append(out, "\xEF\xBF\xBD", 3);
    }
}

int utf8_is_python_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
