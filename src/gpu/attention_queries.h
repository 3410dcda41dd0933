// What the attention kernels share: which query is what, which slots a row sees, where a result goes.
#pragma once

#include "activation.h"
#include "launch/attention_shape.h"

namespace lb::gpu {

inline constexpr float kNothingSeen = -__builtin_inff();  // the maximum of no score
inline constexpr float kLog2E = 1.44269504f;

// Pages [begin, end) of a split.
struct PageRun {
  int begin, end;
};
LB_DEVICE PageRun pages_of(int split, int n_splits, int n_slots) {
  const int n_pages = (n_slots + kPageTokens - 1) / kPageTokens;
  return {n_pages * split / n_splits, n_pages * (split + 1) / n_splits};
}

// The queries of one KV head, row after row, each row's heads together: a tile of them reads K and V once.
struct Queries {
  int kv_head, group, n;

  LB_DEVICE Queries(const Attention& op, int head)
      : kv_head(head), group(op.n_heads / op.cache.n_kv_heads), n(op.rows * group) {}
  LB_DEVICE int row(int query) const { return query / group; }
  LB_DEVICE int head(int query) const { return kv_head * group + query % group; }
  // Its index in [rows, n_heads].
  LB_DEVICE long at(const Attention& op, int query) const { return long(row(query)) * op.n_heads + head(query); }
};

// Whether `row` sees the slot n_past + `offset`.
LB_DEVICE bool sees(const Attention& op, int row, int offset) {
  if (offset < 0) return true;
  if (op.tree.ancestors == nullptr) return offset <= row;
  return offset < op.rows && (op.tree.ancestors[row] >> offset & 1) != 0;
}

// Slots of a block whose last row is `last_row`: a chain's rows see none behind themselves.
LB_DEVICE int slots_seen(const Attention& op, int n_past, int last_row) {
  return n_past + (op.tree.ancestors == nullptr ? min(last_row + 1, op.rows) : op.rows);
}

LB_DEVICE float gate_of(const Attention& op, int row, int head, int i) {
  return op.gate == nullptr ? 1.0f : sigmoid(op.gate[row * op.gate_row_stride + head * op.gate_head_stride + i]);
}

// Four columns of a query's o: gated to the result when there is one split, else to the partials.
LB_DEVICE void write_columns(const AttentionSplits& p, const Queries& queries, int query, int column, f32x4 o,
                             int split) {
  const Attention& op = p.op;
  const long at = queries.at(op, query);
  if (p.n_splits > 1) {
    store(p.o + (long(split) * op.rows * op.n_heads + at) * op.cache.head_dim + column, o);
    return;
  }
  LB_UNROLL
  for (int j = 0; j < 4; ++j) o[j] *= gate_of(op, queries.row(query), queries.head(query), column + j);
  store(op.o + at * op.cache.head_dim + column, o);
}

LB_DEVICE void write_softmax(const AttentionSplits& p, const Queries& queries, int query, float m, float l, int split) {
  const long at = long(split) * p.op.rows * p.op.n_heads + queries.at(p.op, query);
  p.m[at] = m;
  p.l[at] = l;
}

LB_DEVICE f16 as_operand(float x, f16) { return to_f16(x); }
LB_DEVICE bf16 as_operand(float x, bf16) { return to_bf16(x); }

// n_rows queries from `first` on for the matrix unit, [n_rows][kDim]: scaled so that scores are exponents of 2, and
// zero beyond the last query.
template <class T, int kDim>
LB_DEVICE void stage_queries(T* to, const Attention& op, const Queries& queries, int first, int n_rows) {
  const float scale = op.scale * kLog2E;
  for (int i = thread_id(); i < n_rows * kDim / 4; i += n_threads()) {
    const int query = first + i / (kDim / 4), column = i % (kDim / 4) * 4;
    f32x4 q = {};
    if (query < queries.n) q = load<f32x4>(op.q + queries.at(op, query) * kDim + column);
    Vec<T, 4> rounded;
    LB_UNROLL
    for (int j = 0; j < 4; ++j) rounded[j] = as_operand(q[j] * scale, T{});
    store(to + i / (kDim / 4) * operand_stride(kDim) + column, rounded);
  }
}

}  // namespace lb::gpu
