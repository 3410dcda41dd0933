// Vector body of BlockConv. Bound by the caches: 4 * (2 n_taps + 1) bytes per value.
#pragma once

#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace lb::cpu {
namespace {

void block_conv(const BlockConv& op, int begin, int end) {
  const int n_groups = op.dim / op.group;
  for (int r = begin; r < end; ++r) {
    const int n_taps = r + 1 < op.n_taps ? r + 1 : op.n_taps;
    for (int g = 0; g < n_groups; ++g)
      for (int c = g * op.group; c < (g + 1) * op.group; c += kLanes) {
        const int n = (g + 1) * op.group - c;
        const long at = long(r) * op.dim + c;
        vf sum = op.add ? load(op.add + at, n) : vf{};
        for (int t = 0; t < n_taps; ++t) {
          const vf w = load(op.base + long(t) * op.dim + c, n) + op.kernels[r * op.kernel_stride + t * n_groups + g];
          sum = fma(w, load(op.x + at - long(t) * op.dim, n), sum);
        }
        store(op.y + at, sum, n);
      }
  }
}

}  // namespace
}  // namespace lb::cpu
