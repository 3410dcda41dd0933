// Skinny GEMM kernels for the weight types with blocks of 32 values, NVFP4 and FP8, with 8-bit x. Body: gemm_skinny.h.
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/gemm_skinny/formats_32.h"
#include "gpu/gemm_skinny/formats_fp.h"
#include "gpu/gemm_skinny/gemm_skinny.h"
#include "gpu/gemm_skinny/instances.h"

namespace lb::gpu {

using SkinnyQ4_0 = SkinnyNibbles<DType::kQ4_0>;
using SkinnyQ4_1 = SkinnyNibbles<DType::kQ4_1>;
using SkinnyQ5_0 = SkinnyNibbles<DType::kQ5_0>;
using SkinnyQ5_1 = SkinnyNibbles<DType::kQ5_1>;
using SkinnyIQ4_NL = SkinnyNibbles<DType::kIQ4_NL>;
using SkinnyMXFP4 = SkinnyNibbles<DType::kMXFP4>;

#define X(kernel, Type, kTileRows, kUnits) \
  LB_KERNEL(kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<Skinny##Type, kTileRows, kUnits>(p); }
LB_GEMM_SKINNY_32(X)
#undef X

}  // namespace lb::gpu
