// DFlash 2's convolution over a block.
#include "cpu/scalar/scalar.h"

namespace lb::cpu::scalar {

void block_conv(const BlockConv& op, int begin, int end) {
  const int n_groups = op.dim / op.group;
  for (int r = begin; r < end; ++r)
    for (int c = 0; c < op.dim; ++c) {
      float sum = op.add ? op.add[long(r) * op.dim + c] : 0.0f;
      for (int t = 0; t < op.n_taps && t <= r; ++t) {
        const float w = op.base[long(t) * op.dim + c] + op.kernels[r * op.kernel_stride + t * n_groups + c / op.group];
        sum += w * op.x[long(r - t) * op.dim + c];
      }
      op.y[long(r) * op.dim + c] = sum;
    }
}

}  // namespace lb::cpu::scalar
