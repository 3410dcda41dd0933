// GEMM kernels for plain weights: F16 and BF16 with 16-bit x, F32 with fp32 x. Body: gemm.h.
#include "dialect.h"

#include "gpu/gemm/gemm.h"
#include "gpu/gemm/instances.h"

namespace lb::gpu {

using F16 = PlainHalves<f16, DType::kF16, f16>;
using BF16 = PlainHalves<bf16, DType::kBF16, Wide>;

#define X(kernel, Type, kTileRows) \
  LB_KERNEL(kernel, Gemm, kGemmThreads, 2) { gemm<HalfProduct<Type, kTileRows, 1>>(p); }
LB_GEMM_PLAIN(X)
#undef X

#define X(kernel, Type) \
  LB_KERNEL(kernel, Gemm, kGemmThreads, 2) { gemm<FloatProduct<kFloatRows>>(p); }
LB_GEMM_FLOAT(X)
#undef X

}  // namespace lb::gpu
