/* registry.inc as data: one entry per variant. */
#ifndef HEARTH_KERNELS_REGISTRY_H
#define HEARTH_KERNELS_REGISTRY_H

#include "kernels/kernels.h"
#include "kernels/scalar/scalar.h"
#if defined(__x86_64__)
#include "kernels/avx2/avx2.h"
#include "kernels/avx512/avx512.h"
#endif

struct kernel_variant {
    const char *operation; /* member of struct kernels */
    const char *name;
    size_t offset; /* of that member */
    enum isa isa;
    unsigned needs; /* enum cpu_feature bits beyond the ISA's own */
    void (*function)(void);
};

extern const struct kernel_variant kernel_variants[];
extern const int n_kernel_variants;

const char *isa_name(enum isa isa);
int kernel_variant_runs_here(const struct kernel_variant *variant);

#endif
