// Vector bodies of SwiGLU, GeGLU, the clamped form, and the soft cap.
#pragma once

#include "cpu/kernels.h"
#include "cpu/simd.h"
#include "ops/experts.h"

namespace lb::cpu {
namespace {

void swiglu(const SwiGlu& op, int begin, int end) {
  const long last = long(end) * op.dim;
  for (long i = long(begin) * op.dim; i < last; i += kLanes) {
    const int n = last - i < kLanes ? static_cast<int>(last - i) : kLanes;
    store(op.y + i, silu(load(op.gate + i, n)) * load(op.up + i, n), n);
  }
}

void geglu(const GeGlu& op, int begin, int end) {
  for (int r = begin; r < end; ++r) {
    const float *gate = op.gate + long(r) * op.dim, *up = op.up + r * op.up_stride;
    float* y = op.y + long(r) * op.dim;
    for (int i = 0; i < op.dim; i += kLanes) {
      const int n = op.dim - i;
      const vf x = load(gate + i, n);
      store(y + i, x * sigmoid((x + x * x * x * kGeluCube) * (2 * kGelu)) * load(up + i, n), n);
    }
  }
}

// cap tanh(x / cap) = cap (2 sigmoid(2 x / cap) - 1)
void soft_cap(float* x, long n, float cap) {
  for (long i = 0; i < n; i += kLanes) {
    const int left = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    store(x + i, (sigmoid(load(x + i, left) * (2 / cap)) * 2.0f - 1.0f) * cap, left);
  }
}

void clamped_swiglu(const float* gate, const float* up, float* y, int n, float limit) {
  const vf most = splat(limit), least = splat(-limit);
  for (int i = 0; i < n; i += kLanes) {
    vf g = load(gate + i, n - i), u = load(up + i, n - i);
    g = g > most ? most : g;  // keeps NaN
    u = u > most ? most : u < least ? least : u;
    store(y + i, g * sigmoid(g * kClampedAlpha) * (u + 1.0f), n - i);
  }
}

}  // namespace
}  // namespace lb::cpu
