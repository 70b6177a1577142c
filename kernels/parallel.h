/* The only place with threads in the arithmetic: parallel_for splits outputs, never a sum, so the number of threads never changes a bit.
 * Called from one thread at a time (the stage's compute thread), which works too, and never from inside a part. */
#ifndef HEARTH_KERNELS_PARALLEL_H
#define HEARTH_KERNELS_PARALLEL_H

/* Cores that this process may use (its affinity, not the machine's count), at least 1. */
int parallel_cores(void);

/* n_threads >= 1; set before the first parallel_for, again at any time between two. */
void parallel_set_threads(int n_threads);
int parallel_threads(void);

/* Calls fn(ctx, begin, end) on disjoint ranges that cover [0, n); range borders are multiples of `grain` (>= 1). fn may also run entirely here. */
void parallel_for(int n, int grain, void (*fn)(void *ctx, int begin, int end), void *ctx);

#endif
