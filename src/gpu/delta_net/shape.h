// What the Gated DeltaNet kernels and their launch functions must agree on. Read by host and device.
#pragma once

#include "ops/delta_net.h"
#include "quant/half.h"

namespace lb::gpu {

// causal_conv: a block has kConvChannels channels; its teams of as many threads share the rows of a chunk.
inline constexpr int kConvChannels = 32, kConvThreads = 256;
inline constexpr int kMaxTaps = 8;

// delta_inputs: a thread a channel of a head.
inline constexpr int kInputThreads = 256;

// delta_inputs of more rows: so many taps, a block kChainDk channels; of a long chain kChainInputRows of them, else
// all.
inline constexpr int kChainTaps = 4, kChainInputThreads = 128, kChainInputRows = 32;
inline constexpr int kFewInputThreads = 256;
LB_FN constexpr int few_input_bytes(int rows) { return (rows + kChainTaps - 1) * 128 * 4; }

// Any of its kernels. `work` is for two rows or more: [chunks, VH] of kPairFloats; for chains on matrix units
// [chunks, KH] of kChainRowFloats and then [chunks, VH] of kChainPairFloats.
struct DeltaWork {
  GatedDelta op;
  float* work;
  GatedRmsNorm norm;  // gated_delta_few: o leaves as norm.rounded, but for what heads are divided by; none: as o
};

// Of one chunk and value head: two matrices [64, 64] and [64], as gated_delta_chunks.cpp says.
inline constexpr int kPairFloats = 2 * kMaxTree * kMaxTree + kMaxTree;

// A step, and a fold alone: a thread holds four columns of kSliceRows rows of S at a time.
inline constexpr int kStepColumns = 16, kSliceRows = 4, kStepThreads = 256;

// Runs. Tiles of keys and queries are so deep, and pass through a ring of so many floats: two tiles of 64 rows, or four
// of 32.
inline constexpr int kPairThreads = 256, kChunkThreads = 128;
inline constexpr int kPanelDepth = 32, kPanelStride = kPanelDepth + 4;  // rows start in different banks
inline constexpr int kRingFloats = 4 * kMaxTree * kPanelStride;
inline constexpr int kMaxHeadDim = 256;

// Few rows in one launch, as gated_delta_few.cpp says: a block so many columns of S. They, keys and queries are
// operands in two parts; then what they make.
inline constexpr int kDeltaFewRows = 32, kDeltaFewColumns = 32, kDeltaFewThreads = 256;
LB_FN constexpr int delta_few_bytes(int rows) {
  const int padded = rows <= 16 ? 16 : kDeltaFewRows;
  return (2 * padded + kDeltaFewColumns) * 136 * 4 + 2 * padded * (padded + kDeltaFewColumns + 4) * 4;
}

// Chains on matrix units, as gated_delta_chain.cpp says: keys have so many values, a block so many columns of S.
inline constexpr int kChainDk = 128, kChainColumns = 32;
inline constexpr int kChainPairThreads = 256, kChainThreads = 256;
inline constexpr int kChainRowFloats = 2 * kMaxTree * kChainDk;
inline constexpr int kChainPairFloats = 2 * kMaxTree * kMaxTree + 2 * kMaxTree;
inline constexpr int kChainPairsBytes = 2 * 2 * kMaxTree * (kChainDk + 8) * 2;    // keys and queries in two parts
inline constexpr int kChainBytes = 3 * 2 * kMaxTree * (kChainDk + 8) * 2          // keys of two chunks, queries
                                   + 2 * 2 * kMaxTree * (kMaxTree + 8) * 2        // M and P
                                   + kMaxTree * (kChainColumns + 4) * 4           // values
                                   + 2 * 2 * kMaxTree * 4                         // gates of two chunks
                                   + 2 * kChainColumns * (kChainDk + 8) * 2       // S
                                   + 3 * 2 * kChainColumns * (kMaxTree + 8) * 2;  // v - S^T k, delta, delta weighted

}  // namespace lb::gpu
