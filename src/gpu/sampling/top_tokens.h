// Sizes of the TopTokens kernels: the contract of host and device.
#pragma once

#include "ops/top_tokens.h"

namespace lb::gpu {

inline constexpr int kTopThreads = 256;
// A slice of a row has at most kTopThreads * kTopThreadParts parts; a part is a vector of four logits, or one logit if
// rows are unaligned. The parts of the kMaxTopTokens threads with the largest logits are therefore one vector, or four
// logits, per thread of a block.
inline constexpr int kTopThreadParts = 32, kTopThreadLogits = 128;
inline constexpr int kMaxTopSlices = 128;

struct TopTokensInSlices {
  TopTokens op;
  uint64_t* keys;       // [rows, n_slices, k] scratch: the best keys of a slice; ordered(logit) << 32 | ~id
  float* sums;          // [rows, n_slices] scratch: sum of e^(l - largest l of the slice)
  int n_slices, slice;  // slice: logits per slice, a multiple of four
};

}  // namespace lb::gpu
