// The place of the largest value: greedy decoding.
#pragma once

#include <stdint.h>

namespace lb {

// y[r] = the lowest i with x[r,i] = max x[r,:]. A NaN is never the largest; a row of nothing else gives 0.
struct ArgMax {
  const float* x;  // [rows, dim], dim >= 1
  int32_t* y;      // [rows]
  int rows, dim;
};

}  // namespace lb
