// The list of all kernels for products of experts. Kernel files instantiate it; choose*.cpp build their tables from it.
//   name     of the kernels: expert_gate_up_<name>_kernel and expert_down_<name>_kernel
//   Type     the weights: DType::k<Type>
//   kXBits   bits of rounded x; 0: x is fp32
//   Format   how a thread reads and multiplies the weights (gpu/gemv/formats*.h)
#pragma once

// clang-format off: one row per line

// X(name, Type, kXBits, Format)
#define LB_EXPERT_KERNELS_PLAIN(X) \
  X(f32,  F32,  0, PlainFormat<DType::kF32>) \
  X(f16,  F16,  0, PlainFormat<DType::kF16>) \
  X(bf16, BF16, 0, PlainFormat<DType::kBF16>)

#define LB_EXPERT_KERNELS_QUANTISED(X) \
  X(q8_0_int8, Q8_0, 8, Q8_0Format<8>) \
  X(q8_0_int16, Q8_0, 16, Q8_0Format<16>) \
  X(q4_0_int8, Q4_0, 8, Block32<DType::kQ4_0>::Bits<8>) \
  X(q4_0_int16, Q4_0, 16, Block32<DType::kQ4_0>::Bits<16>) \
  X(q4_k_int8, Q4_K, 8, Block32<DType::kQ4_K>::Bits<8>) \
  X(q4_k_int16, Q4_K, 16, Block32<DType::kQ4_K>::Bits<16>) \
  X(q5_k_int8, Q5_K, 8, Block32<DType::kQ5_K>::Bits<8>) \
  X(q5_k_int16, Q5_K, 16, Block32<DType::kQ5_K>::Bits<16>) \
  X(q6_k_int8, Q6_K, 8, Q6_KFormat<8>) \
  X(q6_k_int16, Q6_K, 16, Q6_KFormat<16>) \
  X(mxfp4_int8, MXFP4, 8, Block32<DType::kMXFP4>::Bits<8>) \
  X(mxfp4_int16, MXFP4, 16, Block32<DType::kMXFP4>::Bits<16>) \
  X(q5_0_int8, Q5_0, 8, Block32<DType::kQ5_0>::Bits<8>) \
  X(q5_0_int16, Q5_0, 16, Block32<DType::kQ5_0>::Bits<16>) \
  X(q5_1_int8, Q5_1, 8, Block32<DType::kQ5_1>::Bits<8>) \
  X(q5_1_int16, Q5_1, 16, Block32<DType::kQ5_1>::Bits<16>) \
  X(iq4_nl_int8, IQ4_NL, 8, Block32<DType::kIQ4_NL>::Bits<8>) \
  X(iq4_nl_int16, IQ4_NL, 16, Block32<DType::kIQ4_NL>::Bits<16>) \
  X(nvfp4_int8, NVFP4, 8, NVFP4Format<8>) \
  X(nvfp4_int16, NVFP4, 16, NVFP4Format<16>) \
  X(f8_e4m3_int8, F8_E4M3, 8, F8_E4M3Format<8>) \
  X(f8_e4m3_int16, F8_E4M3, 16, F8_E4M3Format<16>) \
  X(iq4_xs_int8, IQ4_XS, 8, Block32<DType::kIQ4_XS>::Bits<8>) \
  X(iq4_xs_int16, IQ4_XS, 16, Block32<DType::kIQ4_XS>::Bits<16>)

// Grouped products: expert_gemm_gate_up_<name>_kernel and expert_gemm_down_<name>_kernel.
//   kTileRows   rows in a tile, a multiple of 16
// x and codes are bytes, read by the format Gemm<Type>: X(name, Type, kTileRows)
#define LB_EXPERT_GEMMS_BYTES(X) \
  X(q8_0_16,   Q8_0,   16) \
  X(q4_0_16,   Q4_0,   16) \
  X(q4_0_64,   Q4_0,   64) \
  X(q4_k_16,   Q4_K,   16) \
  X(q4_k_64,   Q4_K,   64) \
  X(q5_k_16,   Q5_K,   16) \
  X(q5_k_64,   Q5_K,   64) \
  X(q6_k_16,   Q6_K,   16) \
  X(q6_k_64,   Q6_K,   64) \
  X(mxfp4_16,  MXFP4,  16) \
  X(mxfp4_64,  MXFP4,  64) \
  X(nvfp4_16,  NVFP4,  16) \
  X(nvfp4_64,  NVFP4,  64) \
  X(q5_0_16,   Q5_0,   16) \
  X(q5_0_64,   Q5_0,   64) \
  X(q5_1_16,   Q5_1,   16) \
  X(q5_1_64,   Q5_1,   64) \
  X(iq4_nl_16, IQ4_NL, 16) \
  X(iq4_nl_64, IQ4_NL, 64) \
  X(iq4_xs_16, IQ4_XS, 16) \
  X(iq4_xs_64, IQ4_XS, 64)

#define LB_EXPERT_GEMMS_Q8_0_64(X) \
  X(q8_0_64, Q8_0, 64)

// x is 16-bit numbers, FP8 weights are expanded; F32: x is fp32. X(name, Type, kTileRows)
#define LB_EXPERT_GEMMS_PLAIN(X) \
  X(f16_16,  F16,  16) \
  X(f16_64,  F16,  64) \
  X(bf16_16, BF16, 16) \
  X(bf16_64, BF16, 64)
#define LB_EXPERT_GEMMS_FP8(X) \
  X(f8_e4m3_16, F8_E4M3, 16) \
  X(f8_e4m3_64, F8_E4M3, 64)
#define LB_EXPERT_GEMMS_FLOAT(X) \
  X(f32_16, F32, 16) \
  X(f32_64, F32, 64)

// clang-format on
