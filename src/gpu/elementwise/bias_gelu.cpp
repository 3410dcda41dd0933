// BiasGelu, in place, four values per thread. Grid: x walks a row, y the rows. Bound: bandwidth, 8 bytes per value.
#include "dialect.h"

#include "gpu/activation.h"
#include "ops/vision.h"

namespace lb::gpu {

// x erfc(-x / sqrt(2)) / 2; erfc of |x| by Abramowitz and Stegun, 7.1.26: an error of 1.5e-7.
LB_DEVICE float gelu_erf(float x) {
  const float z = abs(x) * 0.707106781f, t = rcp_fast(1.0f + 0.3275911f * z);
  float sum = 1.061405429f;
  sum = fma(sum, t, -1.453152027f);
  sum = fma(sum, t, 1.421413741f);
  sum = fma(sum, t, -0.284496736f);
  sum = fma(sum, t, 0.254829592f);
  const float tail = sum * t * exp_nonpositive(-z * z);
  return 0.5f * x * (x < 0 ? tail : 2.0f - tail);
}

LB_KERNEL(bias_gelu_kernel, BiasGelu, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const int i = 4 * (block_id() * n_threads() + thread_id());
  if (i >= p.dim) return;
  float* to = p.y + long(block_id_y()) * p.dim + i;
  auto v = load<f32x4>(to);
  const auto bias = load<f32x4>(p.bias + i);
  LB_UNROLL
  for (int j = 0; j < 4; ++j) v[j] = p.is_exact ? gelu_erf(v[j] + bias[j]) : gelu(v[j] + bias[j]);
  store(to, v);
}

}  // namespace lb::gpu
