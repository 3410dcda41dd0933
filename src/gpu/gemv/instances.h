// The list of all GEMV kernels. Kernel files instantiate it; choose.cpp builds its tables from it.
//
// An entry of LB_GEMV_KERNELS_* is one weight type and one form of x. A thread holds one piece of a row (16 bytes of
// codes, or of plain numbers) in the kernel, and kWidePieces in the wide kernel for longer rows:
//   kernel, wide_kernel   names; also the names in a pack's manifest
//   Type                  the weights: DType::k<Type>, and the format <Type> of the kernel file
//   kXBits                bits of rounded x; 0: x is fp32
//   kBatch, kWideBatch    weight rows that a team loads ahead
//   kWideThreads          launch bound of the wide kernel; the other kernel has kGemvThreads, two blocks per SM
// The sm_90 kernels read 8-bit x and bring weights through shared memory:
//   kernel, Type          as above
//   Format                the weights' format, with scales decoded before x is ready
#pragma once

#include "gpu/gemv/shape.h"

// clang-format off: one row per line

// X(kernel, wide_kernel, Type, kXBits, kBatch, kWidePieces, kWideBatch, kWideThreads)
#define LB_GEMV_KERNELS_PLAIN(X) \
  X(gemv_f32_kernel,  gemv_f32_wide_kernel,  F32,  0, 8, 2, 4, kGemvWideThreads) \
  X(gemv_f16_kernel,  gemv_f16_wide_kernel,  F16,  0, 8, 2, 4, kGemvWideThreads) \
  X(gemv_bf16_kernel, gemv_bf16_wide_kernel, BF16, 0, 8, 2, 4, kGemvWideThreads)

#define LB_GEMV_KERNELS_32(X) \
  X(gemv_q8_0_int8_kernel,    gemv_q8_0_int8_wide_kernel,    Q8_0,   8,  8, 2, 4, kGemvWideQuantThreads) \
  X(gemv_q8_0_int16_kernel,   gemv_q8_0_int16_wide_kernel,   Q8_0,   16, 8, 2, 4, kGemvWideQuantThreads) \
  X(gemv_q4_0_int8_kernel,    gemv_q4_0_int8_wide_kernel,    Q4_0,   8,  8, 1, 8, kGemvWideQuantThreads) \
  X(gemv_q4_0_int16_kernel,   gemv_q4_0_int16_wide_kernel,   Q4_0,   16, 8, 1, 8, kGemvWideQuantThreads) \
  X(gemv_q4_1_int8_kernel,    gemv_q4_1_int8_wide_kernel,    Q4_1,   8,  8, 1, 8, kGemvWideQuantThreads) \
  X(gemv_q4_1_int16_kernel,   gemv_q4_1_int16_wide_kernel,   Q4_1,   16, 8, 1, 8, kGemvWideQuantThreads) \
  X(gemv_q5_0_int8_kernel,    gemv_q5_0_int8_wide_kernel,    Q5_0,   8,  8, 1, 4, kGemvWideQuantThreads) \
  X(gemv_q5_0_int16_kernel,   gemv_q5_0_int16_wide_kernel,   Q5_0,   16, 8, 1, 4, kGemvWideQuantThreads) \
  X(gemv_q5_1_int8_kernel,    gemv_q5_1_int8_wide_kernel,    Q5_1,   8,  8, 1, 4, kGemvWideQuantThreads) \
  X(gemv_q5_1_int16_kernel,   gemv_q5_1_int16_wide_kernel,   Q5_1,   16, 8, 1, 4, kGemvWideQuantThreads) \
  X(gemv_iq4_nl_int8_kernel,  gemv_iq4_nl_int8_wide_kernel,  IQ4_NL, 8,  8, 1, 4, kGemvWideQuantThreads) \
  X(gemv_iq4_nl_int16_kernel, gemv_iq4_nl_int16_wide_kernel, IQ4_NL, 16, 8, 1, 4, kGemvWideQuantThreads) \
  X(gemv_mxfp4_int8_kernel,   gemv_mxfp4_int8_wide_kernel,   MXFP4,  8,  8, 1, 4, kGemvWideQuantThreads) \
  X(gemv_mxfp4_int16_kernel,  gemv_mxfp4_int16_wide_kernel,  MXFP4,  16, 8, 1, 4, kGemvWideQuantThreads) \
  X(gemv_nvfp4_int8_kernel,   gemv_nvfp4_int8_wide_kernel,   NVFP4,  8,  8, 1, 4, kGemvWideQuantThreads) \
  X(gemv_nvfp4_int16_kernel,  gemv_nvfp4_int16_wide_kernel,  NVFP4,  16, 8, 1, 4, kGemvWideQuantThreads) \
  X(gemv_f8_e4m3_int8_kernel,  gemv_f8_e4m3_int8_wide_kernel,  F8_E4M3, 8,  8, 2, 2, kGemvWideQuantThreads) \
  X(gemv_f8_e4m3_int16_kernel, gemv_f8_e4m3_int16_wide_kernel, F8_E4M3, 16, 8, 2, 2, kGemvWideQuantThreads)

