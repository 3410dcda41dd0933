// Words that devices exchange, in memory that several devices read and write.
#pragma once

#include <stdint.h>

namespace lb::gpu {

// Relaxed accesses of two words of 8 bytes, 16-byte aligned. Each word arrives whole.
LB_DEVICE void load_relaxed_system(const uint64_t* p, uint64_t& first, uint64_t& second) {
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(p) : "memory");
}
LB_DEVICE void store_relaxed_system(uint64_t* p, uint64_t first, uint64_t second) {
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(first), "l"(second) : "memory");
}
// The same of one word.
LB_DEVICE uint64_t load_relaxed_system(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
LB_DEVICE void store_relaxed_system(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
// Orders this thread's writes before its later ones, for other devices too.
LB_DEVICE void system_fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
// Later reads of this block see what another device wrote before its store_release_system() of this value.
LB_DEVICE uint32_t load_acquire_system(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// As time_ns(). In the simulator it follows real time: for waits on other devices.
LB_DEVICE uint64_t wall_ns() { return time_ns(); }

}  // namespace lb::gpu
