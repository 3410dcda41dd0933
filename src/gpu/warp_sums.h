// Several warp sums together, as a butterfly reduce-scatter: lanes exchange halves of their values. n sums cost n - 1 +
// log2(32 / n) shuffles instead of 5 n.
#pragma once

namespace lb::gpu {

// Sums over the kN lanes with equal l % (32 / kN). Afterwards v[0] of lane l is the sum of v[l / (32 / kN)].
template <int kN, int kHalf = kN / 2, int kDistance = 16>
LB_DEVICE void reduce_scatter(float (&v)[kN]) {
  if constexpr (kHalf > 0) {
    const bool is_upper = lane() & kDistance;
    LB_UNROLL
    for (int i = 0; i < kHalf; ++i) {
      const float lower = v[i], upper = v[i + kHalf];
      v[i] = (is_upper ? upper : lower) + shuffle_xor(is_upper ? lower : upper, kDistance);
    }
    reduce_scatter<kN, kHalf / 2, kDistance / 2>(v);
  }
}

// Sums over the whole warp, or over each half of it with kLanes = 16. Returns, and leaves in v[0], the sum of
// v[l / (kLanes / kN)] in lane l of the kLanes.
template <int kLanes = 32, int kN>
LB_DEVICE float warp_sums(float (&v)[kN]) {
  reduce_scatter<kN, kN / 2, kLanes / 2>(v);
  LB_UNROLL
  for (int mask = kLanes / 2 / kN; mask > 0; mask /= 2) v[0] += shuffle_xor(v[0], mask);
  return v[0];
}
// Also sums `more` over the warp, into every lane. Its shuffles are independent of the others and interleave with them.
template <int kN>
LB_DEVICE float warp_sums(float (&v)[kN], float& more) {
  more += shuffle_xor(more, 16);
  reduce_scatter(v);
  more += shuffle_xor(more, 8);
  LB_UNROLL
  for (int mask = 16 / kN; mask > 0; mask /= 2) {
    v[0] += shuffle_xor(v[0], mask);
    if (mask <= 4) more += shuffle_xor(more, mask);
  }
  LB_UNROLL
  for (int mask = 4; mask > 16 / kN; mask /= 2) more += shuffle_xor(more, mask);
  return v[0];
}

}  // namespace lb::gpu
