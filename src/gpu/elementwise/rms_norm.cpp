// Root-mean-square norms: y = x / sqrt(mean(x^2) + eps) * w, also times silu(z) if gated; y is optionally rounded. One
// block per head of a row, or one warp for short heads. A thread's first values stay in registers; the others are
// reread from L1. The first weights are loaded before the previous kernel has ended.
// Bound: latency for few rows, else bandwidth, 8 bytes per value (12 gated).
#include "dialect.h"

#include "gpu/activation.h"
#include "gpu/elementwise/rows.h"
#include "gpu/elementwise/shape.h"
#include "gpu/round_block.h"
#include "ops/rms_norm.h"

namespace lb::gpu {

// The threads that compute one norm: a block, or one of its warps.
struct Team {
  int head;  // flat index across rows
  int index, n_threads;
  float* scratch;  // for the block's sum; null: the team is a warp

  LB_DEVICE Team(int dim, float* scratch_) {
    const bool is_warp = dim <= kWarpNormDim;
    head = is_warp ? block_id() * n_warps() + warp() : block_id();
    index = is_warp ? lane() : thread_id();
    n_threads = is_warp ? 32 : gpu::n_threads();
    scratch = is_warp ? nullptr : scratch_;
  }
  LB_DEVICE float sum(float v) const { return scratch == nullptr ? warp_sum(v) : block_sum(v, scratch); }
};

// y[at + i] = x[i] * scale * w[i] * gate(i), with `at` the head's first value in y.
template <int kWidth, class Gate>
LB_DEVICE void normalise(const Team& team, const float* x, const float* w, float* y, const RoundedRows& rounded,
                         int dim, float eps, Gate&& gate) {
  using Values = Vec<float, kWidth>;
  const int n = dim / kWidth, index = team.index;
  const long at = long(team.head) * dim;
  const auto read = [&](const float* from, int i) { return i < n ? values<kWidth>(from, i) : Values{}; };
  const Values weight = read(w, index);
  dependents_may_launch();
  wait_for_previous();

  const Values first = read(x, index), first_gate = gate(index);
  float sum = 0;
  LB_UNROLL
  for (int j = 0; j < kWidth; ++j) sum += first[j] * first[j];
  for (int i = index + team.n_threads; i < n; i += team.n_threads) {
    const Values v = values<kWidth>(x, i);
    LB_UNROLL
    for (int j = 0; j < kWidth; ++j) sum += v[j] * v[j];
  }
  const float scale = rsqrt_fast(team.sum(sum) / float(dim) + eps);

  const auto finish = [&](int i, Values v, const Values& weights, const Values& g) {
    LB_UNROLL
    for (int j = 0; j < kWidth; ++j) v[j] = v[j] * scale * weights[j] * g[j];
    if (i < n) store(y + at + long(i) * kWidth, v);
    if constexpr (kWidth == 4)
      if (rounded.high != nullptr) round_four(rounded, at + long(i) * kWidth, v, i < n);
  };
  finish(index, first, weight, first_gate);
  for (int i = index + team.n_threads; i - lane() < n; i += team.n_threads)  // whole warps, for round_four
    finish(i, read(x, i), read(w, i), gate(i));
}

template <int kWidth>
LB_DEVICE void rms_norm(const RmsNorm& p, float* scratch) {
  const Team team(p.dim, scratch);
  const int row = team.head / p.heads, head = team.head % p.heads;
  if (row >= p.rows) return;  // whole teams return
  Vec<float, kWidth> ones;
  LB_UNROLL
  for (int j = 0; j < kWidth; ++j) ones[j] = 1;
  normalise<kWidth>(team, p.x + row * p.row_stride + head * p.head_stride, p.w, p.y, p.rounded, p.dim, p.eps,
                    [&](int) { return ones; });
}

LB_KERNEL(rms_norm_kernel, RmsNorm, 1024, 1) {
  LB_SHARED(float, scratch, 32);
  const bool is_wide = is_aligned(p.x, p.row_stride) && is_aligned(p.w, p.head_stride) && is_aligned(p.y, p.dim);
  is_wide ? rms_norm<4>(p, scratch) : rms_norm<1>(p, scratch);
}

template <int kWidth>
LB_DEVICE void gated_rms_norm(const GatedRmsNorm& p, float* scratch) {
  const Team team(p.dim, scratch);
  if (team.head >= p.rows * p.heads) return;  // whole teams return
  const long at = long(team.head) * p.dim;
  normalise<kWidth>(team, p.o + at, p.w, p.y, p.rounded, p.dim, p.eps, [&](int i) {
    Vec<float, kWidth> z = {};
    if (i < p.dim / kWidth) z = values<kWidth>(p.z + at, i);
    LB_UNROLL
    for (int j = 0; j < kWidth; ++j) z[j] = silu(z[j]);
    return z;
  });
}

LB_KERNEL(gated_rms_norm_kernel, GatedRmsNorm, 1024, 1) {
  LB_SHARED(float, scratch, 32);
  const bool is_wide = is_aligned(p.o, p.dim) && is_aligned(p.z, p.dim) && is_aligned(p.w, 0) && is_aligned(p.y, p.dim);
  is_wide ? gated_rms_norm<4>(p, scratch) : gated_rms_norm<1>(p, scratch);
}

}  // namespace lb::gpu
