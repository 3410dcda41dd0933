// Products of more rows than a speculation has, quantised weights: tiles of 128 rows, weights expanded to 16 bits once
// for each tile.
// Body: gemm.h. Chips without a bf16 matrix instruction multiply f16; those without asynchronous copies have
// less shared memory and fewer registers too, and smaller tiles.
// Needs: no wgmma
#include "dialect.h"

#include "gpu/gemm/gemm.h"

namespace lb::gpu {

inline constexpr int kFrags = kHasAsyncCopy ? 2 : 1;

LB_KERNEL(gemm_wide_q8_0_kernel, Gemm, 256, 1) {
  gemm<HalfProduct<ExpandedHalves<GemmQ8_0, Wide>, kWideRows, kFrags>>(p);
}
LB_KERNEL(gemm_wide_q4_0_kernel, Gemm, 256, 1) {
  gemm<HalfProduct<ExpandedHalves<GemmQ4_0, Wide>, kWideRows, kFrags>>(p);
}
LB_KERNEL(gemm_wide_q4_k_kernel, Gemm, 256, 1) {
  gemm<HalfProduct<ExpandedHalves<GemmQ4_K, Wide>, kWideRows, kFrags>>(p);
}
LB_KERNEL(gemm_wide_q6_k_kernel, Gemm, 256, 1) {
  gemm<HalfProduct<ExpandedHalves<GemmQ6_K, Wide>, kWideRows, kFrags>>(p);
}

}  // namespace lb::gpu
