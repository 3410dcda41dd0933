// y[r,:] = table[ids[r],:], expanded to fp32.
#pragma once

#include <stdint.h>

#include "base/dtype_id.h"

namespace lb {

struct Embed {
  const void* table;  // [vocab, dim] of type
  DType type;
  const int32_t* ids;  // [rows], each in [0, vocab)
  float* y;            // [rows, dim]
  int rows, dim;
  int vocab;  // rows of the table
};

}  // namespace lb
