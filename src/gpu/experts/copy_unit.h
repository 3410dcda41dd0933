// Copies from host memory, which a device reads over the link: many bytes in flight per block.
#pragma once

#include "gpu/experts/shape.h"

namespace lb::gpu {

LB_DEVICE void copy_unit(const uint8_t* from, uint8_t* to, int bytes, bool is_aligned) {
  if (!is_aligned) {
    for (int i = thread_id(); i < bytes; i += n_threads()) store(to + i, load_stream<uint8_t>(from + i));
    return;
  }
  u32x4 loaded[kFillLoads] = {};
  LB_UNROLL
  for (int i = 0; i < kFillLoads; ++i) {
    const int at = (i * kFillThreads + thread_id()) * 16;
    if (at < bytes) loaded[i] = load_stream<u32x4>(from + at);
  }
  LB_UNROLL
  for (int i = 0; i < kFillLoads; ++i) {
    const int at = (i * kFillThreads + thread_id()) * 16;
    if (at < bytes) store(to + at, loaded[i]);
  }
}

// Adds a pass's copies to the counts and writes them to host memory: in a launch that goes on for long, as the end of a
// launch waits for its writes. One thread.
LB_DEVICE void count_copies(ExpertCache& cache, int expert_bytes, ExpertCounts* host) {
  cache.counts.bytes += (unsigned long long)cache.fills.n * uint32_t(expert_bytes);
  *host = cache.counts;
}

}  // namespace lb::gpu
