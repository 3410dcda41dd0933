// GEMM kernels for prompts, quantised weights: tiles of 128 rows; weights are expanded to 16 bits once per tile. Chips
// without a bf16 matrix instruction multiply f16. Chips without asynchronous copies have less shared memory and fewer
// registers, and use tiles of half as many outputs. Body: gemm.h.
// Needs: no wgmma
#include "dialect.h"

#include "gpu/gemm/gemm.h"
#include "gpu/gemm/instances.h"

namespace lb::gpu {

inline constexpr int kFrags = kHasAsyncCopy ? 2 : 1;

#define X(kernel, Type)                                                        \
  LB_KERNEL(kernel, Gemm, kGemmThreads, 1) {                                   \
    gemm<HalfProduct<ExpandedHalves<Gemm##Type, Wide>, kWideRows, kFrags>>(p); \
  }
LB_GEMM_WIDE_QUANTISED(X)
#undef X

}  // namespace lb::gpu
