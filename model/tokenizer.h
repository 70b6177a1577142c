/* The tokenizer of a model, from tokenizer.json alone: byte-level BPE, added tokens, the file's own regular expression (docs/MODEL.md,
 * "Tokenizer"). Whatever the file asks for and we do not do is refused by name when it opens. Once open it is read-only: any number of
 * threads may use it. */
#ifndef HEARTH_MODEL_TOKENIZER_H
#define HEARTH_MODEL_TOKENIZER_H

#include <stddef.h>

#include "common/error.h"
#include "model/bpe.h"

struct tokenizer;

/* A stretch of text to encode. Added tokens (<|user|>, <think>, ...) are recognised in template spans only: what people write stays plain
 * text, whatever it says. The bytes are borrowed. */
struct text_span {
    const char *bytes;
    size_t length;
    int is_template;
};

enum {
    /* Of one call: 64 bytes for each of a million positions. Text, repaired text and ids take at most 16 bytes a byte of it: 1 GiB. */
    ENCODE_BYTES_MAX = 64 << 20,
    /* Of one piece, what the file's expression leaves in one; merging takes at most 104 bytes a byte of it (model/bpe.h): 832 MiB. */
    PIECE_BYTES_MAX = 8 << 20,
};

/* Reads and checks path (tokenizer.json, at most 1 GiB). On success the caller closes *out; on failure *out is NULL and err names file and
 * thing. */
enum status tokenizer_open(struct tokenizer **out, const char *path, struct error *err);
void tokenizer_close(struct tokenizer **tokenizer);

/* Highest id + 1. Logits of ids from here on are padding and never sampled. */
int tokenizer_size(const struct tokenizer *tokenizer);

/* The bytes that an id stands for (not always whole characters), borrowed; NULL when there is no such id. */
const char *tokenizer_token_bytes(const struct tokenizer *tokenizer, int id, size_t *length);

/* The id of a token of exactly these bytes, added tokens included; -1 when there is none. */
int tokenizer_find(const struct tokenizer *tokenizer, const char *bytes, size_t length);

/* 1 for ids of the file's added tokens: those that plain text can never give. */
int tokenizer_is_added(const struct tokenizer *tokenizer, int id);

/* Appends the ids of the spans, read as one text, to out. Every stretch between two added tokens is split and merged as one string,
 * whichever spans it comes from, so a border between template and people's text leaves no trace in the ids. Bytes that are not UTF-8 are
 * read as U+FFFD (one for each longest broken piece). Takes n log n time for n bytes. Fails when the text is longer than ENCODE_BYTES_MAX,
 * when one piece of it is longer than PIECE_BYTES_MAX, or when the file's expression backtracks too much on it; out may then hold a part. */
enum status tokenizer_encode(const struct tokenizer *tokenizer, const struct text_span *spans, size_t n_spans, struct id_list *out,
                             struct error *err);

#endif
