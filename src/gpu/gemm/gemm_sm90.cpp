// wgmma GEMM kernels for prompts on sm_90: tiles of 256 outputs x 128 rows, 256 x 64 and 128 x 128, and tiles of 128
// gates and their factors x 128 rows. Each weight type has the tiles that are fastest for some shape. Body:
// gemm_sm90.h.
// Needs: wgmma
#include "dialect.h"

#include "gpu/gemm/gemm_sm90.h"
#include "gpu/gemm/instances.h"

namespace lb::gpu {

using Q8_0 = ExpandedWeights<WideQ8_0>;
using Q4_0 = ExpandedWeights<WideQ4_0>;
using Q4_K = ExpandedWeights<WideQ4_K>;
using Q6_K = ExpandedWeights<WideQ6_K>;
using F16 = PlainWeights<f16, DType::kF16>;
using BF16 = PlainWeights<bf16, DType::kBF16>;
using F8_E4M3 = Fp8Weights;

#define X(kernel, Type, kTileOuts, kTileRows, kChunkClocks) \
  LB_KERNEL(kernel, Gemm, kWarpgroupThreads, 1) { gemm_sm90<WarpgroupTile<Type, kTileRows, kTileOuts / 128>>(p); }
LB_GEMM_SM90(X)
#undef X
#define X(kernel, Type, kChunkClocks) \
  LB_KERNEL(kernel, Gemm, kWarpgroupThreads, 1) { gemm_sm90<WarpgroupTile<Type, kGatedRows, 2, true>>(p); }
LB_GEMM_SM90_GATED(X)
#undef X

}  // namespace lb::gpu
