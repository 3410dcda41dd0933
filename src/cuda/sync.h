// Barriers, atomics of device scope, the hand-over between dependent launches.
#pragma once

#include <stdint.h>

namespace lb::gpu {

#if LB_HELPER_THREADS
LB_DEVICE void block_barrier() { asm volatile("barrier.cta.sync 1, %0;" ::"r"(n_threads()) : "memory"); }
#else
LB_DEVICE void block_barrier() { __syncthreads(); }
#endif
// Of the helpers too.
LB_DEVICE void whole_block_barrier() { __syncthreads(); }
LB_DEVICE void warp_barrier() { __syncwarp(); }

LB_DEVICE int atomic_add(int* p, int v) { return atomicAdd(p, v); }
LB_DEVICE uint32_t atomic_add(uint32_t* p, uint32_t v) { return atomicAdd(p, v); }
LB_DEVICE unsigned long long atomic_add(unsigned long long* p, unsigned long long v) { return atomicAdd(p, v); }
LB_DEVICE float atomic_add(float* p, float v) { return atomicAdd(p, v); }
LB_DEVICE int atomic_max(int* p, int v) { return atomicMax(p, v); }
LB_DEVICE uint32_t atomic_max(uint32_t* p, uint32_t v) { return atomicMax(p, v); }
LB_DEVICE unsigned long long atomic_max(unsigned long long* p, unsigned long long v) { return atomicMax(p, v); }

// What the block has written before, and a barrier behind it, is seen by whoever adds later, and all before is seen
// here.
LB_DEVICE uint32_t atomic_add_ordered(uint32_t* p, uint32_t v) {
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(v) : "memory");
  return before;
}
LB_DEVICE uint32_t load_acquire(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
LB_DEVICE void store_release(uint32_t* p, uint32_t v) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
LB_DEVICE void add_release(uint32_t* p, uint32_t v) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
// Eight bytes that others may be writing, read or written at once and in no order with anything else; two aligned
// to 16.
LB_DEVICE uint64_t load_relaxed(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
LB_DEVICE void load_relaxed(const uint64_t* p, uint64_t& first, uint64_t& second) {
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(p) : "memory");
}
LB_DEVICE void store_relaxed(uint64_t* p, uint64_t v) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
LB_DEVICE void store_relaxed(uint64_t* p, uint64_t first, uint64_t second) {
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(first), "l"(second) : "memory");
}
// What the host has written, soon after; orders nothing.
LB_DEVICE uint32_t load_relaxed_system(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
// Seen by the host too.
LB_DEVICE void store_release_system(uint32_t* p, uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// Blocks add up to 2^31, which flips the counter's top bit and leaves the rest as it was: nobody resets it, and grids
// of any size may share it one after another.
LB_DEVICE void grid_barrier(uint32_t* counter) {
  block_barrier();
  if (thread_id() == 0) {
    const bool is_first = block_id() == 0 && block_id_y() == 0 && block_id_z() == 0;
    const uint32_t rest = gridDim.x * gridDim.y * gridDim.z - 1;
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(is_first ? 0x80000000u - rest : 1u)
                 : "memory");
    while (((load_acquire(counter) ^ before) & 0x80000000u) == 0) {
    }
  }
  block_barrier();
}

// Nanoseconds of a clock that runs on; for waiting with an end, not for timing.
LB_DEVICE uint64_t time_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

LB_DEVICE void dependents_may_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
LB_DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace lb::gpu
