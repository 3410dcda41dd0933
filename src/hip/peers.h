// Words that devices exchange, in memory that several devices read and write.
#pragma once

#include <stdint.h>

namespace lb::gpu {

// Relaxed accesses of two words of 8 bytes. Each word arrives whole.
LB_DEVICE void load_relaxed_system(const uint64_t* p, uint64_t& first, uint64_t& second) {
  first = __hip_atomic_load(in_global(p), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  second = __hip_atomic_load(in_global(p + 1), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
LB_DEVICE void store_relaxed_system(uint64_t* p, uint64_t first, uint64_t second) {
  __hip_atomic_store(in_global(p), first, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  __hip_atomic_store(in_global(p + 1), second, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
// The same of one word.
LB_DEVICE uint64_t load_relaxed_system(const uint64_t* p) {
  return __hip_atomic_load(in_global(p), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
LB_DEVICE void store_relaxed_system(uint64_t* p, uint64_t v) {
  __hip_atomic_store(in_global(p), v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
// Orders this thread's writes before its later ones, for other devices too.
LB_DEVICE void system_fence() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, ""); }
// Later reads of this block see what another device wrote before its store_release_system() of this value.
LB_DEVICE uint32_t load_acquire_system(const uint32_t* p) {
  return __hip_atomic_load(in_global(p), __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}

// As time_ns(). In the simulator it follows real time: for waits on other devices.
LB_DEVICE uint64_t wall_ns() { return time_ns(); }

}  // namespace lb::gpu
