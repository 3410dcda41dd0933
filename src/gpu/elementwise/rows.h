// Access to rows of fp32 values: vectors of four if every row is 16-byte aligned, else single values.
#pragma once

#include <stdint.h>

namespace lb::gpu {

template <int kWidth>
LB_DEVICE Vec<float, kWidth> values(const float* x, int i) {
  return load<Vec<float, kWidth>>(x + long(i) * kWidth);
}

// Whether all rows, `stride` values apart and starting at x, are 16-byte aligned.
LB_DEVICE bool is_aligned(const void* x, long stride) {
  return (reinterpret_cast<uintptr_t>(x) | uintptr_t(stride) * sizeof(float)) % 16 == 0;
}

}  // namespace lb::gpu
