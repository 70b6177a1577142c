/* A row engine whose numbers are hashes: a row after a layer is a hash of the row before it, the layer, and everything that lower positions
 * left in that layer. A missing, repeated, reordered or stale row therefore changes every token after it. The same hashes come out of any
 * split into stages; hash_reference computes them in one go. */
#ifndef HEARTH_TESTS_HASH_ENGINE_H
#define HEARTH_TESTS_HASH_ENGINE_H

#include "node/row_engine.h"

enum { HASH_ROW_WIDTH = 4, HASH_SELECTION = 8 };

struct hash_engine_options {
    int layer_begin, layer_end, n_layers; /* head: begin 0; tail: end n_layers */
    int has_mtp;
    int vocab_size;
    int max_sequences, max_positions; /* positions of all sequences together, rounded up to blocks */
    int set_rows; /* prefill units of up to so many rows, each interrupted twice; 0: units are whole */
    int bad_token, bad_layer;         /* a row of this token stops being finite in this layer; -1: none */
};

struct hash_engine {
    struct row_engine base; /* hand out &engine->base */
    struct hash_engine_options options;
    struct hash_slot *slots;
    float *logits; /* [HASH_UNIT_ROWS_MAX][vocab] */
    int free_positions;
    struct stage_row **set; /* [set_rows] of the interrupted unit, NULL: forgotten */
    int n_set, set_done, set_layer;
    /* Broken promises of the stage: rows out of order, units of mixed layers, MTP rows twice or out of order, use of a slot that is not
     * open. */
    int n_violations;
    const char *violation; /* the first one */
    uint64_t n_rows_run;
};

enum { HASH_UNIT_ROWS_MAX = 64 };

struct hash_engine *hash_engine_new(const struct hash_engine_options *options);
void hash_engine_free(struct hash_engine **engine);

/* The whole model in one process: push the tokens of a sequence one by one. */
struct hash_reference {
    int n_layers, vocab_size;
    uint64_t *digest; /* [n_layers] of the positions so far */
    uint64_t mtp_digest;
    uint64_t last; /* hash of the newest row after the last layer */
};
void hash_reference_init(struct hash_reference *reference, int n_layers, int vocab_size);
void hash_reference_release(struct hash_reference *reference);
/* logits [vocab] of the token's row; mtp_logits [vocab] of the MTP row at the position before (its h, this token); either may be NULL. */
void hash_reference_push(struct hash_reference *reference, int token, float *logits, float *mtp_logits);

#endif
