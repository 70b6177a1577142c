/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): random words as a pure function of a counter and a
 * key. */
#ifndef HEARTH_MODEL_PHILOX_H
#define HEARTH_MODEL_PHILOX_H

#include <stdint.h>

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
