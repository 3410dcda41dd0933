// The list of all tiled GEMM kernels. Kernel files instantiate it; choose_config.cpp and choose_sm90.cpp build their
// tables from it.
//   kernel        name; also the name in a pack's manifest
//   Type          the weights: DType::k<Type>
//   kXBits        bits of rounded x: 8, or 16 as two bytes
//   kTileRows     rows of x in a tile; kWideRows in LB_GEMM_WIDE* and LB_GEMM_FP4, kFp8Rows in LB_GEMM_FP8*
//   kTileOuts     outputs in a tile; kFp8Outs in LB_GEMM_FP8*, kFp4Outs in LB_GEMM_FP4; 128 in the other lists,
//                 except where choose_config.cpp doubles it
//   kMinBlocks    launch bound: min blocks per SM
//   kChunkClocks  clocks of an SM per chunk of a tile with all SMs busy, measured on an H100 (docs/kernels/gemm.md);
//                 F8_E4M3: predicted
#pragma once

#include "gpu/gemm/shape.h"

// clang-format off: one row per line

// x and codes are bytes: X(kernel, Type, kXBits, kTileRows, kMinBlocks)
#define LB_GEMM_Q8_0(X) \
  X(gemm_q8_0_int8_8_kernel,   Q8_0, 8,  8,  2) \
  X(gemm_q8_0_int8_16_kernel,  Q8_0, 8,  16, 2) \
  X(gemm_q8_0_int8_24_kernel,  Q8_0, 8,  24, 2) \
  X(gemm_q8_0_int8_32_kernel,  Q8_0, 8,  32, 2) \
  X(gemm_q8_0_int8_48_kernel,  Q8_0, 8,  48, 1) \
  X(gemm_q8_0_int16_16_kernel, Q8_0, 16, 16, 2) \
  X(gemm_q8_0_int16_32_kernel, Q8_0, 16, 32, 1)
#define LB_GEMM_Q8_0_64(X) \
  X(gemm_q8_0_int8_64_kernel, Q8_0, 8, 64, 1)
#define LB_GEMM_Q4_0(X) \
  X(gemm_q4_0_int8_8_kernel,   Q4_0, 8,  8,  2) \
  X(gemm_q4_0_int8_16_kernel,  Q4_0, 8,  16, 2) \
  X(gemm_q4_0_int8_24_kernel,  Q4_0, 8,  24, 2) \
  X(gemm_q4_0_int8_32_kernel,  Q4_0, 8,  32, 2) \
  X(gemm_q4_0_int8_48_kernel,  Q4_0, 8,  48, 1) \
  X(gemm_q4_0_int8_64_kernel,  Q4_0, 8,  64, 1) \
  X(gemm_q4_0_int16_16_kernel, Q4_0, 16, 16, 2) \
  X(gemm_q4_0_int16_32_kernel, Q4_0, 16, 32, 1)

#define LB_GEMM_Q4_K(X) \
  X(gemm_q4_k_int8_64_kernel,  Q4_K, 8,  64, 1) \
  X(gemm_q4_k_int16_16_kernel, Q4_K, 16, 16, 2) \
  X(gemm_q4_k_int16_32_kernel, Q4_K, 16, 32, 1)

#define LB_GEMM_Q6_K(X) \
  X(gemm_q6_k_int8_48_kernel,  Q6_K, 8,  48, 1) \
  X(gemm_q6_k_int8_64_kernel,  Q6_K, 8,  64, 1) \
  X(gemm_q6_k_int16_16_kernel, Q6_K, 16, 16, 2) \
  X(gemm_q6_k_int16_32_kernel, Q6_K, 16, 32, 1)

// Smaller tiles of K-quants, where skinny GEMM does not multiply them
#define LB_GEMM_K_SMALL(X) \
  X(gemm_q4_k_int8_8_kernel,   Q4_K, 8,  8,  2) \
  X(gemm_q4_k_int8_16_kernel,  Q4_K, 8,  16, 2) \
  X(gemm_q4_k_int8_24_kernel,  Q4_K, 8,  24, 2) \
  X(gemm_q4_k_int8_32_kernel,  Q4_K, 8,  32, 2) \
  X(gemm_q4_k_int8_48_kernel,  Q4_K, 8,  48, 1) \
  X(gemm_q6_k_int8_8_kernel,   Q6_K, 8,  8,  2) \
  X(gemm_q6_k_int8_16_kernel,  Q6_K, 8,  16, 2) \
  X(gemm_q6_k_int8_24_kernel,  Q6_K, 8,  24, 2) \
  X(gemm_q6_k_int8_32_kernel,  Q6_K, 8,  32, 2)

// x and weights are 16-bit numbers: X(kernel, Type, kTileRows)
#define LB_GEMM_PLAIN(X) \
  X(gemm_f16_16_kernel,  F16,  16) \
  X(gemm_f16_32_kernel,  F16,  32) \
  X(gemm_f16_64_kernel,  F16,  64) \
  X(gemm_bf16_16_kernel, BF16, 16) \
  X(gemm_bf16_32_kernel, BF16, 32) \
  X(gemm_bf16_64_kernel, BF16, 64)

