// DeltaPrepare, in place: q and k normalised per head (q also divided by sqrt(dk)), the log decay g, and beta. One warp
// per head of q or k of a row, or per 32 value heads' gates.
// Bound: bandwidth, 8 bytes per value; values beyond four per lane are reread from L1.
#include "dialect.h"

#include "gpu/delta_net/gates.h"
#include "gpu/delta_net/shape.h"

namespace lb::gpu {

LB_DEVICE void normalise(float* x, int n, float eps, float factor) {
  float sum = 0;
  for (int i = lane(); i < n; i += 32) sum = fma(x[i], x[i], sum);
  const float scale = factor / sqrt(warp_sum(sum) + eps);
  for (int i = lane(); i < n; i += 32) x[i] *= scale;
}

// dependents_may_launch() follows the wait, so dependents may rely on everything older than this kernel.
LB_KERNEL(delta_prepare_kernel, DeltaPrepare, 256, 1) {
  wait_for_previous();
  dependents_may_launch();
  const int n_gates = (p.n_v_heads + 31) / 32, n_items = 2 * p.n_k_heads + n_gates;
  const long item = long(block_id()) * n_warps() + warp();
  const long row = item / n_items;
  const int item_of_row = int(item % n_items);
  if (row >= p.rows) return;
  if (item_of_row < p.n_k_heads) {
    normalise(p.q + row * p.row_stride + long(item_of_row) * p.dk, p.dk, p.eps, 1.0f / sqrt(float(p.dk)));
  } else if (item_of_row < 2 * p.n_k_heads) {
    normalise(p.k + row * p.row_stride + long(item_of_row - p.n_k_heads) * p.dk, p.dk, p.eps, 1.0f);
  } else {
    const int head = (item_of_row - 2 * p.n_k_heads) * 32 + lane();
    if (head >= p.n_v_heads) return;
    prepare_gates(p, row, head);
  }
}

}  // namespace lb::gpu
