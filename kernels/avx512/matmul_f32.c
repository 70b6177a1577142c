/* f32 and bf16 matrices: kernels/lanes/matmul_f32.h with 16 lanes in one register. */
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/lanes.h"

#define VARIANT(name) name##_avx512
#define ROWS_S1 1
#define ROWS_S2 4
#define ROWS_S4 4
#include "kernels/lanes/matmul_f32.h"
