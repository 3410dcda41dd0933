// The weight types that a megakernel supports, as lists of cases; each case is a switch over some types.
#pragma once

#include "gpu/gemv/formats_16.h"
#include "gpu/gemv/formats_32.h"
#include "gpu/gemv/formats_fp.h"
#include "gpu/gemv/formats_plain.h"
#include "gpu/megakernel/stage_x.h"

namespace lb::gpu {

// A case calls body() with the format of a type. Returns false for types of other cases.
struct PlainCase {
  template <class Body>
  LB_DEVICE static bool run(DType type, Body&& body) {
    switch (type) {
      case DType::kF32: return body(PlainFormat<DType::kF32>{}), true;
      case DType::kF16: return body(PlainFormat<DType::kF16>{}), true;
      case DType::kBF16: return body(PlainFormat<DType::kBF16>{}), true;
      default: return false;
    }
  }
};
struct Block32Case {
  template <class Body>
  LB_DEVICE static bool run(DType type, Body&& body) {
    switch (type) {
      case DType::kQ8_0: return body(Q8_0Format<8>{}), true;
      case DType::kQ4_0: return body(Block32Format<DType::kQ4_0, 8>{}), true;
      case DType::kQ4_1: return body(NibbleFormat<DType::kQ4_1>{}), true;
      case DType::kQ5_0: return body(Block32Format<DType::kQ5_0, 8>{}), true;
      case DType::kQ5_1: return body(Block32Format<DType::kQ5_1, 8>{}), true;
      case DType::kIQ4_NL: return body(Block32Format<DType::kIQ4_NL, 8>{}), true;
      case DType::kMXFP4: return body(Block32Format<DType::kMXFP4, 8>{}), true;
      case DType::kNVFP4: return body(NVFP4Format<8>{}), true;
      case DType::kF8_E4M3: return body(F8_E4M3Format<8>{}), true;
      default: return false;
    }
  }
};
struct Block256Case {
  template <class Body>
  LB_DEVICE static bool run(DType type, Body&& body) {
    switch (type) {
      case DType::kQ8_0: return body(Q8_0Format<8>{}), true;
      case DType::kQ4_K: return body(NibbleFormat<DType::kQ4_K>{}), true;
      case DType::kQ5_K: return body(Block32Format<DType::kQ5_K, 8>{}), true;
      case DType::kQ6_K: return body(Q6_KFormat<8>{}), true;
      case DType::kQ2_K: return body(Q2_KFormat<8>{}), true;
      case DType::kQ3_K: return body(Q3_KFormat<8>{}), true;
      case DType::kIQ4_XS: return body(Block32Format<DType::kIQ4_XS, 8>{}), true;
      default: return false;
    }
  }
};

template <class... Cases>
struct Formats {
  template <class Body>
  LB_DEVICE static void run(DType type, Body&& body) {
    static_cast<void>((Cases::run(type, body) || ...));
  }
};

}  // namespace lb::gpu
