// SwiGLU, the gated activation of the feed-forward block.
#include "cpu/scalar/scalar.h"

namespace lb::cpu::scalar {

void swiglu(const SwiGlu& op, int begin, int end) {
  for (long i = long(begin) * op.dim; i < long(end) * op.dim; ++i) op.y[i] = silu(op.gate[i]) * op.up[i];
}

}  // namespace lb::cpu::scalar
