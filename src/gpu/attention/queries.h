// Common parts of the attention kernels: pages of a split, queries of a KV head, the mask, and where results go.
#pragma once

#include "gpu/activation.h"
#include "gpu/attention/shape.h"

namespace lb::gpu {

inline constexpr float kNothingSeen = -__builtin_inff();  // a masked score, or the maximum of no scores
inline constexpr float kLog2E = 1.44269504f;

// Tokens of the append between the committed ones and the row, for windows.
LB_DEVICE int depth_of(const Tree& tree, int row) {
  return tree.parent == nullptr ? row : count_bits(tree.ancestors[row]) - 1;
}

// Offset from n_past of the first slot that the window of `row` and first_slot show. Only a chain's may be positive: in
// a tree and a draft block the masks alone decide about the append's own rows.
LB_DEVICE int first_seen(const Attention& op, int n_past, int row) {
  const int first = min(op.first_slot - n_past, 0);
  if (op.window == 0) return first;
  const int in_window = max(first, depth_of(op.tree, row) - op.window + 1);
  return op.tree.ancestors == nullptr ? in_window : min(in_window, 0);
}

// The first page that rows from `row` on see. Row 0 of a tree sees the earliest slot.
LB_DEVICE int first_page(const Attention& op, int n_past, int row) {
  return (n_past + first_seen(op, n_past, op.tree.ancestors == nullptr ? row : 0)) / kPageTokens;
}

// Number of splits that have pages: all of them, or n_pages if the rows see fewer pages than there are splits.
LB_DEVICE int live_splits(const AttentionSplits& p, int n_past) {
  const int n_pages = (n_past + p.op.rows + kPageTokens - 1) / kPageTokens - first_page(p.op, n_past, 0);
  return min(p.n_splits, n_pages);
}

// Pages [begin, end) of a split, for rows from first_row on. n_slots: the end of the visible slots.
struct PageRange {
  int begin, end;
};
LB_DEVICE PageRange pages_of(const AttentionSplits& p, int split, int n_past, int n_slots, int first_row) {
  const int first = first_page(p.op, n_past, first_row), n_pages = (n_slots + kPageTokens - 1) / kPageTokens - first;
  const int n_live = min(p.n_splits, n_pages);
  if (split >= n_live) return {0, 0};
  return {first + n_pages * split / n_live, first + n_pages * (split + 1) / n_live};
}

// The queries of one KV head, row by row, with the query heads of a row adjacent (GQA packing), so that a tile of
// queries reads K and V once.
struct Queries {
  int kv_head, group, n;

