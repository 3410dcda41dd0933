// Threads of the exchange kernels, and the grids, which must be the same on every rank: the contract of host and
// device.
#pragma once

#include "ops/all_reduce.h"

namespace lb::gpu {

inline constexpr int kWordThreads = 256, kRowThreads = 512;

// Whether the values travel as tagged words.
constexpr bool uses_words(long count) { return count <= kMailboxValues; }
constexpr long word_blocks(long count) { return (count / 2 + kWordThreads - 1) / kWordThreads; }
// Blocks for an exchange of at most `count` values from each rank.
constexpr long row_blocks(long count) {
  const long blocks = (count + 4 * kRowThreads - 1) / (4 * kRowThreads);
  return blocks < kMaxExchangeBlocks ? blocks : kMaxExchangeBlocks;
}

}  // namespace lb::gpu
