// GeGlu: y = gelu(gate) * up, with rows of up at a stride; y is optionally rounded. A thread computes four values, or
// one if rows are unaligned. Bound: latency for few rows, else bandwidth, 12 bytes per value.
#include "dialect.h"

#include "gpu/activation.h"
#include "gpu/elementwise/rows.h"
#include "gpu/round_block.h"
#include "ops/linear.h"

namespace lb::gpu {

template <int kWidth>
LB_DEVICE void geglu(const GeGlu& p) {
  const int row_parts = p.dim / kWidth;
  const long count = long(p.rows) * row_parts, step = long(n_blocks()) * n_threads();
  for (long i = long(block_id()) * n_threads() + thread_id(); i - lane() < count; i += step) {  // whole warps
    const bool is_inside = i < count;
    Vec<float, kWidth> v = {};
    if (is_inside) {
      v = load<Vec<float, kWidth>>(p.gate + i * kWidth);
      const auto up = load<Vec<float, kWidth>>(p.up + i / row_parts * p.up_stride + i % row_parts * kWidth);
      LB_UNROLL
      for (int j = 0; j < kWidth; ++j) v[j] = gelu(v[j]) * up[j];
      store(p.y + i * kWidth, v);
    }
    if constexpr (kWidth == 4)
      if (p.rounded.high != nullptr) round_four(p.rounded, i * kWidth, v, is_inside);
  }
}

LB_KERNEL(geglu_kernel, GeGlu, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const bool is_wide = is_aligned(p.gate, p.dim) && is_aligned(p.up, p.up_stride) && is_aligned(p.y, p.dim);
  is_wide ? geglu<4>(p) : geglu<1>(p);
}

}  // namespace lb::gpu
