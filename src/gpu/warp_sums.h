// Several sums over a warp at once: halves of the values are exchanged, so that n values cost n - 1 shuffles and then
// one for each halving of the lanes that are left, instead of five each.
#pragma once

namespace lb::gpu {

// Over the lanes whose number differs in bits from 32 / kN on; lane l has the sum of v[l / (32 / kN)] in v[0].
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

// Over the whole warp.
template <int kN>
LB_DEVICE float warp_sums(float (&v)[kN]) {
  reduce_scatter<kN>(v);
  LB_UNROLL
  for (int mask = 16 / kN; mask > 0; mask /= 2) v[0] += shuffle_xor(v[0], mask);
  return v[0];
}
// The same, and the sum of `more` besides, whose additions wait for nothing of the others.
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
