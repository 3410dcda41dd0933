// Copies rows into columns of a wider matrix, for instance a layer's output into the taps of a draft model.
#pragma once

namespace lb {

// y[r,:] = x[r,:]
struct CopyRows {
  const float* x;  // [rows, dim]
  float* y;        // [rows, dim], stride below; must not overlap x
  int rows, dim;
  long y_stride;  // values between rows of y, at least dim
};

}  // namespace lb
