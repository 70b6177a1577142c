/* The AVX512 variants; contracts are in kernels/kernels.h. */
#ifndef HEARTH_KERNELS_AVX512_H
#define HEARTH_KERNELS_AVX512_H

#include "kernels/kernels.h"

#endif