  LB_DEVICE Queries(const Attention& op, int head)
      : kv_head(head), group(op.n_heads / op.cache.n_kv_heads), n(op.rows * group) {}
  LB_DEVICE int row(int query) const { return query / group; }
  LB_DEVICE int head(int query) const { return kv_head * group + query % group; }
  // Index in [rows, n_heads].
  LB_DEVICE long at(const Attention& op, int query) const { return long(row(query)) * op.n_heads + head(query); }
};

// Call before reading q or this append's rows in the cache. Everything older than the step's embedding (n_past, the
// page table, older rows) may be read earlier. Dependents may start after this call. Ahead of their own wait they may
// read everything older than attention_prepare.
LB_DEVICE void begin_attention() {
  wait_for_previous();
  dependents_may_launch();
}

// The last row of the append that a row of a chain attends to.
LB_DEVICE int last_seen(const Attention& op, int row) { return op.last_seen == nullptr ? row : op.last_seen[row]; }

// The mask: whether `row` attends to slot n_past + offset.
LB_DEVICE bool sees(const Attention& op, int n_past, int row, int offset) {
  if (op.tree.ancestors == nullptr) return offset <= last_seen(op, row) && offset >= first_seen(op, n_past, row);
  if (offset < 0) return offset >= first_seen(op, n_past, row);
  return offset < op.rows && (op.tree.ancestors[row] >> offset & 1) != 0;
}

// End of the slots that rows up to last_row attend to.
LB_DEVICE int slots_seen(const Attention& op, int n_past, int last_row) {
  return n_past + (op.tree.ancestors == nullptr ? last_seen(op, min(last_row, op.rows - 1)) + 1 : op.rows);
}

LB_DEVICE float gate_of(const Attention& op, int row, int head, int i) {
  return op.gate == nullptr ? 1.0f : sigmoid(op.gate[row * op.gate_row_stride + head * op.gate_head_stride + i]);
}

// Writes four columns of a query's o: to the partials if there is a merge, else multiplied by the gate to op.o.
LB_DEVICE void write_columns(const AttentionSplits& p, const Queries& queries, int query, int column, f32x4 o,
                             int split) {
  const Attention& op = p.op;
  const long at = queries.at(op, query);
  if (p.has_merge) {
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

// Stages kRows queries, from `first` on, in shared memory as operands [kRows][operand_stride(kDim)]. They are scaled so
// that scores are exponents of 2, and zero beyond the last query. A thread has up to eight loads in flight.
template <class T, int kDim, int kRows>
LB_DEVICE void stage_queries(T* to, const Attention& op, const Queries& queries, int first) {
  constexpr int kPieces = kDim / 4, kRounds = kRows * kPieces / kAttentionThreads,
                kInFlight = kRounds < 8 ? kRounds : 8;
  constexpr int kStep = kAttentionThreads / kPieces, kWidth = kPieces < 32 ? kPieces : 32;  // kWidth: lanes per row
  static_assert(kRounds <= kWidth && kRounds % kInFlight == 0);
  const float scale = op.scale * kLog2E;
  const int own_row = thread_id() / kPieces, column = thread_id() % kPieces * 4;
  // Lane n of a group computes the address of the group's n-th query: one integer division per lane instead of one per
  // load.
  const int lane_offset = int(queries.at(op, min(first + own_row + lane() % kWidth * kStep, queries.n - 1)));
  LB_UNROLL_BY(1)
  for (int done = 0; done < kRounds; done += kInFlight) {
    f32x4 q[kInFlight];
    LB_UNROLL
    for (int n = 0; n < kInFlight; ++n) {
      const long at = shuffle(lane_offset, lane() / kWidth * kWidth + done + n);
      q[n] = {};
      if (first + own_row + (done + n) * kStep < queries.n) q[n] = load<f32x4>(op.q + at * kDim + column);
    }
    LB_UNROLL
    for (int n = 0; n < kInFlight; ++n) {
      Vec<T, 4> rounded;
      LB_UNROLL
      for (int j = 0; j < 4; ++j) rounded[j] = as_operand(q[n][j] * scale, T{});
      store(to + (own_row + (done + n) * kStep) * operand_stride(kDim) + column, rounded);
    }
  }
}

// The same for rows of kDim values that are no power of two: a warp stages whole rows.
template <class T, int kDim, int kRows>
LB_DEVICE void stage_long_queries(T* to, const Attention& op, const Queries& queries, int first) {
  constexpr int kPieces = kDim / 128;
  static_assert(kDim % 128 == 0);
  const float scale = op.scale * kLog2E;
  LB_UNROLL_BY(2)
  for (int row = warp(); row < kRows; row += kAttentionWarps) {
    const int query = first + row;
    const float* from = op.q + queries.at(op, min(query, queries.n - 1)) * kDim + 4 * lane();
    f32x4 q[kPieces];
    LB_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      q[i] = {};
      if (query < queries.n) q[i] = load<f32x4>(from + 128 * i);
    }
    LB_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      Vec<T, 4> rounded;
      LB_UNROLL
      for (int j = 0; j < 4; ++j) rounded[j] = as_operand(q[i][j] * scale, T{});
      store(to + row * operand_stride(kDim) + 128 * i + 4 * lane(), rounded);
    }
  }
}

}  // namespace lb::gpu
