// Products of experts for many rows whose x is not rounded to bytes: 16-bit for F16, BF16 and FP8 weights, fp32 for
// F32. Body: grouped.h.
#include "dialect.h"

#include "gpu/experts/grouped.h"
#include "gpu/experts/instances.h"
#include "gpu/gemm/table_formats.h"

namespace lb::gpu {

using F16 = PlainHalves<f16, DType::kF16, f16>;
using BF16 = PlainHalves<bf16, DType::kBF16, Wide>;
using F8_E4M3 = ExpandedHalves<GemmF8_E4M3, Wide>;

#define LB_EXPERT_GEMM(name, ...)                                                                                    \
  LB_KERNEL(expert_gemm_gate_up_##name##_kernel, ExpertGemm, kGemmThreads, 2) { expert_gemm<__VA_ARGS__, true>(p); } \
  LB_KERNEL(expert_gemm_down_##name##_kernel, ExpertGemm, kGemmThreads, 2) { expert_gemm<__VA_ARGS__, false>(p); }

#define X(name, Type, kTileRows) LB_EXPERT_GEMM(name, HalfProduct<Type, kTileRows, 1>)
LB_EXPERT_GEMMS_PLAIN(X)
LB_EXPERT_GEMMS_FP8(X)
#undef X

#define X(name, Type, kTileRows) LB_EXPERT_GEMM(name, FloatProduct<kTileRows>)
LB_EXPERT_GEMMS_FLOAT(X)
#undef X

}  // namespace lb::gpu
