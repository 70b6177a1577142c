/* Time that only moves forward. A seam: the simulator brings its own clock (docs/ARCHITECTURE.md, section 3). */
#ifndef HEARTH_COMMON_CLOCK_H
#define HEARTH_COMMON_CLOCK_H

#include <stdint.h>

struct clock {
    uint64_t (*now_ns)(struct clock *clock);
};

/* CLOCK_MONOTONIC; lives as long as the process. */
struct clock *clock_monotonic(void);

static inline uint64_t clock_now_ns(struct clock *clock)
{
    return clock->now_ns(clock);
}

#endif
