// Vector body of the rotary embedding (RoPE).
#pragma once

#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace lb::cpu {
namespace {

void rope(const Rope& op, int begin, int end) {
  const int n = op.n_pairs;
  for (int r = begin; r < end; ++r) {
    const float* cos = op.cos + long(r) * n;
    const float* sin = op.sin + long(r) * n;
    for (int h = 0; h < op.heads; ++h) {
      float* x = op.x + (long(r) * op.heads + h) * op.dim;
      if (op.pairs == RopePairs::kHalves) {
        for (int i = 0; i < n; i += kLanes) {
          const vf a = load(x + i, n - i), b = load(x + n + i, n - i);
          const vf c = load(cos + i, n - i), s = load(sin + i, n - i);
          store(x + i, a * c - b * s, n - i);
          store(x + n + i, b * c + a * s, n - i);
        }
      } else {
        for (int i = 0; i < n; ++i) {
          const float a = x[2 * i], b = x[2 * i + 1];
          x[2 * i] = a * cos[i] - b * sin[i];
          x[2 * i + 1] = b * cos[i] + a * sin[i];
        }
      }
    }
  }
}

}  // namespace
}  // namespace lb::cpu
