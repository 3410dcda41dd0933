// fp32 to 16 bits: bf16, or f16 saturated at +-65504.
#pragma once

#include <stdint.h>

#include "base/dtype_id.h"
#include "quant/half.h"

namespace lb::gpu {

LB_DEVICE uint16_t narrow(float x, DType type) {
  if (type == DType::kBF16) return to_bf16(x).bits;
  return to_f16(x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x).bits;  // NaN stays NaN
}

}  // namespace lb::gpu
