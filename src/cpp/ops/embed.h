// Token embedding: y[r,:] = scale * table[ids[r],:], dequantised to fp32.
#pragma once

#include <stdint.h>

#include "base/dtype_id.h"

namespace lb {

struct Embed {
  const void* table;  // [vocab, dim] of `type`: blocks on the CPU, planes (quant/planes.h) on devices
  DType type;
  const int32_t* ids;  // [rows], each in [0, vocab)
  float* y;            // [rows, dim]
  int rows, dim;
  int vocab;  // rows of the table; the offsets of planes depend on it
  float scale = 1;
};

}  // namespace lb