#define LB_GEMV_KERNELS_256(X) \
  X(gemv_q2_k_int8_kernel,    gemv_q2_k_int8_wide_kernel,    Q2_K,   8,  4, 1, 4, kGemvWideQuantThreads) \
  X(gemv_q2_k_int16_kernel,   gemv_q2_k_int16_wide_kernel,   Q2_K,   16, 4, 1, 4, kGemvWideThreads) \
  X(gemv_q3_k_int8_kernel,    gemv_q3_k_int8_wide_kernel,    Q3_K,   8,  4, 1, 4, kGemvWideQuantThreads) \
  X(gemv_q3_k_int16_kernel,   gemv_q3_k_int16_wide_kernel,   Q3_K,   16, 4, 1, 4, kGemvWideThreads) \
  X(gemv_q4_k_int8_kernel,    gemv_q4_k_int8_wide_kernel,    Q4_K,   8,  8, 1, 4, kGemvWideQuantThreads) \
  X(gemv_q4_k_int16_kernel,   gemv_q4_k_int16_wide_kernel,   Q4_K,   16, 8, 1, 4, kGemvWideQuantThreads) \
  X(gemv_q5_k_int8_kernel,    gemv_q5_k_int8_wide_kernel,    Q5_K,   8,  4, 1, 2, kGemvWideQuantThreads) \
  X(gemv_q5_k_int16_kernel,   gemv_q5_k_int16_wide_kernel,   Q5_K,   16, 4, 1, 2, kGemvWideQuantThreads) \
  X(gemv_q6_k_int8_kernel,    gemv_q6_k_int8_wide_kernel,    Q6_K,   8,  4, 1, 2, kGemvWideQuantThreads) \
  X(gemv_q6_k_int16_kernel,   gemv_q6_k_int16_wide_kernel,   Q6_K,   16, 4, 1, 4, kGemvWideQuantThreads) \
  X(gemv_iq4_xs_int8_kernel,  gemv_iq4_xs_int8_wide_kernel,  IQ4_XS, 8,  8, 1, 4, kGemvWideQuantThreads) \
  X(gemv_iq4_xs_int16_kernel, gemv_iq4_xs_int16_wide_kernel, IQ4_XS, 16, 8, 1, 4, kGemvWideQuantThreads)

// X(kernel, Type, Format)
#define LB_GEMV_RING_KERNELS(X) \
  X(gemv_q4_k_int8_ring_kernel, Q4_K, NibbleFormat<DType::kQ4_K>) \
  X(gemv_q6_k_int8_ring_kernel, Q6_K, Q6_KFormat<8>)
#define LB_GEMV_WHOLE_KERNELS(X) \
  X(gemv_q4_k_int8_whole_kernel, Q4_K, NibbleFormat<DType::kQ4_K>)

// clang-format on
