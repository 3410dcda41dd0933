// LayerNorm: y = (x - mean) / sqrt(variance + eps) * w + b. A block per row, four values per thread at a time; the row
// is reread from L1 for the variance and for y. Bound: bandwidth, 8 bytes per value.
#include "dialect.h"

#include "ops/vision.h"

namespace lb::gpu {

LB_KERNEL(layer_norm_kernel, LayerNorm, 1024, 1) {
  LB_SHARED(float, scratch, 32);
  dependents_may_launch();
  wait_for_previous();
  const float* x = p.x + long(block_id()) * p.dim;
  float* y = p.y + long(block_id()) * p.dim;
  const int step = 4 * n_threads();
  float sum = 0;
  for (int i = 4 * thread_id(); i < p.dim; i += step) {
    const auto v = load<f32x4>(x + i);
    sum += (v[0] + v[1]) + (v[2] + v[3]);
  }
  const float mean = block_sum(sum, scratch) / float(p.dim);
  float squares = 0;
  for (int i = 4 * thread_id(); i < p.dim; i += step) {
    const auto v = load<f32x4>(x + i);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) squares = fma(v[j] - mean, v[j] - mean, squares);
  }
  const float scale = rsqrt_fast(block_sum(squares, scratch) / float(p.dim) + p.eps);
  for (int i = 4 * thread_id(); i < p.dim; i += step) {
    auto v = load<f32x4>(x + i);
    const auto w = load<f32x4>(p.w + i), b = load<f32x4>(p.b + i);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) v[j] = fma((v[j] - mean) * scale, w[j], b[j]);
    store(y + i, v);
  }
}

}  // namespace lb::gpu
