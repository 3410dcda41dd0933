// Copies rows into columns of a wider matrix, for instance a layer's output into the taps of a draft model, or into a
// ring of rows.
#pragma once

#include <stdint.h>

namespace lb {

// y[(first + r) % y_rows,:] = x[r,:]; first is 0 where it is null
struct CopyRows {
  const float* x;  // [rows, dim]
  float* y;        // [y_rows, dim], stride below; must not overlap x
  int rows, dim;
  int y_rows;                      // at least rows
  long y_stride;                   // values between rows of y, at least dim
  const int32_t* first = nullptr;  // [1] or null; not negative
};

}  // namespace lb
