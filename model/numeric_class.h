/* What decides the bits of a model's results besides its weights: part of every handshake (docs/ARCHITECTURE.md, section 6). */
#ifndef HEARTH_MODEL_NUMERIC_CLASS_H
#define HEARTH_MODEL_NUMERIC_CLASS_H

#include "model/weights_source.h"

/* Raised whenever any bit of any result can change. */
enum { NUMERIC_CONTRACT = 1 };

/* "f32" or "int8": what integer matrices are multiplied with follows from the precision. */
static inline const char *numeric_activations(const struct weights_source *source)
{
    return weights_source_precision(source) == PRECISION_EXACT ? "f32" : "int8";
}

#define NUMERIC_CACHE "f32" /* position caches */
#define NUMERIC_WIRE "f32"  /* rows between stages */

#endif
