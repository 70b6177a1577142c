/* What the readers share; not for those who use them. */
#ifndef HEARTH_NODE_BLOCK_READER_INTERNAL_H
#define HEARTH_NODE_BLOCK_READER_INTERNAL_H

#include <time.h>

#include "common/check.h"
#include "common/clock.h"
#include "node/block_reader.h"

static inline uint64_t block_now_ns(void)
{
    return clock_now_ns(clock_monotonic());
}

static inline uint64_t block_deadline_ns(uint64_t timeout_ns)
{
    uint64_t now = block_now_ns();
    return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

/* Seconds are capped at some years: time_t and the kernel know no UINT64_MAX. */
static inline struct timespec block_timespec(uint64_t ns)
{
    uint64_t seconds = ns / 1000000000u;
    return (struct timespec){(time_t)(seconds > 1u << 30 ? 1u << 30 : seconds), (long)(ns % 1000000000u)};
}

/* What O_DIRECT asks for and the contract says; a caller that breaks it is a defect here, not a condition of the machine. */
static inline void block_read_check(const struct block_read *read)
{
    CHECK(read->bytes > 0 && read->bytes <= BLOCK_READ_BYTES_MAX);
    CHECK(read->offset % BLOCK_ALIGN_BYTES == 0 && read->bytes % BLOCK_ALIGN_BYTES == 0 && (uintptr_t)read->into % BLOCK_ALIGN_BYTES == 0);
    CHECK(read->store >= 0 && read->store < BLOCK_STORES_MAX);
}

#endif
