// Softmax of whole rows, as the sampler and a router want it; attention has its own.
#pragma once

namespace lb {

// y[r,i] = exp(scale x[r,i] - m) / sum_j exp(scale x[r,j] - m),  m = max_j scale x[r,j]; fp32 sums.
// A row with a NaN or with +infinity is NaN throughout.
struct Softmax {
  const float* x;  // [rows, dim]
  float* y;        // [rows, dim]; may be x
  int rows, dim;
  float scale;
};

}  // namespace lb
