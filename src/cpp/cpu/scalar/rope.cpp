// Rotary embedding (RoPE). run_elementwise.cpp computes the table of angles for all instruction sets.
#include "cpu/scalar/scalar.h"

namespace lb::cpu::scalar {

void rope(const Rope& op, int begin, int end) {
  const bool halves = op.pairs == RopePairs::kHalves;
  for (int r = begin; r < end; ++r)
    for (int h = 0; h < op.heads; ++h) {
      float* x = op.x + (long(r) * op.heads + h) * op.dim;
      for (int i = 0; i < op.n_pairs; ++i) {
        const float c = op.cos[long(r) * op.n_pairs + i];
        const float s = op.sin[long(r) * op.n_pairs + i];
        float& a = halves ? x[i] : x[2 * i];
        float& b = halves ? x[i + op.n_pairs] : x[2 * i + 1];
        const float rotated = a * c - b * s;
        b = b * c + a * s;
        a = rotated;
      }
    }
}

}  // namespace lb::cpu::scalar
