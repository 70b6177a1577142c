/* What this machine can do at best, for comparison with the kernels (`hearth bench kernels`): plain reading, and the widest dot instruction
 * it has without touching memory. Both run on the calling thread. */
#ifndef HEARTH_KERNELS_PROBE_H
#define HEARTH_KERNELS_PROBE_H

#include <stddef.h>
#include <stdint.h>

/* Reads bytes (a multiple of 512 is read, the rest left out) and returns something that depends on all of them. */
uint64_t probe_read(const void *data, size_t bytes);

/* Multiplies and adds int8 in registers, `rounds` times 12 instructions; returns how many multiply-adds that was. */
uint64_t probe_dot(long rounds);

/* The instruction probe_dot uses: "vpdpbusd zmm", "vpdpbusd ymm", "vpmaddubsw ymm", or "none" (probe_dot does nothing then). */
const char *probe_dot_name(void);

#endif
