/* SplitMix64 (Steele, Lea, Flood, 2014): small, the same on every machine. For measurements, made-up data and tests; nothing secret. */
#ifndef HEARTH_COMMON_SPLITMIX64_H
#define HEARTH_COMMON_SPLITMIX64_H

#include <stdint.h>

#define SPLITMIX64_STEP UINT64_C(0x9e3779b97f4a7c15)

/* Its output function: a bijection that changes half of the bits for any bit of x. */
static inline uint64_t splitmix64_mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* The next number; *state may begin with anything. */
static inline uint64_t splitmix64(uint64_t *state)
{
    return splitmix64_mix(*state += SPLITMIX64_STEP);
}

/* The same in [0, 1). */
static inline double splitmix64_unit(uint64_t *state)
{
    return (double)(splitmix64(state) >> 11) * 0x1p-53;
}

#endif
