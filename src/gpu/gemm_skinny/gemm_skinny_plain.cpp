// Skinny GEMM kernels for F16 and BF16 weights, with x of the same type. Body: gemm_skinny.h.
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/gemm_skinny/formats_plain.h"
#include "gpu/gemm_skinny/gemm_skinny.h"
#include "gpu/gemm_skinny/instances.h"

namespace lb::gpu {

using SkinnyBF16 = SkinnyPlain<DType::kBF16>;
using SkinnyF16 = SkinnyPlain<DType::kF16>;

#define X(kernel, Type, kTileRows, kUnits) \
  LB_KERNEL(kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<Skinny##Type, kTileRows, kUnits>(p); }
LB_GEMM_SKINNY_PLAIN(X)
#undef X

}  // namespace lb::gpu
