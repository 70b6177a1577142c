/* Chooses one variant per operation from registry.inc. */
#include "kernels/kernels.h"

#include <string.h>

#include "kernels/cpu_features.h"
#include "kernels/registry.h"

const struct kernel_variant kernel_variants[] = {
#define KERNEL(operation, isa, function, needs) {#operation, #function, offsetof(struct kernels, operation), isa, needs, (void (*)(void))function},
#include "kernels/registry.inc"
#undef KERNEL
};
const int n_kernel_variants = sizeof kernel_variants / sizeof *kernel_variants;

static const struct {
    const char *name;
    unsigned needs;
} isas[N_ISAS] = {
    [ISA_SCALAR] = {"scalar", 0},
    [ISA_AVX2] = {"avx2", CPU_AVX2},
    [ISA_AVX512] = {"avx512", CPU_AVX512},
};

const char *isa_name(enum isa isa)
{
    return isas[isa].name;
}

int kernel_variant_runs_here(const struct kernel_variant *variant)
{
    unsigned needs = isas[variant->isa].needs | variant->needs;
    return (cpu_features() & needs) == needs;
}

enum status kernels_select(struct kernels *out, const char *isa, struct error *err)
{
    enum status status = cpu_check_minimum(err);
    if (status)
        return status;
    int isa_max = N_ISAS - 1;
    if (strcmp(isa, "auto")) {
        for (isa_max = 0; isa_max < N_ISAS && strcmp(isa, isas[isa_max].name); isa_max++)
            ;
        if (isa_max == N_ISAS)
            return error_set(err, STATUS_INVALID, "unknown instruction set '%s': auto, scalar, avx2 or avx512", isa);
        if ((cpu_features() & isas[isa_max].needs) != isas[isa_max].needs)
            return error_set(err, STATUS_UNSUPPORTED, "this CPU cannot run the %s kernels; leave the choice to auto", isa);
    }
    memset(out, 0, sizeof *out);
    for (int i = 0; i < n_kernel_variants; i++) {
        const struct kernel_variant *v = &kernel_variants[i];
        if ((int)v->isa <= isa_max && kernel_variant_runs_here(v))
            memcpy((char *)out + v->offset, &v->function, sizeof v->function);
    }
    return STATUS_OK;
}
