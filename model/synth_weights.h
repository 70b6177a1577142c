/* Random weights in their stored form, at the speed of memory: integers are drawn, never quantised. Every row is a function of (seed, part,
 * layer, item, row) alone, so any thread may make any row, on any machine.
 *
 * Integers are the sum of two uniform ones, so they are symmetric about 0, and look like what quantising normal weights gives: int8
 * -127..127, int4 -7..7. A mean other than 0 would add the same vector to every token, and all tokens would choose the same experts. */
#ifndef HEARTH_MODEL_SYNTH_WEIGHTS_H
#define HEARTH_MODEL_SYNTH_WEIGHTS_H

#include <stdint.h>

#include "model/part_layout.h"

/* Where a random stream belongs. item: index of the tensor in its part, or the expert; matrix: of an expert, else 0. */
struct synth_key {
    uint64_t seed;
    enum part_kind part;
    int layer, item, matrix;
};

enum { SYNTH_SCALES = 256 };

/* How one tensor is filled. */
struct synth_fill {
    enum { FILL_ONES, FILL_ZEROS, FILL_RANDOM, FILL_SKEW } kind;
    float deviation; /* of the weights */
    double skew;     /* router bias: -skew * ln(rank + 1), ranks in random order */
    int exponent;    /* int4: the matrix's power of two */
    union {          /* group scales to choose from, around what gives the deviation */
        float f32[SYNTH_SCALES];
        uint16_t f16[SYNTH_SCALES]; /* signed */
    } scales;
};

void synth_fill_init(struct synth_fill *fill, const struct model_config *config, const struct tensor_place *tensor, double skew);

/* Rows [begin, begin + rows): data and scales point to the first of them; scales NULL when the format has none. */
void synth_rows(const struct synth_fill *fill, const struct tensor_place *tensor, const struct synth_key *key, int begin, int rows,
                uint8_t *data, uint8_t *scales);

#endif
