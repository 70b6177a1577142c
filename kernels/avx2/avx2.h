/* The AVX2 variants; contracts are in kernels/kernels.h. */
#ifndef HEARTH_KERNELS_AVX2_H
#define HEARTH_KERNELS_AVX2_H

#include "kernels/kernels.h"

#endif
