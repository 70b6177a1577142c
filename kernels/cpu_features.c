#include "kernels/cpu_features.h"

#include <stddef.h>

#if defined(__x86_64__)
#include <cpuid.h>

static int has_avx_vnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

unsigned cpu_features(void)
{
    __builtin_cpu_init();
    unsigned features = 0;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        features |= CPU_AVX2;
    if ((features & CPU_AVX2) && has_avx_vnni())
        features |= CPU_AVX_VNNI;
    if ((features & CPU_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
        features |= CPU_AVX512;
    return features;
}

enum status cpu_check_minimum(struct error *err)
{
    __builtin_cpu_init();
    const char *missing = !__builtin_cpu_supports("avx2")  ? "AVX2"
                          : !__builtin_cpu_supports("fma") ? "FMA"
                          : !__builtin_cpu_supports("bmi2") ? "BMI2"
                                                            : NULL;
    unsigned a, b, c = 0, d;
    if (!missing && !(__get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1)))
        missing = "F16C";
    if (missing)
        return error_set(err, STATUS_UNSUPPORTED, "this CPU has no %s; Hearth needs x86-64-v3 (Intel Haswell, AMD Zen or newer)", missing);
    return STATUS_OK;
}

#else

unsigned cpu_features(void)
{
    return 0;
}

enum status cpu_check_minimum(struct error *err)
{
    (void)err;
    return STATUS_OK; /* fused multiply-add is part of AArch64; the scalar kernels need nothing more */
}

#endif
