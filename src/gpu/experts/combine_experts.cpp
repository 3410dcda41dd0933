// CombineExperts: the weighted sum of a row's choices, the shared expert and the residual. Four values per thread, or
// one if rows are unaligned. Bound: bandwidth, 4 (k + 3) bytes per value; latency for few rows.
#include "dialect.h"

#include "gpu/activation.h"
#include "gpu/elementwise/rows.h"
#include "gpu/experts/shape.h"

namespace lb::gpu {

template <int kWidth>
LB_DEVICE void combine(const CombineExperts& p) {
  using Values = Vec<float, kWidth>;
  const int row_parts = p.dim / kWidth;
  const long count = long(p.rows) * row_parts, step = long(n_blocks()) * n_threads();
  for (long i = long(block_id()) * n_threads() + thread_id(); i < count; i += step) {
    const int row = int(i / row_parts), column = int(i % row_parts) * kWidth;
    const float* weights = p.weights + long(row) * p.k;
    const float* x = p.x + long(row) * p.k * p.dim + column;
    Values sum = {};
    for (int j = 0; j < p.k; ++j) {
      const auto v = load<Values>(x + long(j) * p.dim);
      const float weight = weights[j];
      LB_UNROLL
      for (int c = 0; c < kWidth; ++c) sum[c] = j == 0 ? weight * v[c] : fma(weight, v[c], sum[c]);
    }
    const long at = long(row) * p.dim + column;
    if (p.shared != nullptr) {
      const float gate = p.shared_gate != nullptr ? sigmoid(p.shared_gate[row]) : 1.0f;
      const auto v = load<Values>(p.shared + at);
      LB_UNROLL
      for (int c = 0; c < kWidth; ++c) sum[c] = fma(gate, v[c], sum[c]);
    }
    if (p.add != nullptr) {
      const auto v = load<Values>(p.add + at);
      LB_UNROLL
      for (int c = 0; c < kWidth; ++c) sum[c] += v[c];
    }
    store(p.y + at, sum);
  }
}

LB_KERNEL(combine_experts_kernel, CombineExperts, kCombineThreads, 1) {
  dependents_may_launch();
  wait_for_previous();
  const bool is_wide =
      is_aligned(p.x, p.dim) && is_aligned(p.y, p.dim) && is_aligned(p.shared, p.dim) && is_aligned(p.add, p.dim);
  is_wide ? combine<4>(p) : combine<1>(p);
}

}  // namespace lb::gpu
