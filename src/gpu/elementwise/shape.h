// What the elementwise kernels and their launch functions must agree on. Read by host and device.
#pragma once

namespace lb::gpu {

// Norms of up to so many values are made by a warp each.
inline constexpr int kWarpNormDim = 128;

}  // namespace lb::gpu
