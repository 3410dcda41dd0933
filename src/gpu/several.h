// Batched kernels, which decode several sequences in one launch: blocks with z coordinate i take the params of sequence
// i. The bits equal the bits of the single-sequence kernel. Their names end in _several.
#pragma once

namespace lb::gpu {

inline constexpr int kMaxSeveral = 16;
inline constexpr int kMaxParamsBytes = 4096;  // every driver accepts this much

template <class Params>
struct Several {
  static_assert(kMaxSeveral * sizeof(Params) <= kMaxParamsBytes);
  Params of[kMaxSeveral];
};

}  // namespace lb::gpu
