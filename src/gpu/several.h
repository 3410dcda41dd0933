// Kernels that decode several sequences in one launch: blocks of z coordinate i take the params of sequence i, and do
// what the kernel for one sequence does, to the bit. Their names end in _several.
#pragma once

namespace lb::gpu {

inline constexpr int kMaxSeveral = 8;  // params are at most 4 KiB

template <class Params>
struct Several {
  Params of[kMaxSeveral];
};

}  // namespace lb::gpu
