// Parameters, tile sizes and shared memory of the Gated DeltaNet kernels: the contract of host and device.
#pragma once

#include "ops/delta_net.h"
#include "quant/half.h"

namespace lb::gpu {

// causal_conv: kConvChannels channels per block. Teams of kConvChannels threads share the rows of a chunk.
inline constexpr int kConvChannels = 32, kConvThreads = 256;
inline constexpr int kMaxTaps = 8;

// delta_inputs: one thread per channel of a head.
inline constexpr int kInputThreads = 256;

// delta_inputs_small and delta_inputs_chain: kChainTaps taps, kChainDk channels per block. A block of
// delta_inputs_small handles all rows, a block of delta_inputs_chain kChainInputRows rows.
inline constexpr int kChainTaps = 4, kChainInputThreads = 128, kChainInputRows = 32;
inline constexpr int kSmallInputThreads = 256;
LB_FN constexpr int small_input_bytes(int rows) { return (rows + kChainTaps - 1) * 128 * 4; }  // history, then rows

// Parameters of every gated_delta kernel.
struct DeltaWork {
  GatedDelta op;
  // Scratch that the pairs kernel writes and the following kernel reads; unused by step, fold and small.
  //   gated_delta_chunks: [n_chunks, VH] of kPairFloats
  //   gated_delta_chain:  [n_chunks, KH] of kChainRowFloats, then [n_chunks, VH] of kChainPairFloats
  float* work;
  // Only for gated_delta_small. If norm.rounded is set, the kernel writes o * w * silu(z) there, rounded, and the sum
  // of o^2 per 32 values to norm.rounded.sum; the reader divides by the head's root mean square. Otherwise the kernel
  // writes op.o.
  GatedRmsNorm norm;
};

// Floats per chunk and value head: M diag(beta) [64, 64], P [64, 64] and cs [64].
inline constexpr int kPairFloats = 2 * kMaxTree * kMaxTree + kMaxTree;

// gated_delta_step and _fold: a thread holds kSliceRows rows of four columns of S.
inline constexpr int kStepColumns = 16, kSliceRows = 4, kStepThreads = 256;
// Batched gated_delta_step: slices per block, and co-resident blocks of kStepThreads per SM.
inline constexpr int kWideSlices = 4, kWideBlocks = 2;

// gated_delta_rows: most rows of an append.
inline constexpr int kByRowRows = 32;

// gated_delta_pairs and gated_delta_chunks. A panel is kPanelDepth of the dk values of a chunk's keys and queries. The
// ring has room for two panels of 64 rows, or four of 32.
inline constexpr int kPairThreads = 256, kChunkThreads = 128;
inline constexpr int kPanelDepth = 32, kPanelStride = kPanelDepth + 4;  // padded against bank conflicts
inline constexpr int kRingFloats = 4 * kMaxTree * kPanelStride;
inline constexpr int kMaxHeadDim = 256;

// gated_delta_small: up to kSmallDeltaRows rows, kSmallDeltaColumns columns of S per block. Dynamic shared memory:
// queries, keys and columns of S as operands of two bf16 parts, then their products in fp32.
inline constexpr int kSmallDeltaRows = 32, kSmallDeltaColumns = 32, kSmallDeltaThreads = 256;
LB_FN constexpr int small_delta_bytes(int rows) {
  const int padded = rows <= 16 ? 16 : kSmallDeltaRows;
  return (2 * padded + kSmallDeltaColumns) * 136 * 4 + 2 * padded * (padded + kSmallDeltaColumns + 4) * 4;
}

// gated_delta_chain: dk = kChainDk, kChainColumns columns of S per block.
inline constexpr int kChainDk = 128, kChainColumns = 32;
inline constexpr int kChainPairThreads = 256, kChainThreads = 256;
inline constexpr int kChainRowFloats = 2 * kMaxTree * kChainDk;
inline constexpr int kChainPairFloats = 2 * kMaxTree * kMaxTree + 2 * kMaxTree;
inline constexpr int kChainPairsBytes = 2 * 2 * kMaxTree * (kChainDk + 8) * 2;    // keys and queries, two bf16 parts
inline constexpr int kChainBytes = 3 * 2 * kMaxTree * (kChainDk + 8) * 2          // keys of two chunks, queries
                                   + 2 * 2 * kMaxTree * (kMaxTree + 8) * 2        // M and P
                                   + kMaxTree * (kChainColumns + 4) * 4           // values
                                   + 2 * 2 * kMaxTree * 4                         // gates of two chunks
                                   + 2 * kChainColumns * (kChainDk + 8) * 2       // S
                                   + 3 * 2 * kChainColumns * (kMaxTree + 8) * 2;  // residual, delta, weighted delta

}  // namespace lb::gpu
