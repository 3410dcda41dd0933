// SwiGlu: y = silu(gate) * up; y is optionally rounded. A thread computes four values, or one if rows are unaligned.
// Bound: latency for few rows, else bandwidth, 12 bytes per value.
#include "dialect.h"

#include "gpu/activation.h"
#include "gpu/elementwise/rows.h"
#include "gpu/round_block.h"
#include "ops/linear.h"

namespace lb::gpu {

template <int kWidth>
LB_DEVICE void swiglu(const SwiGlu& p) {
  const long count = long(p.rows) * p.dim / kWidth, step = long(n_blocks()) * n_threads();
  for (long i = long(block_id()) * n_threads() + thread_id(); i - lane() < count; i += step) {  // whole warps
    const bool is_inside = i < count;
    Vec<float, kWidth> v = {};
    if (is_inside) {
      v = load<Vec<float, kWidth>>(p.gate + i * kWidth);
      const auto up = load<Vec<float, kWidth>>(p.up + i * kWidth);
      LB_UNROLL
      for (int j = 0; j < kWidth; ++j) v[j] = silu(v[j]) * up[j];
      store(p.y + i * kWidth, v);
    }
    if constexpr (kWidth == 4)
      if (p.rounded.high != nullptr) round_four(p.rounded, i * kWidth, v, is_inside);
  }
}

LB_KERNEL(swiglu_kernel, SwiGlu, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const bool is_wide = is_aligned(p.gate, p.dim) && is_aligned(p.up, p.dim) && is_aligned(p.y, p.dim);
  is_wide ? swiglu<4>(p) : swiglu<1>(p);
}

}  // namespace lb::gpu
