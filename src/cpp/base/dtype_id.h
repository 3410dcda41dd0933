// Element types of tensors: plain numbers and the GGML block formats that the loader accepts.
// Separate from dtype.h because device compilers include it through the op structs and have no C++ standard library.
#pragma once

#include <stdint.h>

namespace lb {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kNVFP4,
  kF8_E4M3,  // not a GGUF type: blocks that the loader makes (quant/blocks.h)
  // No kernels read these types: a device stores their values as BF16.
  kIQ1_S,
  kIQ1_M,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ3_XXS,
  kIQ3_S,
  kTQ1_0,
  kTQ2_0,
  // Host memory only: rows of NVFP4 blocks with the scale of their tensor, which a device stores as NVFP4.
  kNVFP4_SCALED,
};
inline constexpr int kDTypeCount = 28;

}  // namespace lb
