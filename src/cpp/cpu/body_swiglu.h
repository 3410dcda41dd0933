// Vector bodies of SwiGLU and its clamped form.
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
