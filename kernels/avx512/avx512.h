/* The AVX512 variants; contracts are in kernels/kernels.h. */
#ifndef HEARTH_KERNELS_AVX512_H
#define HEARTH_KERNELS_AVX512_H

#include "kernels/kernels.h"

matmul_fn matmul_f32_avx512, matmul_bf16_avx512, matmul_int8_avx512, matmul_int4_avx512;
quantize_row_fn quantize_row_avx512;
rms_norm_fn rms_norm_avx512;
layer_norm_fn layer_norm_avx512;
softmax_fn softmax_avx512;
silu_mul_fn silu_mul_avx512;
mix_rows_fn mix_rows_avx512;
axpy_fn axpy_avx512;

/* kernels/probe.h */
uint64_t probe_read_avx512(const void *data, size_t bytes);
uint64_t probe_dot_avx512(long rounds);

#endif
