// Parameters of the kernels for mixtures of experts: the contract of host and device.
#pragma once

#include "gpu/gemv/shape.h"
#include "ops/experts.h"

namespace lb::gpu {

inline constexpr int kRouteThreads = 128;       // a warp per row
inline constexpr int kExpertGemvThreads = 256;  // a warp per output of a choice
inline constexpr int kCombineThreads = 256;

// gemv: the planes of all experts as one matrix, and x. Its group has x and n_in; the teams and blocks are unused.
struct ExpertGemv {
  Gemv gemv;
  const int32_t* experts;  // [n_choices]
  float* y;                // [n_choices, n_out]
  int n_choices, sharers;  // choices that share a row of x
  int n_out, expert_rows, first_row;
};

}  // namespace lb::gpu
