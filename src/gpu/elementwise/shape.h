// Constants of the elementwise kernels: the contract of host and device.
#pragma once

namespace lb::gpu {

// Max head_dim for which one warp, instead of one block, computes a norm.
inline constexpr int kWarpNormDim = 128;

}  // namespace lb::gpu
