// Batched kernels, which decode several sequences in one launch: blocks with z coordinate i take the params of sequence
// i. The bits equal the bits of the single-sequence kernel. Their names end in _batched.
#pragma once

namespace lb::gpu {

inline constexpr int kMaxBatched = 16;
inline constexpr int kMaxParamsBytes = 4096;  // every driver accepts this much

template <class Params>
struct Batched {
  static_assert(kMaxBatched * sizeof(Params) <= kMaxParamsBytes);
  Params of[kMaxBatched];
};

}  // namespace lb::gpu
