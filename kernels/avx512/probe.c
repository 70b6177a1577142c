/* What the machine can do at best with 512-bit registers. */
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/lanes.h"

uint64_t probe_read_avx512(const void *data, size_t bytes)
{
    const char *p = data;
    __m512i sums[8];
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        sums[k] = _mm512_setzero_si512();
    for (size_t i = 0; i + sizeof sums <= bytes; i += sizeof sums)
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            sums[k] = _mm512_add_epi64(sums[k], _mm512_loadu_si512(p + i + 64 * (size_t)k));
#pragma GCC unroll 8
    for (int k = 1; k < 8; k++)
        sums[0] = _mm512_add_epi64(sums[0], sums[k]);
    return (uint64_t)_mm512_reduce_add_epi64(sums[0]);
}

/* Twelve independent sums: two units of latency 5 need ten. */
uint64_t probe_dot_avx512(long rounds)
{
    __m512i u = _mm512_set1_epi8(3), s = _mm512_set1_epi8(-1), sums[12];
#pragma GCC unroll 12
    for (int k = 0; k < 12; k++)
        sums[k] = _mm512_setzero_si512();
    for (long i = 0; i < rounds; i++)
#pragma GCC unroll 12
        for (int k = 0; k < 12; k++)
            __asm__ volatile("vpdpbusd %1, %2, %0" : "+v"(sums[k]) : "v"(s), "v"(u));
    return (uint64_t)rounds * 12 * 64;
}
