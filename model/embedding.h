/* Token ids to residuals: x = E[id], not scaled. A process that has everything in RAM keeps the table there; a node, which needs one row a token, verifies the
 * file once and then reads row by row (a gigabyte of memory less with GLM-5.2's vocabulary). */
#ifndef HEARTH_MODEL_EMBEDDING_H
#define HEARTH_MODEL_EMBEDDING_H

#include "model/weights_source.h"

struct embedding {
    struct weights_part part;   /* the table in RAM; empty when rows are read from the file */
    struct matrix table;        /* its sizes and format; data and scales point into part, or into `row` */
    int fd;                     /* -1: in RAM */
    char *path;
    uint64_t data_offset, scales_offset; /* of row 0 in the file */
    uint8_t *row;               /* one row's data and scales */
};

/* The table in RAM. */
enum status embedding_load(struct embedding *embedding, struct weights_source *source, struct error *err);

/* The table in its file, verified. A vendor folder has no such file: its table is loaded. */
enum status embedding_open(struct embedding *embedding, struct weights_source *source, struct error *err);

/* Memory that embedding_load, or embedding_open, takes. */
uint64_t embedding_bytes(const struct weights_source *source, int in_file);

/* Harmless on a zeroed one. */
void embedding_release(struct embedding *embedding);

/* out [hidden_size]. token must lie in [0, vocab_size). Fails naming the file when it cannot be read. */
enum status embedding_row(const struct embedding *embedding, int token, float *out, struct error *err);

#endif
