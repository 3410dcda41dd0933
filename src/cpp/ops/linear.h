// Products with a weight matrix, and the gated activation between two of them.
#pragma once

#include <stddef.h>

#include "base/dtype_id.h"
#include "ops/round_rows.h"

namespace lb {

// kInt8: activations are rounded to 8-bit blocks of 32 before a product with a quantised weight.
// kF32: weights are expanded and everything is accumulated in fp32.
enum class Activations { kInt8, kF32 };

// How a weight matrix lies in memory: kBlocks as in the file, for the CPU; kPlanes of quant/planes.h, for devices.
enum class WeightLayout { kBlocks, kPlanes };

// y[r,o] = sum_i w[o,i] x[r,i] (+ add[r,o])
// Quantised weights follow Activations: kInt8 rounds x to blocks of 32 (scale = max|x|/127, fp32) and sums the
// 8-bit products exactly inside each block; kF32 expands the weight. F32/F16/BF16 weights always use fp32 activations.
struct Linear {
  const void* w;  // [n_out, n_in] of type, in the WeightLayout that the stream reads
  DType type;
  const float* x;    // [rows, n_in]
  const float* add;  // [rows, n_out] or null; may be y
  float* y;          // [rows, n_out]; must not overlap x
  int rows, n_in, n_out;
  Activations activations;
};

// Up to four products of one x: they share x, rows, n_in and activations, so x is rounded once and read once.
inline constexpr int kMaxProducts = 4;
struct LinearGroup {
  Linear products[kMaxProducts];
  int n;
};

// Scratch the largest such product needs.
size_t linear_shared_scratch(int max_rows, int max_n_in);
size_t linear_thread_scratch(int max_n_in);

// y[r,:] = silu(gate[r,:]) * up[r,:]
struct SwiGlu {
  const float* gate;  // [rows, dim]
  const float* up;    // [rows, dim]
  float* y;           // [rows, dim]; may be gate or up
  int rows, dim;
  RoundedRows rounded{};  // also y as RoundRows makes it; only for devices; null: no
};

}  // namespace lb
