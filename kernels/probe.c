#include "kernels/probe.h"

#include <string.h>

#include "kernels/cpu_features.h"

#if defined(__x86_64__)
#include "kernels/avx2/avx2.h"
#include "kernels/avx512/avx512.h"

uint64_t probe_read(const void *data, size_t bytes)
{
    return cpu_features() & CPU_AVX512 ? probe_read_avx512(data, bytes) : probe_read_avx2(data, bytes);
}

uint64_t probe_dot(long rounds)
{
    if (cpu_features() & CPU_AVX512)
        return probe_dot_avx512(rounds);
    return cpu_features() & CPU_AVX_VNNI ? probe_dot_avx_vnni(rounds) : probe_dot_avx2(rounds);
}

const char *probe_dot_name(void)
{
    return cpu_features() & CPU_AVX512 ? "vpdpbusd zmm" : cpu_features() & CPU_AVX_VNNI ? "vpdpbusd ymm" : "vpmaddubsw ymm";
}

#else

uint64_t probe_read(const void *data, size_t bytes)
{
    uint64_t sums[64] = {0};
    for (size_t i = 0; i + sizeof sums <= bytes; i += sizeof sums) {
        uint64_t words[64];
        memcpy(words, (const char *)data + i, sizeof words);
        for (int k = 0; k < 64; k++)
            sums[k] += words[k];
    }
    for (int k = 1; k < 64; k++)
        sums[0] += sums[k];
    return sums[0];
}

uint64_t probe_dot(long rounds)
{
    (void)rounds;
    return 0;
}

const char *probe_dot_name(void)
{
    return "none";
}

#endif
