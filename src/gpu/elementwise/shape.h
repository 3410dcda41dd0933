// Constants that host and device must agree on.
#pragma once

namespace lb::gpu {

// Heads of up to so many values: one warp per norm instead of one block.
inline constexpr int kWarpNormDim = 128;

}  // namespace lb::gpu
