// Products of more rows than a speculation has, where warpgroups multiply: 256 outputs and 128 or 64 rows a tile, or 128
// of each. Body: linear_warpgroup.h.
#include "dialect.h"

#include "linear_warpgroup.h"

namespace lb::gpu {

#define LB_WARPGROUP(name, ...)                                                            \
  LB_KERNEL(linear_warpgroup_##name##_256x128_kernel, LinearBatch, kWarpgroupThreads, 1) { \
    linear_warpgroup<WarpgroupTile<__VA_ARGS__, 128, 2>>(p);                               \
  }                                                                                        \
  LB_KERNEL(linear_warpgroup_##name##_256x64_kernel, LinearBatch, kWarpgroupThreads, 1) {  \
    linear_warpgroup<WarpgroupTile<__VA_ARGS__, 64, 2>>(p);                                \
  }                                                                                        \
  LB_KERNEL(linear_warpgroup_##name##_128x128_kernel, LinearBatch, kWarpgroupThreads, 1) { \
    linear_warpgroup<WarpgroupTile<__VA_ARGS__, 128, 1>>(p);                               \
  }

LB_WARPGROUP(q8_0, ExpandedWeights<WideQ8_0, bf16>)
LB_WARPGROUP(q4_0, ExpandedWeights<WideQ4_0, bf16>)
LB_WARPGROUP(q4_k, ExpandedWeights<WideQ4_K, bf16>)
LB_WARPGROUP(q6_k, ExpandedWeights<WideQ6_K, bf16>)
LB_WARPGROUP(f16, PlainWeights<f16, DType::kF16>)
LB_WARPGROUP(bf16, PlainWeights<bf16, DType::kBF16>)

#undef LB_WARPGROUP

}  // namespace lb::gpu
