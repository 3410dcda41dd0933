// In place: q and k of unit length per head (q also / sqrt(dk)), the log decay g and beta.
// One warp a head's q or k, or 32 value heads' g and beta of a row.
// Bound: bandwidth, 8 bytes a value; values beyond four a lane are read again from L1.
#include "dialect.h"

#include "activation.h"
#include "launch/delta_net_shape.h"

namespace lb::gpu {

// log(1 + e) for e in (0, 1], to an ulp or two: 2 atanh(e / (2 + e)), whose series ends below 2^-28 at s = 1/3.
LB_DEVICE float log1p_of_unit(float e) {
  const float s = e / (2.0f + e), s2 = s * s;
  float series = 1.0f / 15;
  series = fma(series, s2, 1.0f / 13);
  series = fma(series, s2, 1.0f / 11);
  series = fma(series, s2, 1.0f / 9);
  series = fma(series, s2, 1.0f / 7);
  series = fma(series, s2, 1.0f / 5);
  series = fma(series, s2, 1.0f / 3);
  return 2.0f * fma(series * s2, s, s);
}

LB_DEVICE float softplus(float x) { return max(x, 0.0f) + log1p_of_unit(exp_nonpositive(-abs(x))); }

LB_DEVICE void normalise(float* x, int n, float eps, float factor) {
  float sum = 0;
  for (int i = lane(); i < n; i += 32) sum = fma(x[i], x[i], sum);
  const float scale = factor / sqrt(warp_sum(sum) + eps);
  for (int i = lane(); i < n; i += 32) x[i] *= scale;
}

// dependents_may_launch() comes second: who starts then may rely on all that lies before this kernel.
LB_KERNEL(delta_prepare_kernel, DeltaPrepare, 256, 1) {
  wait_for_previous();
  dependents_may_launch();
  const int n_gates = (p.n_v_heads + 31) / 32, n_items = 2 * p.n_k_heads + n_gates;
  const long item = long(block_id()) * n_warps() + warp();
  const long row = item / n_items;
  const int of_row = int(item % n_items);
  if (row >= p.rows) return;
  if (of_row < p.n_k_heads) {
    normalise(p.q + row * p.row_stride + long(of_row) * p.dk, p.dk, p.eps, 1.0f / sqrt(float(p.dk)));
  } else if (of_row < 2 * p.n_k_heads) {
    normalise(p.k + row * p.row_stride + long(of_row - p.n_k_heads) * p.dk, p.dk, p.eps, 1.0f);
  } else {
    const int head = (of_row - 2 * p.n_k_heads) * 32 + lane();
    if (head >= p.n_v_heads) return;
    float* g = p.g + row * p.n_v_heads + head;
    float* beta = p.beta + row * p.n_v_heads + head;
    *g = p.a_neg[head] * softplus(*g + p.dt_bias[head]);
    *beta = sigmoid(*beta);
  }
}

}  // namespace lb::gpu
