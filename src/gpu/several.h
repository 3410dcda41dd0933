// Kernels that decode several sequences in one launch: blocks of z coordinate i take the params of sequence i, and do
// what the kernel for one sequence does, to the bit. Their names end in _several.
#pragma once

namespace lb::gpu {

inline constexpr int kMaxSeveral = 16;
inline constexpr int kMaxParamsBytes = 4096;  // what every driver takes

template <class Params>
struct Several {
  static_assert(kMaxSeveral * sizeof(Params) <= kMaxParamsBytes);
  Params of[kMaxSeveral];
};

}  // namespace lb::gpu
