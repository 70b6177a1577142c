/* What the machine can do at best with 256-bit registers. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/lanes.h"

uint64_t probe_read_avx2(const void *data, size_t bytes)
{
    const char *p = data;
    __m256i sums[8];
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        sums[k] = _mm256_setzero_si256();
    for (size_t i = 0; i + sizeof sums <= bytes; i += sizeof sums)
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            sums[k] = _mm256_add_epi64(sums[k], _mm256_loadu_si256((const __m256i *)(p + i + 32 * (size_t)k)));
    uint64_t words[8][4], all = 0;
    memcpy(words, sums, sizeof words);
    for (int k = 0; k < 32; k++)
        all += words[k / 4][k % 4];
    return all;
}

/* Twelve independent sums: two units of latency 5 need ten. */
uint64_t probe_dot_avx_vnni(long rounds)
{
    __m256i u = _mm256_set1_epi8(3), s = _mm256_set1_epi8(-1), sums[12];
#pragma GCC unroll 12
    for (int k = 0; k < 12; k++)
        sums[k] = _mm256_setzero_si256();
    for (long i = 0; i < rounds; i++)
#pragma GCC unroll 12
        for (int k = 0; k < 12; k++)
            __asm__ volatile("%{vex%} vpdpbusd %1, %2, %0" : "+x"(sums[k]) : "x"(s), "x"(u));
    return (uint64_t)rounds * 12 * 32;
}

/* The three instructions that stand for one vpdpbusd. */
uint64_t probe_dot_avx2(long rounds)
{
    __m256i u = _mm256_set1_epi8(3), s = _mm256_set1_epi8(-1), one = _mm256_set1_epi16(1), sums[12], t;
#pragma GCC unroll 12
    for (int k = 0; k < 12; k++)
        sums[k] = _mm256_setzero_si256();
    for (long i = 0; i < rounds; i++)
#pragma GCC unroll 12
        for (int k = 0; k < 12; k++) {
            __asm__ volatile("vpmaddubsw %1, %2, %0" : "=x"(t) : "x"(s), "x"(u));
            __asm__ volatile("vpmaddwd %1, %2, %0" : "=x"(t) : "x"(t), "x"(one));
            __asm__ volatile("vpaddd %1, %0, %0" : "+x"(sums[k]) : "x"(t));
        }
    return (uint64_t)rounds * 12 * 32;
}
