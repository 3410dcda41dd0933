// y[r,c] = sum_t (base[t,c] + kernels[r, t, c / group]) x[r - t, c] (+ add[r,c])
//
// A thread computes four channels of a row, or one if rows are unaligned or groups are not multiples of four.
// Bound: latency; 8 bytes per value and the kernels; other rows of x come from cache.
#include "dialect.h"

#include "gpu/elementwise/rows.h"
#include "ops/block_conv.h"

namespace lb::gpu {

template <int kWidth>
LB_DEVICE void block_conv(const BlockConv& p) {
  using V = Vec<float, kWidth>;
  const int row_parts = p.dim / kWidth, n_groups = p.dim / p.group;
  const int count = p.rows * row_parts, step = n_blocks() * n_threads();
  for (int i = block_id() * n_threads() + thread_id(); i < count; i += step) {
    const int row = i / row_parts, c = i % row_parts * kWidth;
    const float* x = p.x + long(i) * kWidth;
    const float* kernel = p.kernels + row * p.kernel_stride + c / p.group;
    V sum = {};
    if (p.add != nullptr) sum = load<V>(p.add + long(i) * kWidth);
    for (int t = 0; t < p.n_taps && t <= row; ++t) {
      const V base = load<V>(p.base + long(t) * p.dim + c), value = load<V>(x - long(t) * p.dim);
      const float own = kernel[long(t) * n_groups];
      LB_UNROLL
      for (int j = 0; j < kWidth; ++j) sum[j] = fma(base[j] + own, value[j], sum[j]);
    }
    store(p.y + long(i) * kWidth, sum);
  }
}

LB_KERNEL(block_conv_kernel, BlockConv, 256, 1) {
  wait_for_previous();
  dependents_may_launch();
  const bool is_wide = p.group % 4 == 0 && is_aligned(p.x, p.dim) && is_aligned(p.base, p.dim) &&
                       is_aligned(p.add, p.dim) && is_aligned(p.y, p.dim);
  is_wide ? block_conv<4>(p) : block_conv<1>(p);
}

}  // namespace lb::gpu
