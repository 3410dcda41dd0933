// Reads memory and does little else: what a chip's read bandwidth is measured with.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace lb {

// sums[b] = the wrapping sum of the 32-bit words that block b has read; all blocks together read each word once.
struct ReadMemory {
  const void* x;   // [bytes], 16-byte aligned
  size_t bytes;    // a multiple of 16
  uint32_t* sums;  // [blocks]
};

}  // namespace lb
