// Copies of missing experts by the products of gate and up (CopiedExperts). A block copies the rows that it multiplies,
// from host memory to the expert's slot, and reads them there; then it copies its share of down, for the next launch.
// Blocks of experts that are present do not wait, and the link works from the launch on.
#pragma once

#include "gpu/experts/shape.h"

namespace lb::gpu {

// Whether none of n choices is this expert.
LB_DEVICE bool is_absent(const int32_t* experts, int n, int expert) {
  for (int i = 0; i < n; ++i)
    if (experts[i] == expert) return false;
  return true;
}

// Bytes that this block copies of a plane.
LB_DEVICE int own_bytes(const CopiedPlane& plane) {
  return max(0, min(plane.block_bytes, plane.bytes - block_id() * plane.block_bytes));
}

// The block's parts of all planes as one sequence, so that loads of a small plane do not wait for another plane's. A
// thread has kLoads in flight.
template <class Unit, int kLoads>
LB_DEVICE void copy_units(const CopiedPlanes& planes, int expert, int slot) {
  int bytes = 0;
  for (int i = 0; i < planes.n; ++i) bytes += own_bytes(planes.of[i]);
  const int step = n_threads() * int(sizeof(Unit));
  for (int first = thread_id() * int(sizeof(Unit)); first < bytes; first += kLoads * step) {
    Unit loaded[kLoads] = {};
    uint8_t* to[kLoads] = {};
    LB_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      int at = first + i * step, number = 0;
      if (at >= bytes) continue;
      while (at >= own_bytes(planes.of[number])) at -= own_bytes(planes.of[number++]);
      const CopiedPlane& plane = planes.of[number];
      at += block_id() * plane.block_bytes;
      loaded[i] = load_stream<Unit>(plane.from + long(expert) * plane.stride + at);
      to[i] = plane.to + long(slot) * plane.stride + at;
    }
    LB_UNROLL
    for (int i = 0; i < kLoads; ++i)
      if (first + i * step < bytes) store(to[i], loaded[i]);
  }
}
// Only tests have planes of odd sizes, which are no whole units.
LB_DEVICE void copy_planes(const CopiedPlanes& planes, int expert, int slot) {
  planes.are_aligned ? copy_units<u32x4, 8>(planes, expert, slot) : copy_units<uint8_t, 1>(planes, expert, slot);
}

// After it the block may read what it copied. Earlier products of the slot are launches ago, so L1 has no line of its
// earlier expert.
LB_DEVICE void copies_are_done() {
  device_fence();
  block_barrier();
}

}  // namespace lb::gpu
