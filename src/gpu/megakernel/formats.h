// The weight types that a megakernel supports, as lists of cases; each case is a switch over some types.
#pragma once

#include "gpu/gemv/formats_16.h"
#include "gpu/gemv/formats_32.h"
#include "gpu/gemv/formats_fp.h"
#include "gpu/gemv/formats_plain.h"
#include "gpu/megakernel/stage_x.h"

namespace lb::gpu {

// A case runs product() of product_stream.h or product_direct.h. Returns false for types of other cases.
struct PlainCase {
  template <class... Args>
  LB_DEVICE static bool run(const ProductTask& p, Args&&... args) {
    switch (p.op.type) {
      case DType::kF32: return product<PlainFormat<DType::kF32>>(p, args...), true;
      case DType::kF16: return product<PlainFormat<DType::kF16>>(p, args...), true;
      case DType::kBF16: return product<PlainFormat<DType::kBF16>>(p, args...), true;
      default: return false;
    }
  }
};
struct Block32Case {
  template <class... Args>
  LB_DEVICE static bool run(const ProductTask& p, Args&&... args) {
    switch (p.op.type) {
      case DType::kQ8_0: return product<Q8_0Format<8>>(p, args...), true;
      case DType::kQ4_0: return product<Block32Format<DType::kQ4_0, 8>>(p, args...), true;
      case DType::kQ4_1: return product<NibbleFormat<DType::kQ4_1>>(p, args...), true;
      case DType::kQ5_0: return product<Block32Format<DType::kQ5_0, 8>>(p, args...), true;
      case DType::kQ5_1: return product<Block32Format<DType::kQ5_1, 8>>(p, args...), true;
      case DType::kIQ4_NL: return product<Block32Format<DType::kIQ4_NL, 8>>(p, args...), true;
      case DType::kMXFP4: return product<Block32Format<DType::kMXFP4, 8>>(p, args...), true;
      case DType::kNVFP4: return product<NVFP4Format<8>>(p, args...), true;
      case DType::kF8_E4M3: return product<F8_E4M3Format<8>>(p, args...), true;
      default: return false;
    }
  }
};
struct Block256Case {
  template <class... Args>
  LB_DEVICE static bool run(const ProductTask& p, Args&&... args) {
    switch (p.op.type) {
      case DType::kQ8_0: return product<Q8_0Format<8>>(p, args...), true;
      case DType::kQ4_K: return product<NibbleFormat<DType::kQ4_K>>(p, args...), true;
      case DType::kQ5_K: return product<Block32Format<DType::kQ5_K, 8>>(p, args...), true;
      case DType::kQ6_K: return product<Q6_KFormat<8>>(p, args...), true;
      case DType::kQ2_K: return product<Q2_KFormat<8>>(p, args...), true;
      case DType::kQ3_K: return product<Q3_KFormat<8>>(p, args...), true;
      case DType::kIQ4_XS: return product<Block32Format<DType::kIQ4_XS, 8>>(p, args...), true;
      default: return false;
    }
  }
};

template <class... Cases>
struct Formats {
  template <class... Args>
  LB_DEVICE static void run(Args&&... args) {
    static_cast<void>((Cases::run(args...) || ...));
  }
};

}  // namespace lb::gpu
