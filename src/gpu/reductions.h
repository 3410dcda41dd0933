// Warp and block reductions by shuffles, for CUDA and HIP (src/sim has its own). Every lane, or every thread of the
// block, receives the result. The order of additions is fixed, so every run gives the same bits.
#pragma once

namespace lb::gpu {

template <class T>
LB_DEVICE T warp_sum(T v) {
  v += shuffle_xor(v, 16);
  v += shuffle_xor(v, 8);
  v += shuffle_xor(v, 4);
  v += shuffle_xor(v, 2);
  v += shuffle_xor(v, 1);
  return v;
}

template <class T>
LB_DEVICE T warp_max(T v) {
  v = max(v, shuffle_xor(v, 16));
  v = max(v, shuffle_xor(v, 8));
  v = max(v, shuffle_xor(v, 4));
  v = max(v, shuffle_xor(v, 2));
  return max(v, shuffle_xor(v, 1));
}

template <class T>
LB_DEVICE T warp_min(T v) {
  v = min(v, shuffle_xor(v, 16));
  v = min(v, shuffle_xor(v, 8));
  v = min(v, shuffle_xor(v, 4));
  v = min(v, shuffle_xor(v, 2));
  return min(v, shuffle_xor(v, 1));
}

// scratch: 32 floats in shared memory; the caller may reuse them on return.
LB_DEVICE float block_sum(float v, float* scratch) {
  v = warp_sum(v);
  if (lane() == 0) scratch[warp()] = v;
  block_barrier();
  v = warp_sum(lane() < n_warps() ? scratch[lane()] : 0.0f);
  block_barrier();
  return v;
}

LB_DEVICE float block_max(float v, float* scratch) {
  v = warp_max(v);
  if (lane() == 0) scratch[warp()] = v;
  block_barrier();
  v = warp_max(scratch[lane() < n_warps() ? lane() : 0]);
  block_barrier();
  return v;
}

}  // namespace lb::gpu
