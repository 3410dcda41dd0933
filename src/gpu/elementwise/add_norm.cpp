// AddNorm: y = scale (x + z / sqrt(mean(z^2) + eps) w), a block per row. A thread's first values stay in registers; the
// others are reread from L1. Bound: latency for few rows, else bandwidth, 12 bytes per value.
#include "dialect.h"

#include "gpu/elementwise/rows.h"
#include "ops/rms_norm.h"

namespace lb::gpu {

template <int kWidth>
LB_DEVICE void add_norm(const AddNorm& p, float* scratch) {
  using Values = Vec<float, kWidth>;
  const long at = long(block_id()) * p.dim;
  const int n = p.dim / kWidth, index = thread_id();
  const float *x = p.x + at, *z = p.z + at;
  const auto read = [&](const float* from, int i) { return i < n ? values<kWidth>(from, i) : Values{}; };
  const Values weight = read(p.w, index);
  dependents_may_launch();
  wait_for_previous();

  const Values first = read(z, index);
  float sum = 0;
  LB_UNROLL
  for (int j = 0; j < kWidth; ++j) sum += first[j] * first[j];
  for (int i = index + n_threads(); i < n; i += n_threads()) {
    const Values v = values<kWidth>(z, i);
    LB_UNROLL
    for (int j = 0; j < kWidth; ++j) sum += v[j] * v[j];
  }
  const float by = rsqrt_fast(block_sum(sum, scratch) / float(p.dim) + p.eps);

  const auto finish = [&](int i, Values v, const Values& w) {
    const Values to = values<kWidth>(x, i);
    LB_UNROLL
    for (int j = 0; j < kWidth; ++j) v[j] = p.scale * (to[j] + v[j] * by * w[j]);
    store(p.y + at + long(i) * kWidth, v);
  };
  if (index < n) finish(index, first, weight);
  for (int i = index + n_threads(); i < n; i += n_threads()) finish(i, read(z, i), read(p.w, i));
}

LB_KERNEL(add_norm_kernel, AddNorm, 1024, 1) {
  LB_SHARED(float, scratch, 32);
  const bool is_wide = is_aligned(p.x, p.dim) && is_aligned(p.z, p.dim) && is_aligned(p.w, 0) && is_aligned(p.y, p.dim);
  is_wide ? add_norm<4>(p, scratch) : add_norm<1>(p, scratch);
}

}  // namespace lb::gpu
