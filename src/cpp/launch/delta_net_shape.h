// What the Gated DeltaNet kernels and their launch functions must agree on. Read by host and device.
#pragma once

#include "ops/delta_net.h"

namespace lb::gpu {

// causal_conv: a block has kConvChannels channels; its teams of as many threads share the rows of a run.
inline constexpr int kConvChannels = 32, kConvThreads = 256;
inline constexpr int kMaxTaps = 8;

// delta_inputs: a thread a channel of a head.
inline constexpr int kInputThreads = 256;

// Any of its kernels. `work` is for two rows or more: [runs, VH] of kPairFloats.
struct DeltaWork {
  GatedDelta op;
  float* work;
};

// Of one run and value head: two matrices [64, 64] and [64], as gated_delta_runs.cpp says.
inline constexpr int kPairFloats = 2 * kMaxTree * kMaxTree + kMaxTree;

// A step, and a fold alone: a thread holds four columns of kSliceRows rows of S at a time.
inline constexpr int kStepColumns = 16, kSliceRows = 4, kStepThreads = 256;

// Runs. Tiles of keys and queries are so deep, and pass through a ring of so many floats: two tiles of 64 rows, or four
// of 32.
inline constexpr int kPairThreads = 256, kRunThreads = 128;
inline constexpr int kPanelDepth = 32, kPanelStride = kPanelDepth + 4;  // rows start in different banks
inline constexpr int kRingFloats = 4 * kMaxTree * kPanelStride;
inline constexpr int kMaxHeadDim = 256;

}  // namespace lb::gpu
