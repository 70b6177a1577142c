/* The AVX2 variants; contracts are in kernels/kernels.h. */
#ifndef HEARTH_KERNELS_AVX2_H
#define HEARTH_KERNELS_AVX2_H

#include "kernels/kernels.h"

matmul_fn matmul_f32_avx2, matmul_bf16_avx2, matmul_int8_avx2, matmul_int4_avx2;
matmul_fn matmul_int8_avx_vnni, matmul_int4_avx_vnni; /* 256-bit vpdpbusd: CPU_AVX_VNNI */
quantize_row_fn quantize_row_avx2;
rms_norm_fn rms_norm_avx2;
layer_norm_fn layer_norm_avx2;
softmax_fn softmax_avx2;
silu_mul_fn silu_mul_avx2;
mix_rows_fn mix_rows_avx2;

/* kernels/probe.h */
uint64_t probe_read_avx2(const void *data, size_t bytes);
uint64_t probe_dot_avx2(long rounds);
uint64_t probe_dot_avx_vnni(long rounds);

#endif
