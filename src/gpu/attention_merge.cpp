// o = sigmoid(gate) * sum_s 2^(m_s - m) o_s / sum_s 2^(m_s - m) l_s: the splits of the context become one softmax.
//
// A block a head of a row. Threads that share columns take every n-th split, so that many partials are on their way at
// once; the order of the sums depends on the shape alone. Bound: latency; 4 head_dim bytes a split, row and head.
#include "dialect.h"

#include "attention_queries.h"

namespace lb::gpu {

LB_KERNEL(attention_merge_kernel, AttentionSplits, kMergeThreads, 1) {
  LB_SHARED(float, weights, kMaxSplits);
  LB_SHARED(f32x4, sums, kMergeThreads);
  LB_SHARED(float, reduction, 32);
  dependents_may_launch();
  wait_for_previous();

  const Attention& op = p.op;
  const int row = block_id() / op.n_heads, head = block_id() % op.n_heads, dim = op.cache.head_dim;
  const long step = long(op.rows) * op.n_heads, first = block_id();
  float m = kNothingSeen;
  for (int s = thread_id(); s < p.n_splits; s += n_threads()) m = max(m, p.m[s * step + first]);
  m = block_max(m, reduction);
  float l = 0;
  for (int s = thread_id(); s < p.n_splits; s += n_threads()) {
    const float weight = exp2_fast(p.m[s * step + first] - m);
    weights[s] = weight;
    l += weight * p.l[s * step + first];
  }
  l = block_sum(l, reduction);  // its barriers show the weights to all

  const int n_columns = dim / 4, n_parts = n_threads() / n_columns;
  const int part = thread_id() / n_columns, column = thread_id() % n_columns * 4;
  f32x4 sum = {};
  if (part < n_parts) {
    LB_UNROLL_BY(4)
    for (int s = part; s < p.n_splits; s += n_parts) {
      const float weight = weights[s];
      f32x4 o = {};  // there is none where nothing was seen
      if (weight != 0) o = load<f32x4>(p.o + (s * step + first) * dim + column);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) sum[j] += weight * o[j];
    }
  }
  sums[thread_id()] = sum;
  block_barrier();
  if (part != 0) return;
  const float scale = 1.0f / l;
  for (int i = 1; i < n_parts; ++i) {
    const f32x4 more = sums[i * n_columns + thread_id()];
    LB_UNROLL
    for (int j = 0; j < 4; ++j) sum[j] += more[j];
  }
  LB_UNROLL
  for (int j = 0; j < 4; ++j) sum[j] *= scale * gate_of(op, row, head, column + j);
  store(op.o + first * dim + column, sum);
}

}  // namespace lb::gpu
