// Products of more rows than a speculation has, where warpgroups multiply: 256 outputs and 128 or 64 rows a tile, or
// 128 of each. A type has the tiles that are ever the fastest. Body: linear_warpgroup.h.
// Needs: wgmma
#include "dialect.h"

#include "gpu/gemm/gemm_sm90.h"

namespace lb::gpu {

LB_KERNEL(linear_warpgroup_q8_0_256x128_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<ExpandedWeights<WideQ8_0, bf16>, 128, 2>>(p);
}
LB_KERNEL(linear_warpgroup_q8_0_256x64_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<ExpandedWeights<WideQ8_0, bf16>, 64, 2>>(p);
}
LB_KERNEL(linear_warpgroup_q8_0_128x128_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<ExpandedWeights<WideQ8_0, bf16>, 128, 1>>(p);
}

LB_KERNEL(linear_warpgroup_q4_0_256x128_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<ExpandedWeights<WideQ4_0, bf16>, 128, 2>>(p);
}
LB_KERNEL(linear_warpgroup_q4_0_256x64_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<ExpandedWeights<WideQ4_0, bf16>, 64, 2>>(p);
}
LB_KERNEL(linear_warpgroup_q4_0_128x128_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<ExpandedWeights<WideQ4_0, bf16>, 128, 1>>(p);
}

LB_KERNEL(linear_warpgroup_q4_k_256x128_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<ExpandedWeights<WideQ4_K, bf16>, 128, 2>>(p);
}
LB_KERNEL(linear_warpgroup_q4_k_256x64_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<ExpandedWeights<WideQ4_K, bf16>, 64, 2>>(p);
}
LB_KERNEL(linear_warpgroup_q4_k_128x128_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<ExpandedWeights<WideQ4_K, bf16>, 128, 1>>(p);
}

LB_KERNEL(linear_warpgroup_q6_k_256x64_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<ExpandedWeights<WideQ6_K, bf16>, 64, 2>>(p);
}
LB_KERNEL(linear_warpgroup_q6_k_128x128_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<ExpandedWeights<WideQ6_K, bf16>, 128, 1>>(p);
}

LB_KERNEL(linear_warpgroup_f16_256x128_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<PlainWeights<f16, DType::kF16>, 128, 2>>(p);
}
LB_KERNEL(linear_warpgroup_f16_256x64_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<PlainWeights<f16, DType::kF16>, 64, 2>>(p);
}
LB_KERNEL(linear_warpgroup_f16_128x128_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<PlainWeights<f16, DType::kF16>, 128, 1>>(p);
}

LB_KERNEL(linear_warpgroup_bf16_256x128_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<PlainWeights<bf16, DType::kBF16>, 128, 2>>(p);
}
LB_KERNEL(linear_warpgroup_bf16_256x64_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<PlainWeights<bf16, DType::kBF16>, 64, 2>>(p);
}
LB_KERNEL(linear_warpgroup_bf16_128x128_kernel, LinearBatch, kWarpgroupThreads, 1) {
  linear_warpgroup<WarpgroupTile<PlainWeights<bf16, DType::kBF16>, 128, 1>>(p);
}

}  // namespace lb::gpu
