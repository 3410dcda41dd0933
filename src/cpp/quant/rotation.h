// The rotation of stored keys and values: y = s2 (H (s1 x)), with H the Walsh-Hadamard transform in natural order times
// 1 / sqrt(n) and s1, s2 fixed signs. The rotation is orthogonal, so rotating both q and k leaves attention scores
// unchanged. Existing tq3_0 caches use these signs; a group of n < 128 values takes the first n.
#pragma once

#include "quant/half.h"

namespace lb::quant {

// Bit i set: value i is negated.
LB_TABLE constexpr uint32_t kSignsBefore[4] = {0xe46a0359, 0x42f85949, 0xa4c63bbb, 0x49f250a9};
LB_TABLE constexpr uint32_t kSignsAfter[4] = {0x16acee90, 0x3f628fdc, 0xb7a5357a, 0xbea56562};

LB_FN float with_sign(float x, const uint32_t (&signs)[4], int i) {
  return float_of(bits_of(x) ^ (signs[i / 32] >> i % 32 & 1) << 31);
}

// Transforms x in place; n is a power of two up to 128.
LB_FN void transform(float* x, int n) {
  for (int stride = 1; stride < n; stride *= 2)
    for (int i = 0; i < n; ++i)
      if ((i & stride) == 0) {
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
  const float scale = n == 128 ? 0x1.6a09e6p-4f : n == 64 ? 0.125f : 0x1.6a09e6p-3f;  // 1 / sqrt(n)
  for (int i = 0; i < n; ++i) x[i] *= scale;
}

// Rotates n values in place; n is 32, 64 or 128.
LB_FN void rotate(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = with_sign(x[i], kSignsBefore, i);
  transform(x, n);
  for (int i = 0; i < n; ++i) x[i] = with_sign(x[i], kSignsAfter, i);
}
LB_FN void unrotate(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = with_sign(x[i], kSignsAfter, i);
  transform(x, n);
  for (int i = 0; i < n; ++i) x[i] = with_sign(x[i], kSignsBefore, i);
}

}  // namespace lb::quant
