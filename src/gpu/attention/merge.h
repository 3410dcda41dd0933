// The body of attention_merge: merges the partial softmaxes of the context's splits, gates, and optionally rounds:
//   o = sigmoid(gate) * sum_s 2^(m_s - m) o_s / sum_s 2^(m_s - m) l_s
// For a rotated V, the sum is rotated back before the gate. A sink adds 2^(sink - m) to the denominator.
//
// One block per head of a row. A thread sums four columns over every n_parts-th split, so that many loads are in
// flight. The order of additions depends on the shape and on how many splits have pages. The gate is older than
// attention_prepare, so it is loaded ahead of wait_for_previous(). Bound: latency; 4 head_dim bytes per split, row and
// head.
#pragma once

#include "gpu/attention/kv_store.h"
#include "gpu/attention/queries.h"
#include "gpu/round_block.h"

namespace lb::gpu {

// Online softmax state of several splits: l = sum 2^(s - m), o = sum 2^(s - m) v.
struct OpenSums {
  float m = kNothingSeen, l = 0;
  f32x4 o = {};

  // Rescales to a new maximum, top >= m.
  LB_DEVICE void raise(float top) {
    const float shrink = exp2_fast(m - (top == kNothingSeen ? 0.0f : top));
    m = top;
    l *= shrink;
    LB_UNROLL
    for (int j = 0; j < 4; ++j) o[j] *= shrink;
  }
  // Adds another state whose m is not larger. If that state saw no slot, its o was never written and may be NaN.
  LB_DEVICE void add(float other_m, float other_l, const f32x4& other_o) {
    const float weight = exp2_fast(other_m - (m == kNothingSeen ? 0.0f : m));
    l += weight * other_l;
    LB_UNROLL
    for (int j = 0; j < 4; ++j) o[j] += weight * (weight != 0 ? other_o[j] : 0.0f);
  }
};

// Arrays in shared memory, [kMaxMergeThreads] each.
struct MergeMemory {
  f32x4* o;
  float *m, *l;
};

// n_past: positions before the rows of p.
LB_DEVICE void merge_splits(const AttentionSplits& p, int n_past, const MergeMemory& parts) {
  const Attention& op = p.op;
  const int row = block_id() / op.n_heads, head = block_id() % op.n_heads, dim = op.cache.head_dim;
  const int n_live = live_splits(p, n_past);
  const int n_columns = dim / 4, n_parts = n_threads() / n_columns;
  const int part = thread_id() / n_columns, column = thread_id() % n_columns * 4;
  f32x4 gate = {1, 1, 1, 1};
  if (op.gate != nullptr && part == 0)
    gate = load<f32x4>(op.gate + row * op.gate_row_stride + head * op.gate_head_stride + column);
  const float sink = op.sinks == nullptr ? 0.0f : op.sinks[head] * kLog2E;  // an exponent of 2, as m
  dependents_may_launch();
  wait_for_previous();

  constexpr int kInFlight = kMergeInFlight;
  const long step = long(op.rows) * op.n_heads, first = block_id();
  OpenSums sums;
  for (int s = part; s < n_live && part < n_parts; s += kInFlight * n_parts) {
    float m[kInFlight], l[kInFlight], top = sums.m;
    f32x4 o[kInFlight];
    LB_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      const long at = (s + i * n_parts) * step + first;
      m[i] = kNothingSeen;
      if (s + i * n_parts >= n_live) continue;
      m[i] = p.m[at];
      l[i] = p.l[at];
      o[i] = load<f32x4>(p.o + at * dim + column);
    }
    LB_UNROLL
    for (int i = 0; i < kInFlight; ++i) top = max(top, m[i]);
    sums.raise(top);
    LB_UNROLL
    for (int i = 0; i < kInFlight; ++i)
      if (s + i * n_parts < n_live) sums.add(m[i], l[i], o[i]);
  }
  parts.o[thread_id()] = sums.o;
  parts.m[thread_id()] = sums.m;
  parts.l[thread_id()] = sums.l;
  block_barrier();
  if (warp() * 32 >= n_columns) return;  // whole warps return, because round_four and the rotation need whole warps

  const bool is_inside = part == 0;
  const int n_used_parts = min(n_parts, n_live), own = is_inside ? thread_id() : 0;
  float top = kNothingSeen;
  LB_UNROLL_BY(4)
  for (int i = 0; i < n_used_parts; ++i) top = max(top, parts.m[i * n_columns + own]);
  OpenSums merged;
  merged.raise(top);
  LB_UNROLL_BY(4)
  for (int i = 0; i < n_used_parts; ++i) {
    const int at = i * n_columns + own;
    merged.add(parts.m[at], parts.l[at], parts.o[at]);
  }
  float factor = 1;
  if (op.sinks != nullptr) {
    const float largest = max(merged.m, sink);
    factor = exp2_fast(merged.m - largest);
    merged.l = merged.l * factor + exp2_fast(sink - largest);
  }
  const float scale = factor / merged.l;
  f32x4 o[1];
  LB_UNROLL
  for (int j = 0; j < 4; ++j) o[0][j] = merged.o[j] * scale;
  if (stores_rotated(op.cache.v_type)) unrotate_head(o, rotated_group(dim));
  LB_UNROLL
  for (int j = 0; j < 4; ++j) o[0][j] *= op.gate != nullptr ? sigmoid(gate[j]) : 1.0f;
  if (is_inside) store(op.o + first * dim + column, o[0]);
  if (p.rounded.high != nullptr) round_four(p.rounded, first * dim + column, o[0], is_inside);
}

}  // namespace lb::gpu
