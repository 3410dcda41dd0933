// Barriers and device-scope atomics. There is no programmatic dependent launch: a kernel starts after the previous one
// has ended.
#pragma once

#include <stdint.h>

namespace lb::gpu {

LB_DEVICE void block_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// AMD kernels have no helper threads.
LB_DEVICE void whole_block_barrier() { block_barrier(); }
LB_DEVICE void warp_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

template <class T>
LB_DEVICE T atomic_add_any(T* p, T v) {
  return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <class T>
LB_DEVICE T atomic_max_any(T* p, T v) {
  return __hip_atomic_fetch_max(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
LB_DEVICE int atomic_add(int* p, int v) { return atomic_add_any(p, v); }
LB_DEVICE uint32_t atomic_add(uint32_t* p, uint32_t v) { return atomic_add_any(p, v); }
LB_DEVICE unsigned long long atomic_add(unsigned long long* p, unsigned long long v) { return atomic_add_any(p, v); }
LB_DEVICE float atomic_add(float* p, float v) {
  // Device memory only, so that the compiler emits one instruction instead of a compare-and-swap loop.
  [[clang::atomic(no_remote_memory, no_fine_grained_memory, ignore_denormal_mode)]] { return atomic_add_any(p, v); }
}
LB_DEVICE uint32_t atomic_add_ordered(uint32_t* p, uint32_t v) {
  return __hip_atomic_fetch_add(p, v, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
}
LB_DEVICE int atomic_max(int* p, int v) { return atomic_max_any(p, v); }
LB_DEVICE uint32_t atomic_max(uint32_t* p, uint32_t v) { return atomic_max_any(p, v); }
LB_DEVICE unsigned long long atomic_max(unsigned long long* p, unsigned long long v) { return atomic_max_any(p, v); }

// Words that blocks exchange are in device or host memory, never in shared memory.
template <class T>
LB_DEVICE __attribute__((address_space(1))) T* in_global(T* p) {
  return (__attribute__((address_space(1))) T*)(p);
}

LB_DEVICE uint32_t load_acquire(const uint32_t* p) {
  return __hip_atomic_load(in_global(p), __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
}
LB_DEVICE void store_release(uint32_t* p, uint32_t v) {
  __hip_atomic_store(in_global(p), v, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
}
LB_DEVICE void add_release(uint32_t* p, uint32_t v) {
  __hip_atomic_fetch_add(in_global(p), v, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
}
// Relaxed accesses of 8 bytes that other blocks may write concurrently.
LB_DEVICE uint64_t load_relaxed(const uint64_t* p) {
  return __hip_atomic_load(in_global(p), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
LB_DEVICE void load_relaxed(const uint64_t* p, uint64_t& first, uint64_t& second) {
  first = load_relaxed(p);
  second = load_relaxed(p + 1);
}
LB_DEVICE void store_relaxed(uint64_t* p, uint64_t v) {
  __hip_atomic_store(in_global(p), v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
LB_DEVICE void store_relaxed(uint64_t* p, uint64_t first, uint64_t second) {
  store_relaxed(p, first);
  store_relaxed(p + 1, second);
}
// Reads a word that the host writes during the launch; orders nothing.
LB_DEVICE uint32_t load_relaxed_system(const uint32_t* p) {
  return __hip_atomic_load(in_global(p), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
// A release store that is visible to the host.
LB_DEVICE void store_release_system(uint32_t* p, uint32_t v) {
  __hip_atomic_store(in_global(p), v, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}

// Grid barrier of the blocks that share a z coordinate and its counter. The blocks' increments sum to 2^31, which flips
// the counter's top bit and keeps the other bits. The counter therefore needs no reset, and grids of different sizes
// may use it one after another.
LB_DEVICE void grid_barrier(uint32_t* counter) {
  block_barrier();
  if (thread_id() == 0) {
    const bool is_first = block_id() == 0 && block_id_y() == 0;
    const uint32_t rest = uint32_t(n_blocks() * n_blocks_y()) - 1;
    const uint32_t before =
        __hip_atomic_fetch_add(counter, is_first ? 0x80000000u - rest : 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
    while (((load_acquire(counter) ^ before) & 0x80000000u) == 0) __builtin_amdgcn_s_sleep(1);
  }
  block_barrier();
}

// Nanoseconds of a free-running clock at 100 MHz, for time-outs; too coarse for measurements.
LB_DEVICE uint64_t time_ns() { return __builtin_readsteadycounter() * 10; }

LB_DEVICE void device_fence() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "agent"); }
LB_DEVICE void dependents_may_launch() {}
LB_DEVICE void wait_for_previous() {}

}  // namespace lb::gpu
