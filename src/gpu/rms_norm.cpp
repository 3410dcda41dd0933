// Root-mean-square norms: y = x / sqrt(mean(x^2) + eps) * w, gated also times silu(z).
// One block a head of a row; a thread squares what it later scales, so the second reading comes from L1.
// Bound: bandwidth, 8 bytes a value (12 gated).
#include "dialect.h"

#include "activation.h"
#include "ops/rms_norm.h"
#include "rows.h"

namespace lb::gpu {

// y[i] = x[i] * scale * w[i] * gate(i)
template <int kWidth, class Gate>
LB_DEVICE void normalise(const float* x, const float* w, float* y, int dim, float eps, float* scratch, Gate&& gate) {
  float sum = 0;
  for (int i = thread_id(); i < dim / kWidth; i += n_threads()) {
    const auto v = values<kWidth>(x, i);
    LB_UNROLL
    for (int j = 0; j < kWidth; ++j) sum += v[j] * v[j];
  }
  const float scale = rsqrt_fast(block_sum(sum, scratch) / float(dim) + eps);
  for (int i = thread_id(); i < dim / kWidth; i += n_threads()) {
    auto v = values<kWidth>(x, i);
    const auto weight = values<kWidth>(w, i);
    LB_UNROLL
    for (int j = 0; j < kWidth; ++j) v[j] = v[j] * scale * weight[j] * gate(i * kWidth + j);
    store(y + long(i) * kWidth, v);
  }
}

LB_KERNEL(rms_norm_kernel, RmsNorm, 512, 1) {
  LB_SHARED(float, scratch, 32);
  dependents_may_launch();
  wait_for_previous();
  const int row = block_id() / p.heads, head = block_id() % p.heads;
  const float* x = p.x + row * p.row_stride + head * p.head_stride;
  float* y = p.y + long(block_id()) * p.dim;
  const auto no_gate = [](int) { return 1.0f; };
  if (is_aligned(p.x, p.row_stride) && is_aligned(p.w, p.head_stride) && is_aligned(p.y, p.dim))
    normalise<4>(x, p.w, y, p.dim, p.eps, scratch, no_gate);
  else
    normalise<1>(x, p.w, y, p.dim, p.eps, scratch, no_gate);
}

LB_KERNEL(gated_rms_norm_kernel, GatedRmsNorm, 512, 1) {
  LB_SHARED(float, scratch, 32);
  dependents_may_launch();
  wait_for_previous();
  const long at = long(block_id()) * p.dim;
  const auto gate = [&](int i) { return silu(p.z[at + i]); };
  if (is_aligned(p.o, p.dim) && is_aligned(p.w, 0) && is_aligned(p.y, p.dim))
    normalise<4>(p.o + at, p.w, p.y + at, p.dim, p.eps, scratch, gate);
  else
    normalise<1>(p.o + at, p.w, p.y + at, p.dim, p.eps, scratch, gate);
}

}  // namespace lb::gpu
