// Products of more rows than a speculation has, quantised weights: tiles of 128 rows, weights expanded to 16 bits once
// for each tile.
// Body: linear_batch.h. Chips without a bf16 matrix instruction multiply f16; those without asynchronous copies have
// less shared memory and fewer registers too, and smaller tiles.
// Needs: no wgmma
#include "dialect.h"

#include "gpu/gemm/gemm.h"

namespace lb::gpu {

inline constexpr int kFrags = kHasAsyncCopy ? 2 : 1;

LB_KERNEL(linear_wide_q8_0_kernel, LinearBatch, 256, 1) {
  linear_batch<HalfProduct<ExpandedHalves<BatchQ8_0, Wide>, kWideRows, kFrags>>(p);
}
LB_KERNEL(linear_wide_q4_0_kernel, LinearBatch, 256, 1) {
  linear_batch<HalfProduct<ExpandedHalves<BatchQ4_0, Wide>, kWideRows, kFrags>>(p);
}
LB_KERNEL(linear_wide_q4_k_kernel, LinearBatch, 256, 1) {
  linear_batch<HalfProduct<ExpandedHalves<BatchQ4_K, Wide>, kWideRows, kFrags>>(p);
}
LB_KERNEL(linear_wide_q6_k_kernel, LinearBatch, 256, 1) {
  linear_batch<HalfProduct<ExpandedHalves<BatchQ6_K, Wide>, kWideRows, kFrags>>(p);
}

}  // namespace lb::gpu
