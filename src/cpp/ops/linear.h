// Products with a weight matrix, their biases, SwiGLU and GeGLU, the gated activations of a feed-forward block, and the
// soft cap of logits.
#pragma once

#include <stddef.h>

#include "base/dtype_id.h"
#include "ops/round_rows.h"

namespace lb {

// How products with quantised weights compute. kInt8: x is rounded to 8-bit blocks of 32 values. kF32: weights are
// expanded and accumulation is fp32. kFp4: as kInt8, but in prompts of NVFP4 weights x is rounded to NVFP4; devices
// only.
enum class Activations { kInt8, kF32, kFp4 };

// Layout of a weight matrix: kBlocks as in the file, read by the CPU; kPlanes (quant/planes.h), read by devices.
enum class WeightLayout { kBlocks, kPlanes };

// y[r,o] = sum_i w[o,i] x[r,i] (+ add[r,o])
// Quantised weights follow Activations. kInt8 rounds x to blocks of 32 (scale = max|x|/127, fp32) and sums the 8-bit
// products of a block exactly. kF32 expands the weight. F32/F16/BF16 weights always take x in fp32.
struct Linear {
  const void* w;  // [n_out, n_in] of type, in the WeightLayout that the stream reads
  DType type;
  const float* x;    // [rows, n_in]
  const float* add;  // [rows, n_out] or null; may be y
  float* y;          // [rows, n_out]; must not overlap x
  int rows, n_in, n_out;
  Activations activations;
};

// Up to four products with one x. They share x, rows, n_in and activations, so x is rounded once and read once.
inline constexpr int kMaxProducts = 4;
struct LinearGroup {
  Linear products[kMaxProducts];
  int n;
};

// CPU scratch in bytes of the largest product: shared by all threads, and per thread.
size_t linear_shared_scratch(int max_rows, int max_n_in);
size_t linear_thread_scratch(int max_n_in);

// y[r,:] += bias
struct AddBias {
  float* y;           // [rows, dim]
  const float* bias;  // [dim]
  int rows, dim;
};

// y[r,:] = silu(gate[r,:]) * up[r,:]
struct SwiGlu {
  const float* gate;  // [rows, dim]
  const float* up;    // [rows, dim]
  float* y;           // [rows, dim]; may be gate or up
  int rows, dim;
  RoundedRows rounded{};  // y rounded as by RoundRows, written in addition to y; devices only; null: not written
};

// y[r,:] = gelu(gate[r,:]) * up[r,:], by the tanh approximation: gelu(x) = x sigmoid(2 kGelu (x + kGeluCube x^3))
inline constexpr float kGelu = 0.7978845608f, kGeluCube = 0.044715f;  // the first is sqrt(2 / pi)
struct GeGlu {
  const float* gate;  // [rows, dim]
  const float* up;    // [rows, dim], rows at up_stride
  float* y;           // [rows, dim]; may be gate
  int rows, dim;
  long up_stride;         // values between rows of up
  RoundedRows rounded{};  // as in SwiGlu
};

// x = cap tanh(x / cap), in place
struct SoftCap {
  float* x;  // [rows, dim]
  int rows, dim;
  float cap;
};

}  // namespace lb
