// Barriers, device-scope atomics, programmatic dependent launch.
#pragma once

#include <stdint.h>

namespace lb::gpu {

#if LB_HELPER_THREADS
LB_DEVICE void block_barrier() { asm volatile("barrier.cta.sync 1, %0;" ::"r"(n_threads()) : "memory"); }
#else
LB_DEVICE void block_barrier() { __syncthreads(); }
#endif
// A barrier of all threads of the block, helper threads included.
LB_DEVICE void whole_block_barrier() { __syncthreads(); }
LB_DEVICE void warp_barrier() { __syncwarp(); }

LB_DEVICE int atomic_add(int* p, int v) { return atomicAdd(p, v); }
LB_DEVICE uint32_t atomic_add(uint32_t* p, uint32_t v) { return atomicAdd(p, v); }
LB_DEVICE unsigned long long atomic_add(unsigned long long* p, unsigned long long v) { return atomicAdd(p, v); }
LB_DEVICE float atomic_add(float* p, float v) { return atomicAdd(p, v); }
LB_DEVICE int atomic_max(int* p, int v) { return atomicMax(p, v); }
LB_DEVICE uint32_t atomic_max(uint32_t* p, uint32_t v) { return atomicMax(p, v); }
LB_DEVICE unsigned long long atomic_max(unsigned long long* p, unsigned long long v) { return atomicMax(p, v); }

// Acquire and release. A thread that adds later sees this block's writes before the barrier that precedes this call.
// This block sees the writes of threads that added earlier.
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
// Relaxed accesses of 8 bytes that other blocks may write concurrently. A pair is 16-byte aligned.
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
// Reads a word that the host writes during the launch; orders nothing.
LB_DEVICE uint32_t load_relaxed_system(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
// A release store that is visible to the host.
LB_DEVICE void store_release_system(uint32_t* p, uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// Grid barrier of the blocks that share a z coordinate and its counter. The blocks' increments sum to 2^31, which flips
// the counter's top bit and keeps the other bits. The counter therefore needs no reset, and grids of different sizes
// may use it one after another.
LB_DEVICE void grid_barrier(uint32_t* counter) {
  block_barrier();
  if (thread_id() == 0) {
    const bool is_first = block_id() == 0 && block_id_y() == 0;
    const uint32_t rest = gridDim.x * gridDim.y - 1;
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

// Nanoseconds of a free-running clock, for time-outs; too coarse for measurements.
LB_DEVICE uint64_t time_ns() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

// Orders the thread's accesses before it with those after it for all threads of the device.
LB_DEVICE void device_fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

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
