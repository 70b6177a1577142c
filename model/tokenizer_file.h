/* Reads tokenizer.json into tables, believing nothing. Used by tokenizer.c only. */
#ifndef HEARTH_MODEL_TOKENIZER_FILE_H
#define HEARTH_MODEL_TOKENIZER_FILE_H

#include "common/error.h"
#include "model/bpe.h"
#include "model/text_splitter.h"
#include "model/token_table.h"

enum { ADDED_TOKENS_MAX = 65536, ADDED_TOKEN_BYTES_MAX = 1024 };

struct added_token {
    int id;
    int pass; /* 0: searched first; 1 ("normalized" in the file): searched in what is left */
};

/* Zero-initialise; owned by the tokenizer. */
struct tokenizer_tables {
    struct token_table tokens; /* vocabulary and added tokens: id -> bytes, bytes -> id */
    struct bpe bpe;
    int ignores_merges; /* a piece that is a token is taken whole */
    struct text_splitter *splitter;
    struct added_token *added; /* by first byte, then longest first */
    int n_added;
    int added_begin[257];    /* added tokens that start with byte b: [added_begin[b], added_begin[b + 1]) */
    unsigned char *is_added; /* [tokens.n_ids] */
};

enum status tokenizer_file_read(struct tokenizer_tables *tables, const char *path, struct error *err);
void tokenizer_tables_release(struct tokenizer_tables *tables);

#endif
