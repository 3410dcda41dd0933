// Rotary position embedding (RoPE) in two ops: the table of angles once per append, the rotation once per layer.
#pragma once

#include <stdint.h>

namespace lb {

// cos[r,i] = scale * cos(pos[axis[i], r] * inv_freq[i]), and the same for sin. Angles in fp64, results rounded once to
// fp32.
struct RopeTable {
  const int32_t* pos;     // [3, rows] M-RoPE positions: temporal, height, width; equal for text
  const uint8_t* axis;    // [n_pairs] 0, 1 or 2: the row of pos that pair i uses
  const float* inv_freq;  // [n_pairs]
  float* cos;             // [rows, n_pairs]
  float* sin;             // [rows, n_pairs]
  int rows, n_pairs;
  float scale;  // 1, or YaRN's attention factor: q and k grow by it, scores by its square
  // A table for queries only may grow with the position: row_scales[min(pos[0,r] / period, n_scales - 1)] multiplies
  // row r. The host computes the scales, so every device has the same.
  const float* row_scales = nullptr;  // [n_scales]; null: 1
  long period = 0, n_scales = 0;
};

enum class RopePairs {
  kHalves,    // pair i is (x[i], x[i + n_pairs])        Qwen, and Llama in safetensors
  kAdjacent,  // pair i is (x[2i], x[2i + 1])            Llama in GGUF (its converter permutes the rows)
};

// In place on the first 2 * n_pairs values of every head, pair (a, b): a' = a cos - b sin, b' = b cos + a sin.
struct Rope {
  float* x;          // [rows, heads, dim]
  const float* cos;  // [rows, n_pairs]
  const float* sin;  // [rows, n_pairs]
  int rows, heads, dim, n_pairs;
  RopePairs pairs;
};

}  // namespace lb
