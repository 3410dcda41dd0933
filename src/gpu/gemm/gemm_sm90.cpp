// Products of more rows than a speculation has, where warpgroups multiply: 256 outputs and 128 or 64 rows a tile, or
// 128 of each. A type has the tiles that are ever the fastest. Body: gemm_sm90.h.
// Needs: wgmma
#include "dialect.h"

#include "gpu/gemm/gemm_sm90.h"

namespace lb::gpu {

LB_KERNEL(gemm_sm90_q8_0_256x128_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<ExpandedWeights<WideQ8_0, bf16>, 128, 2>>(p);
}
LB_KERNEL(gemm_sm90_q8_0_256x64_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<ExpandedWeights<WideQ8_0, bf16>, 64, 2>>(p);
}
LB_KERNEL(gemm_sm90_q8_0_128x128_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<ExpandedWeights<WideQ8_0, bf16>, 128, 1>>(p);
}

LB_KERNEL(gemm_sm90_q4_0_256x128_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<ExpandedWeights<WideQ4_0, bf16>, 128, 2>>(p);
}
LB_KERNEL(gemm_sm90_q4_0_256x64_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<ExpandedWeights<WideQ4_0, bf16>, 64, 2>>(p);
}
LB_KERNEL(gemm_sm90_q4_0_128x128_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<ExpandedWeights<WideQ4_0, bf16>, 128, 1>>(p);
}

LB_KERNEL(gemm_sm90_q4_k_256x128_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<ExpandedWeights<WideQ4_K, bf16>, 128, 2>>(p);
}
LB_KERNEL(gemm_sm90_q4_k_256x64_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<ExpandedWeights<WideQ4_K, bf16>, 64, 2>>(p);
}
LB_KERNEL(gemm_sm90_q4_k_128x128_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<ExpandedWeights<WideQ4_K, bf16>, 128, 1>>(p);
}

LB_KERNEL(gemm_sm90_q6_k_256x64_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<ExpandedWeights<WideQ6_K, bf16>, 64, 2>>(p);
}
LB_KERNEL(gemm_sm90_q6_k_128x128_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<ExpandedWeights<WideQ6_K, bf16>, 128, 1>>(p);
}

LB_KERNEL(gemm_sm90_f16_256x128_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<PlainWeights<f16, DType::kF16>, 128, 2>>(p);
}
LB_KERNEL(gemm_sm90_f16_256x64_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<PlainWeights<f16, DType::kF16>, 64, 2>>(p);
}
LB_KERNEL(gemm_sm90_f16_128x128_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<PlainWeights<f16, DType::kF16>, 128, 1>>(p);
}

LB_KERNEL(gemm_sm90_bf16_256x128_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<PlainWeights<bf16, DType::kBF16>, 128, 2>>(p);
}
LB_KERNEL(gemm_sm90_bf16_256x64_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<PlainWeights<bf16, DType::kBF16>, 64, 2>>(p);
}
LB_KERNEL(gemm_sm90_bf16_128x128_kernel, Gemm, kWarpgroupThreads, 1) {
  gemm_sm90<WarpgroupTile<PlainWeights<bf16, DType::kBF16>, 128, 1>>(p);
}

}  // namespace lb::gpu
