// Eight sums over a warp together, for mat-vecs: each lane has a part of eight rows.
#pragma once

namespace lb::gpu {

// v[i] += the other half's v[i], each half of the lanes keeping one half of the values: a step of sum_eight.
template <int kHalf>
LB_DEVICE void fold(float (&v)[8]) {
  const bool is_upper = lane() & 4 * kHalf;
  LB_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    const float lower = v[i], upper = v[i + kHalf];
    v[i] = (is_upper ? upper : lower) + shuffle_xor(is_upper ? lower : upper, 4 * kHalf);
  }
}

// Sums eight values over the warp; lane l gets that of v[l / 4]. Exchanging halves costs 9 shuffles instead of 40.
LB_DEVICE float sum_eight(float (&v)[8]) {
  fold<4>(v);
  fold<2>(v);
  fold<1>(v);
  v[0] += shuffle_xor(v[0], 2);
  return v[0] + shuffle_xor(v[0], 1);
}

}  // namespace lb::gpu
