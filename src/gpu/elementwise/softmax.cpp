// y = exp(scale x - m) / sum exp(scale x - m), m the row's maximum.
//   softmax_kernel       a block a row: three passes, the last two from cache
//   softmax_grid_kernel  few long rows: every block takes a piece of each row, leaves (m, sum) of it, waits for the
//                        others at one grid barrier, and scales its piece. Cooperative.
// Bound: bandwidth, 8 bytes a value when the row stays in cache.
#include "dialect.h"

#include "gpu/activation.h"
#include "ops/grid_work.h"
#include "ops/softmax.h"

namespace lb::gpu {

inline constexpr float kMinusInfinity = -__builtin_inff();

// Of values [begin, end): the maximum m, and the sum of exp(scale x - m), 0 when m is -infinity.
LB_DEVICE f32x2 max_and_sum(const float* x, int begin, int end, float scale, float* scratch) {
  float m = kMinusInfinity;
  for (int i = begin + thread_id(); i < end; i += n_threads()) m = max(m, scale * x[i]);
  m = block_max(m, scratch);
  float sum = 0;
  for (int i = begin + thread_id(); i < end; i += n_threads()) {
    const float v = scale * x[i];
    sum += v == kMinusInfinity ? 0.0f : exp_nonpositive(v - m);
  }
  return {m, block_sum(sum, scratch)};
}

LB_DEVICE void write(const Softmax& p, int row, int begin, int end, f32x2 max_sum) {
  const float* x = p.x + long(row) * p.dim;
  float* y = p.y + long(row) * p.dim;
  const float share = 1.0f / max_sum[1];
  for (int i = begin + thread_id(); i < end; i += n_threads())
    y[i] = exp_nonpositive(p.scale * x[i] - max_sum[0]) * share;
}

LB_KERNEL(softmax_kernel, Softmax, 1024, 1) {
  LB_SHARED(float, scratch, 32);
  dependents_may_launch();
  wait_for_previous();
  const int row = block_id();
  write(p, row, 0, p.dim, max_and_sum(p.x + long(row) * p.dim, 0, p.dim, p.scale, scratch));
}

LB_KERNEL(softmax_grid_kernel, OnGrid<Softmax>, 512, 1) {
  LB_SHARED(float, scratch, 32);
  wait_for_previous();
  const Softmax& op = p.op;
  f32x2* partials = static_cast<f32x2*>(p.work.partials);  // [rows, blocks]
  const int begin = int(long(op.dim) * block_id() / n_blocks());
  const int end = int(long(op.dim) * (block_id() + 1) / n_blocks());
  for (int row = 0; row < op.rows; ++row) {
    const f32x2 own = max_and_sum(op.x + long(row) * op.dim, begin, end, op.scale, scratch);
    if (thread_id() == 0) partials[long(row) * n_blocks() + block_id()] = own;
  }
  grid_barrier(p.work.barrier);
  for (int row = 0; row < op.rows; ++row) {
    const f32x2* of_row = partials + long(row) * n_blocks();
    float m = kMinusInfinity;
    for (int i = thread_id(); i < n_blocks(); i += n_threads()) m = max(m, of_row[i][0]);
    m = block_max(m, scratch);
    float sum = 0;
    for (int i = thread_id(); i < n_blocks(); i += n_threads()) sum += of_row[i][1] * exp_nonpositive(of_row[i][0] - m);
    write(op, row, begin, end, {m, block_sum(sum, scratch)});
  }
}

}  // namespace lb::gpu
