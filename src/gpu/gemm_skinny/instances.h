// The list of all skinny GEMM kernels. Kernel files instantiate it; choose_config.cpp builds its table from it.
//   kernel       name; also the name in a pack's manifest
//   Type         the weights: DType::k<Type>, read by the format Skinny<Type>
//   kTileRows    rows of x, a multiple of 8; choose() takes the type's first entry with enough rows
//   kUnits       units (16 outputs, 256 values) that a warp holds in registers
// LB_GEMM_SKINNY_PAIRS: kernels for a group of two types, First before Second.
#pragma once

// clang-format off: one row per line

// X(kernel, Type, kTileRows, kUnits)
#define LB_GEMM_SKINNY_PLAIN(X) \
  X(gemm_skinny_bf16_8_kernel,  BF16, 8,  1) \
  X(gemm_skinny_bf16_16_kernel, BF16, 16, 1) \
  X(gemm_skinny_bf16_24_kernel, BF16, 24, 1) \
  X(gemm_skinny_bf16_32_kernel, BF16, 32, 1) \
  X(gemm_skinny_f16_8_kernel,   F16,  8,  1) \
  X(gemm_skinny_f16_16_kernel,  F16,  16, 1) \
  X(gemm_skinny_f16_24_kernel,  F16,  24, 1) \
  X(gemm_skinny_f16_32_kernel,  F16,  32, 1)

#define LB_GEMM_SKINNY_32(X) \
  X(gemm_skinny_q8_0_8_kernel,    Q8_0,   8,  2) \
  X(gemm_skinny_q8_0_16_kernel,   Q8_0,   16, 2) \
  X(gemm_skinny_q8_0_24_kernel,   Q8_0,   24, 2) \
  X(gemm_skinny_q8_0_32_kernel,   Q8_0,   32, 2) \
  X(gemm_skinny_q4_0_16_kernel,   Q4_0,   16, 2) \
  X(gemm_skinny_q4_0_24_kernel,   Q4_0,   24, 2) \
  X(gemm_skinny_q4_0_32_kernel,   Q4_0,   32, 2) \
  X(gemm_skinny_q4_1_16_kernel,   Q4_1,   16, 2) \
  X(gemm_skinny_q4_1_24_kernel,   Q4_1,   24, 2) \
  X(gemm_skinny_q4_1_32_kernel,   Q4_1,   32, 2) \
  X(gemm_skinny_q5_0_16_kernel,   Q5_0,   16, 2) \
  X(gemm_skinny_q5_0_24_kernel,   Q5_0,   24, 2) \
  X(gemm_skinny_q5_0_32_kernel,   Q5_0,   32, 2) \
  X(gemm_skinny_q5_1_16_kernel,   Q5_1,   16, 2) \
  X(gemm_skinny_q5_1_24_kernel,   Q5_1,   24, 2) \
  X(gemm_skinny_q5_1_32_kernel,   Q5_1,   32, 2) \
  X(gemm_skinny_iq4_nl_16_kernel, IQ4_NL, 16, 2) \
  X(gemm_skinny_iq4_nl_24_kernel, IQ4_NL, 24, 2) \
  X(gemm_skinny_iq4_nl_32_kernel, IQ4_NL, 32, 2) \
  X(gemm_skinny_mxfp4_16_kernel,  MXFP4,  16, 2) \
  X(gemm_skinny_mxfp4_24_kernel,  MXFP4,  24, 2) \
  X(gemm_skinny_mxfp4_32_kernel,  MXFP4,  32, 2) \
  X(gemm_skinny_nvfp4_8_kernel,   NVFP4,  8,  2) \
  X(gemm_skinny_nvfp4_16_kernel,  NVFP4,  16, 2) \
  X(gemm_skinny_nvfp4_24_kernel,  NVFP4,  24, 2) \
  X(gemm_skinny_nvfp4_32_kernel,  NVFP4,  32, 2) \
  X(gemm_skinny_nvfp4_48_kernel,  NVFP4,  48, 1) \
  X(gemm_skinny_f8_e4m3_8_kernel,  F8_E4M3, 8,  2) \
  X(gemm_skinny_f8_e4m3_16_kernel, F8_E4M3, 16, 2) \
  X(gemm_skinny_f8_e4m3_24_kernel, F8_E4M3, 24, 2) \
  X(gemm_skinny_f8_e4m3_32_kernel, F8_E4M3, 32, 1)

#define LB_GEMM_SKINNY_256(X) \
  X(gemm_skinny_q4_k_8_kernel,    Q4_K,   8,  2) \
  X(gemm_skinny_q4_k_16_kernel,   Q4_K,   16, 2) \
  X(gemm_skinny_q4_k_24_kernel,   Q4_K,   24, 2) \
  X(gemm_skinny_q4_k_32_kernel,   Q4_K,   32, 2) \
  X(gemm_skinny_q4_k_48_kernel,   Q4_K,   48, 1) \
  X(gemm_skinny_q5_k_8_kernel,    Q5_K,   8,  2) \
  X(gemm_skinny_q5_k_16_kernel,   Q5_K,   16, 2) \
  X(gemm_skinny_q5_k_24_kernel,   Q5_K,   24, 2) \
  X(gemm_skinny_q5_k_32_kernel,   Q5_K,   32, 1) \
  X(gemm_skinny_q6_k_8_kernel,    Q6_K,   8,  2) \
  X(gemm_skinny_q6_k_16_kernel,   Q6_K,   16, 2) \
  X(gemm_skinny_q6_k_24_kernel,   Q6_K,   24, 2) \
  X(gemm_skinny_q6_k_32_kernel,   Q6_K,   32, 1) \
  X(gemm_skinny_q3_k_16_kernel,   Q3_K,   16, 2) \
  X(gemm_skinny_q3_k_24_kernel,   Q3_K,   24, 2) \
  X(gemm_skinny_q3_k_32_kernel,   Q3_K,   32, 2) \
  X(gemm_skinny_q2_k_16_kernel,   Q2_K,   16, 2) \
  X(gemm_skinny_q2_k_24_kernel,   Q2_K,   24, 2) \
  X(gemm_skinny_q2_k_32_kernel,   Q2_K,   32, 2) \
  X(gemm_skinny_iq4_xs_16_kernel, IQ4_XS, 16, 2) \
  X(gemm_skinny_iq4_xs_24_kernel, IQ4_XS, 24, 2) \
  X(gemm_skinny_iq4_xs_32_kernel, IQ4_XS, 32, 2)

// X(kernel, First, Second, kTileRows, kFirstUnits, kSecondUnits)
#define LB_GEMM_SKINNY_PAIRS(X) \
  X(gemm_skinny_q4_k_q6_k_8_kernel,  Q4_K, Q6_K, 8,  2, 2) \
  X(gemm_skinny_q4_k_q6_k_16_kernel, Q4_K, Q6_K, 16, 2, 2) \
  X(gemm_skinny_q4_k_q6_k_24_kernel, Q4_K, Q6_K, 24, 2, 2) \
  X(gemm_skinny_q4_k_q6_k_32_kernel, Q4_K, Q6_K, 32, 2, 1) \
  X(gemm_skinny_q5_k_q6_k_8_kernel,  Q5_K, Q6_K, 8,  2, 2) \
  X(gemm_skinny_q5_k_q6_k_16_kernel, Q5_K, Q6_K, 16, 2, 2) \
  X(gemm_skinny_q5_k_q6_k_24_kernel, Q5_K, Q6_K, 24, 2, 2) \
  X(gemm_skinny_q5_k_q6_k_32_kernel, Q5_K, Q6_K, 32, 1, 1)

// clang-format on
