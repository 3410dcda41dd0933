// Products of experts for many rows, F16 and BF16 weights. Body: grouped.h.
#include "dialect.h"

#include "gpu/experts/grouped.h"
#include "gpu/experts/instances.h"

namespace lb::gpu {

using F16 = PlainHalves<f16, DType::kF16, f16>;
using BF16 = PlainHalves<bf16, DType::kBF16, Wide>;

#define X(name, Type, kTileRows)                                                \
  LB_KERNEL(expert_gemm_gate_up_##name##_kernel, ExpertGemm, kGemmThreads, 2) { \
    expert_gemm<HalfProduct<Type, kTileRows, 1>, true>(p);                      \
  }                                                                             \
  LB_KERNEL(expert_gemm_down_##name##_kernel, ExpertGemm, kGemmThreads, 2) {    \
    expert_gemm<HalfProduct<Type, kTileRows, 1>, false>(p);                     \
  }
LB_EXPERT_GEMMS_PLAIN(X)
#undef X

}  // namespace lb::gpu
