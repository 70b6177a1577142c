/* What this CPU can do. */
#ifndef HEARTH_KERNELS_CPU_FEATURES_H
#define HEARTH_KERNELS_CPU_FEATURES_H

#include "common/error.h"

enum cpu_feature {
    CPU_AVX2 = 1 << 0,   /* x86-64-v3: AVX2, FMA, F16C, BMI2 */
    CPU_AVX_VNNI = 1 << 1,
    CPU_AVX512 = 1 << 2, /* F, BW, VL, DQ and VNNI together */
};

unsigned cpu_features(void);

/* Fails by name when the machine is below what Hearth needs: x86-64-v3. On ARM every 64-bit CPU runs the scalar kernels. */
enum status cpu_check_minimum(struct error *err);

#endif
