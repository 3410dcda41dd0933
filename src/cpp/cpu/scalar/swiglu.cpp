// SwiGLU and GeGLU, the gated activations of the feed-forward block, the clamped form, and the soft cap.
#include <algorithm>
#include <cmath>

#include "cpu/scalar/scalar.h"
#include "ops/experts.h"

namespace lb::cpu::scalar {

void swiglu(const SwiGlu& op, int begin, int end) {
  for (long i = long(begin) * op.dim; i < long(end) * op.dim; ++i) op.y[i] = silu(op.gate[i]) * op.up[i];
}

void geglu(const GeGlu& op, int begin, int end) {
  for (int r = begin; r < end; ++r)
    for (int i = 0; i < op.dim; ++i) {
      const float x = op.gate[long(r) * op.dim + i];
      op.y[long(r) * op.dim + i] = x * sigmoid(2 * kGelu * (x + kGeluCube * x * x * x)) * op.up[r * op.up_stride + i];
    }
}

void soft_cap(float* x, long n, float cap) {
  for (long i = 0; i < n; ++i) x[i] = cap * std::tanh(x[i] / cap);
}

// std::min and std::max keep a NaN that is their first argument.
void clamped_swiglu(const float* gate, const float* up, float* y, int n, float limit) {
  for (int i = 0; i < n; ++i) {
    const float g = std::min(gate[i], limit), u = std::max(std::min(up[i], limit), -limit);
    y[i] = g * sigmoid(kClampedAlpha * g) * (u + 1);
  }
}

}  // namespace lb::cpu::scalar
