// SwiGLU, the gated activation of the feed-forward block, and its clamped form.
#include <algorithm>

#include "cpu/scalar/scalar.h"
#include "ops/experts.h"

namespace lb::cpu::scalar {

void swiglu(const SwiGlu& op, int begin, int end) {
  for (long i = long(begin) * op.dim; i < long(end) * op.dim; ++i) op.y[i] = silu(op.gate[i]) * op.up[i];
}

// std::min and std::max keep a NaN that is their first argument.
void clamped_swiglu(const float* gate, const float* up, float* y, int n, float limit) {
  for (int i = 0; i < n; ++i) {
    const float g = std::min(gate[i], limit), u = std::max(std::min(up[i], limit), -limit);
    y[i] = g * sigmoid(kClampedAlpha * g) * (u + 1);
  }
}

}  // namespace lb::cpu::scalar
