/* The scalar versions; contracts are in kernels/kernels.h. */
#ifndef HEARTH_KERNELS_SCALAR_H
#define HEARTH_KERNELS_SCALAR_H

#include "kernels/kernels.h"

matmul_fn matmul_f32_scalar, matmul_bf16_scalar, matmul_int8_scalar, matmul_int4_scalar;
quantize_row_fn quantize_row_scalar;
rms_norm_fn rms_norm_scalar;
layer_norm_fn layer_norm_scalar;
softmax_fn softmax_scalar;
silu_mul_fn silu_mul_scalar;
mix_rows_fn mix_rows_scalar;
axpy_fn axpy_scalar;

#endif
