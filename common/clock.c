#include "common/clock.h"

#include <time.h>

static uint64_t monotonic_now_ns(struct clock *clock)
{
    (void)clock;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct clock *clock_monotonic(void)
{
    static struct clock clock = {monotonic_now_ns};
    return &clock;
}
