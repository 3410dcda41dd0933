// The list of all expert GEMV kernels. Kernel files instantiate it; choose.cpp builds its table from it.
//   kernel   name; also the name in a pack's manifest
//   Type     the weights: DType::k<Type>
//   kXBits   bits of rounded x; 0: x is fp32
//   Format   how a thread reads and multiplies the weights (gpu/gemv/formats*.h)
#pragma once

// clang-format off: one row per line

// X(kernel, Type, kXBits, Format)
#define LB_EXPERT_KERNELS_PLAIN(X) \
  X(expert_gemv_f32_kernel,  F32,  0, PlainFormat<DType::kF32>) \
  X(expert_gemv_f16_kernel,  F16,  0, PlainFormat<DType::kF16>) \
  X(expert_gemv_bf16_kernel, BF16, 0, PlainFormat<DType::kBF16>)

#define LB_EXPERT_KERNELS_QUANTISED(X) \
  X(expert_gemv_q8_0_int8_kernel, Q8_0, 8, Q8_0Format<8>) \
  X(expert_gemv_q8_0_int16_kernel, Q8_0, 16, Q8_0Format<16>) \
  X(expert_gemv_q4_0_int8_kernel, Q4_0, 8, Block32<DType::kQ4_0>::Bits<8>) \
  X(expert_gemv_q4_0_int16_kernel, Q4_0, 16, Block32<DType::kQ4_0>::Bits<16>) \
  X(expert_gemv_q4_k_int8_kernel, Q4_K, 8, Block32<DType::kQ4_K>::Bits<8>) \
  X(expert_gemv_q4_k_int16_kernel, Q4_K, 16, Block32<DType::kQ4_K>::Bits<16>) \
  X(expert_gemv_q5_k_int8_kernel, Q5_K, 8, Block32<DType::kQ5_K>::Bits<8>) \
  X(expert_gemv_q5_k_int16_kernel, Q5_K, 16, Block32<DType::kQ5_K>::Bits<16>) \
  X(expert_gemv_q6_k_int8_kernel, Q6_K, 8, Q6_KFormat<8>) \
  X(expert_gemv_q6_k_int16_kernel, Q6_K, 16, Q6_KFormat<16>) \
  X(expert_gemv_mxfp4_int8_kernel, MXFP4, 8, Block32<DType::kMXFP4>::Bits<8>) \
  X(expert_gemv_mxfp4_int16_kernel, MXFP4, 16, Block32<DType::kMXFP4>::Bits<16>) \
  X(expert_gemv_nvfp4_int8_kernel, NVFP4, 8, NVFP4Format<8>) \
  X(expert_gemv_nvfp4_int16_kernel, NVFP4, 16, NVFP4Format<16>) \
  X(expert_gemv_f8_e4m3_int8_kernel, F8_E4M3, 8, F8_E4M3Format<8>) \
  X(expert_gemv_f8_e4m3_int16_kernel, F8_E4M3, 16, F8_E4M3Format<16>) \
  X(expert_gemv_iq4_xs_int8_kernel, IQ4_XS, 8, Block32<DType::kIQ4_XS>::Bits<8>) \
  X(expert_gemv_iq4_xs_int16_kernel, IQ4_XS, 16, Block32<DType::kIQ4_XS>::Bits<16>)
