// Sizes that the kernels of TopTokens and their host code must agree on.
#pragma once

#include "ops/top_tokens.h"

namespace lb::gpu {

inline constexpr int kTopThreads = 256;
// A slice of a row has at most kTopThreads * kTopThreadParts parts, where a part is a vector of four logits, or one
// logit if rows are not aligned. So the parts of the kMaxTopTokens threads with the largest logits are one vector, or
// four logits, for each thread of a block.
inline constexpr int kTopThreadParts = 32, kTopThreadLogits = 128;
inline constexpr int kMaxTopSlices = 128;

struct TopTokensInSlices {
  TopTokens op;
  uint64_t* keys;       // [rows, n_slices, k] scratch: the best of a slice; ordered(logit) << 32 | ~id
  float* sums;          // [rows, n_slices] scratch: sum e^(l - largest l of the slice)
  int n_slices, slice;  // slice: logits of a slice, a multiple of four
};

}  // namespace lb::gpu
