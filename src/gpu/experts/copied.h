// Copies of missing experts by the products that read them first (CopiedExperts). A block copies the rows that it
// multiplies, from host memory to the expert's slot, and reads them there: blocks of experts that are present do not
// wait, and the link works from the launch on.
#pragma once

#include "gpu/experts/copy_unit.h"
#include "gpu/gemv/formats.h"

namespace lb::gpu {

static_assert(kExpertThreads == kFillThreads && kExpertDownThreads == kFillThreads);  // of copy_unit

// Whether none of n choices is this expert.
LB_DEVICE bool is_absent(const int32_t* experts, int n, int expert) {
  for (int i = 0; i < n; ++i)
    if (experts[i] == expert) return false;
  return true;
}

// Copies n consecutive rows, a row's bytes as in p. All threads of the block call it. The rows may be read after
// copies_are_done().
LB_DEVICE void copy_rows(const Gemv& p, const GemvMatrix& from, long from_row, const GemvMatrix& to, long to_row,
                         int n) {
  for (int i = 0; i < quant::kMaxPlanes; ++i) {
    const int row_bytes = p.row_bytes[i], bytes = n * row_bytes;
    if (row_bytes == 0) break;
    const uint8_t* const source = plane(from, i) + from_row * row_bytes;
    uint8_t* const sink = const_cast<uint8_t*>(plane(to, i)) + to_row * row_bytes;
    const bool is_aligned = (reinterpret_cast<uintptr_t>(source) | reinterpret_cast<uintptr_t>(sink) | bytes) % 16 == 0;
    for (int first = 0; first < bytes; first += kFillUnit)
      copy_unit(source + first, sink + first, min(kFillUnit, bytes - first), is_aligned);
  }
}

// Earlier products of the slot are launches ago, so L1 has no line of its earlier expert.
LB_DEVICE void copies_are_done() {
  device_fence();
  block_barrier();
}

}  // namespace lb::gpu
