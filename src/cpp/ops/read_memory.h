// Reads a buffer and sums its words, to measure a device's read bandwidth.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace lb {

// All blocks together read each 32-bit word once. sums[b]: wrapping sum of the words that block b reads.
struct ReadMemory {
  const void* x;   // [bytes], 16-byte aligned
  size_t bytes;    // a multiple of 16
  uint32_t* sums;  // [blocks]
};

}  // namespace lb
