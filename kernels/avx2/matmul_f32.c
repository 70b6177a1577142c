/* f32 and bf16 matrices: kernels/lanes/matmul_f32.h with 16 lanes in two registers. Eight accumulators of the 16 registers: as many as
 * two multiply-adds a cycle of latency 4 need. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/lanes.h"

#define VARIANT(name) name##_avx2
#define ROWS_S1 1
#define ROWS_S2 2
#define ROWS_S4 0
#include "kernels/lanes/matmul_f32.h"
