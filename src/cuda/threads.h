// Thread, block and grid indices; shuffles and votes of a warp.
#pragma once

#include <stdint.h>

namespace lb::gpu {

LB_DEVICE int thread_id() { return int(threadIdx.x); }
LB_DEVICE int n_threads() { return int(blockDim.x) - LB_HELPER_THREADS; }
LB_DEVICE int block_id() { return int(blockIdx.x); }
LB_DEVICE int block_id_y() { return int(blockIdx.y); }
LB_DEVICE int block_id_z() { return int(blockIdx.z); }
LB_DEVICE int n_blocks() { return int(gridDim.x); }
LB_DEVICE int n_blocks_y() { return int(gridDim.y); }
LB_DEVICE int n_blocks_z() { return int(gridDim.z); }
LB_DEVICE int lane() { return thread_id() % 32; }
LB_DEVICE int warp() { return thread_id() / 32; }
LB_DEVICE int n_warps() { return (n_threads() + 31) / 32; }

inline constexpr uint32_t kAllLanes = 0xffffffff;

// The unsigned integer type that carries a value of 4 or 8 bytes through a shuffle.
template <int kBytes>
struct Carrier;
template <>
struct Carrier<4> {
  using type = uint32_t;
};
template <>
struct Carrier<8> {
  using type = unsigned long long;
};
template <class T>
using CarrierOf = typename Carrier<int(sizeof(T))>::type;

template <class T>
LB_DEVICE T shuffle_xor(T v, int mask) {
  return __builtin_bit_cast(T, __shfl_xor_sync(kAllLanes, __builtin_bit_cast(CarrierOf<T>, v), mask));
}
template <class T>
LB_DEVICE T shuffle(T v, int source) {
  return __builtin_bit_cast(T, __shfl_sync(kAllLanes, __builtin_bit_cast(CarrierOf<T>, v), source));
}
template <class T>
LB_DEVICE T shuffle_down(T v, int n) {
  return __builtin_bit_cast(T, __shfl_down_sync(kAllLanes, __builtin_bit_cast(CarrierOf<T>, v), n));
}
template <class T>
LB_DEVICE T shuffle_up(T v, int n) {
  return __builtin_bit_cast(T, __shfl_up_sync(kAllLanes, __builtin_bit_cast(CarrierOf<T>, v), n));
}

#if __CUDA_ARCH__ >= 800
LB_DEVICE int warp_max(int v) { return __reduce_max_sync(kAllLanes, v); }  // other types: gpu/reductions.h
#endif

LB_DEVICE uint32_t ballot(bool vote) { return __ballot_sync(kAllLanes, vote); }
LB_DEVICE bool any(bool vote) { return __any_sync(kAllLanes, vote); }
LB_DEVICE bool all(bool vote) { return __all_sync(kAllLanes, vote); }

// The compiler's scheduler moves no instruction across this barrier. Early loads therefore occupy fewer registers.
LB_DEVICE void sched_barrier() {}

// Hides v's origin from the optimiser, so a loop recomputes values derived from v instead of keeping them in registers.
LB_DEVICE int opaque(int v) {
  asm volatile("" : "+r"(v));
  return v;
}
template <class T>
LB_DEVICE T* opaque(T* p) {
  asm volatile("" : "+l"(p));
  return p;
}

}  // namespace lb::gpu
