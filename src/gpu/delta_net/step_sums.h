// S^T k and S^T q of a slice of kStepColumns columns, added over a warp's rows of S.
#pragma once

#include "gpu/delta_net/shape.h"

namespace lb::gpu {

inline constexpr int kStepSums = 2 * kStepColumns;  // S^T k, then S^T q
inline constexpr int kLanesOfRow = kStepColumns / 4;

// One step of a reduce-scatter: v[i] += the partner lane's v[i]; each half of the lanes keeps half of the values.
template <int kHalf>
LB_DEVICE void exchange_halves(float (&v)[8]) {
  const bool is_upper = lane() & kLanesOfRow * kHalf;
  LB_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    const float lower = v[i], upper = v[i + kHalf];
    v[i] = (is_upper ? upper : lower) + shuffle_xor(is_upper ? lower : upper, kLanesOfRow * kHalf);
  }
}

// both: a lane's S^T k of four columns, then its S^T q of them. Each lane adds up and stores one of the warp's sums
// [kStepSums] in shared memory.
template <class Sums>
LB_DEVICE void sum_over_warp(float (&both)[8], Sums sums) {
  exchange_halves<4>(both);
  exchange_halves<2>(both);
  exchange_halves<1>(both);
  const int value = lane() / kLanesOfRow;  // index in `both` of the sum that this lane holds
  const int at = value / 4 * kStepColumns + lane() % kLanesOfRow * 4 + value % 4;
  store(&sums[at], both[0]);
}

}  // namespace lb::gpu
