// Rows of fp32 values walked by a block: four values a thread where every row starts aligned, else one.
#pragma once

#include <stdint.h>

namespace lb::gpu {

template <int kWidth>
LB_DEVICE Vec<float, kWidth> values(const float* x, int i) {
  return load<Vec<float, kWidth>>(x + long(i) * kWidth);
}

// Whether rows that lie `stride` values apart from x all start 16-byte aligned.
LB_DEVICE bool is_aligned(const void* x, long stride) {
  return (reinterpret_cast<uintptr_t>(x) | uintptr_t(stride) * sizeof(float)) % 16 == 0;
}

}  // namespace lb::gpu