// fp32: X(kernel, Type)
#define LB_GEMM_FLOAT(X) X(gemm_f32_kernel, F32)

// More than 64 rows, 16-bit x: X(kernel, Type)
#define LB_GEMM_WIDE_QUANTISED(X) \
  X(gemm_wide_q8_0_kernel, Q8_0) \
  X(gemm_wide_q4_0_kernel, Q4_0) \
  X(gemm_wide_q4_k_kernel, Q4_K) \
  X(gemm_wide_q6_k_kernel, Q6_K)
#define LB_GEMM_WIDE_PLAIN(X) \
  X(gemm_wide_f16_kernel,  F16) \
  X(gemm_wide_bf16_kernel, BF16)

// More than 64 rows, 16-bit or fp8 x, wgmma: X(kernel, Type, kTileOuts, kTileRows, kChunkClocks)
#define LB_GEMM_SM90(X) \
  X(gemm_sm90_q8_0_256x128_kernel, Q8_0, 256, 128, 3550) \
  X(gemm_sm90_q8_0_256x64_kernel,  Q8_0, 256, 64,  3160) \
  X(gemm_sm90_q8_0_128x128_kernel, Q8_0, 128, 128, 1990) \
  X(gemm_sm90_q4_0_256x128_kernel, Q4_0, 256, 128, 3200) \
  X(gemm_sm90_q4_0_256x64_kernel,  Q4_0, 256, 64,  2430) \
  X(gemm_sm90_q4_0_128x128_kernel, Q4_0, 128, 128, 1730) \
  X(gemm_sm90_q4_k_256x128_kernel, Q4_K, 256, 128, 3190) \
  X(gemm_sm90_q4_k_256x64_kernel,  Q4_K, 256, 64,  2430) \
  X(gemm_sm90_q4_k_128x128_kernel, Q4_K, 128, 128, 1720) \
  X(gemm_sm90_q6_k_256x64_kernel,  Q6_K, 256, 64,  4160) \
  X(gemm_sm90_q6_k_128x128_kernel, Q6_K, 128, 128, 2050) \
  X(gemm_sm90_f16_256x128_kernel,  F16,  256, 128, 2040) \
  X(gemm_sm90_f16_256x64_kernel,   F16,  256, 64,  1780) \
  X(gemm_sm90_f16_128x128_kernel,  F16,  128, 128, 1260) \
  X(gemm_sm90_bf16_256x128_kernel, BF16, 256, 128, 2040) \
  X(gemm_sm90_bf16_256x64_kernel,  BF16, 256, 64,  1780) \
  X(gemm_sm90_bf16_128x128_kernel, BF16, 128, 128, 1260) \
  X(gemm_sm90_f8_e4m3_256x128_kernel, F8_E4M3, 256, 128, 2040) \
  X(gemm_sm90_f8_e4m3_128x128_kernel, F8_E4M3, 128, 128, 1260)

// The same with tiles of 128 gates and their 128 factors, x 128 rows: X(kernel, Type, kChunkClocks)
#define LB_GEMM_SM90_GATED(X) \
  X(gemm_sm90_q8_0_gated_kernel, Q8_0, 3550) \
  X(gemm_sm90_q4_0_gated_kernel, Q4_0, 3200) \
  X(gemm_sm90_q4_k_gated_kernel, Q4_K, 3190) \
  X(gemm_sm90_f16_gated_kernel,  F16,  2040) \
  X(gemm_sm90_bf16_gated_kernel, BF16, 2040) \
  X(gemm_sm90_f8_e4m3_gated_kernel, F8_E4M3, 2040)

// More than 64 rows, fp8 x, mma.sync: X(kernel, Type)
#define LB_GEMM_FP8_SM89(X) X(gemm_sm89_f8_e4m3_kernel, F8_E4M3)
#define LB_GEMM_FP8_SM120(X) X(gemm_sm120_f8_e4m3_kernel, F8_E4M3)

// More than 64 rows, x in NVFP4: X(kernel, Type)
#define LB_GEMM_FP4(X) X(gemm_sm120_nvfp4_kernel, NVFP4)

// Results of ops as x of the wgmma kernels: X(kernel, Op, To)
#define LB_CAST_RESULTS(X) \
  X(cast_rms_norm_f16_kernel,         RmsNorm,      ToF16) \
  X(cast_rms_norm_f8_kernel,          RmsNorm,      ToF8) \
  X(cast_rms_norm_plain_kernel,       RmsNorm,      ToPlain) \
  X(cast_gated_rms_norm_f16_kernel,   GatedRmsNorm, ToF16) \
  X(cast_gated_rms_norm_f8_kernel,    GatedRmsNorm, ToF8) \
  X(cast_gated_rms_norm_plain_kernel, GatedRmsNorm, ToPlain) \
  X(cast_swiglu_f16_kernel,           SwiGlu,       ToF16) \
  X(cast_swiglu_f8_kernel,            SwiGlu,       ToF8) \
  X(cast_swiglu_plain_kernel,         SwiGlu,       ToPlain)

// clang-format on
