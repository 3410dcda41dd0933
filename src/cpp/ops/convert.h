// Copies between element types.
#pragma once

#include <stdint.h>

#include "base/dtype_id.h"

namespace lb {

// y[i] = x[i] in another type, rounded to nearest even; a NaN stays one.
struct Convert {
  const void* x;   // [count] of from
  void* y;         // [count] of to; must not overlap x
  DType from, to;  // F32, F16 or BF16
  long count;
};

}  // namespace lb
