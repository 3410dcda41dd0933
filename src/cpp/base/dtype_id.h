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
};
inline constexpr int kDTypeCount = 16;

}  // namespace lb
