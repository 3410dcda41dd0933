// A row of a tree as a step after its parent (Attention::by_row): its own positions, of which the last ones are in its
// ancestors' slots. It sees every position up to its own, in the order and the splits of a step.
#pragma once

#include "gpu/attention/kv_slots.h"
#include "gpu/attention/queries.h"

namespace lb::gpu {

struct TreeRow {
  static constexpr bool kSelects = false, kMoves = true;

  int n_committed;      // before the append: positions whose slots have the same index
  int n_past;           // before the row: n_committed and its ancestors
  const int32_t* path;  // [kMaxTree] in shared memory: the ancestors' rows, then the row itself

  // Called by every thread of the block. Ends with a barrier.
  LB_DEVICE TreeRow(const Attention& op, int row, int32_t* shared) : n_committed(*op.n_past), path(shared) {
    const uint64_t seen = op.tree.ancestors[row];
    n_past = n_committed + count_bits(seen) - 1;
    for (int i = thread_id(); i < kMaxTree; i += n_threads())
      if (seen >> i & 1) store(shared + count_bits(seen & ((uint64_t{1} << i) - 1)), int32_t(i));
    block_barrier();
  }
  // Whether some positions before `end` are in slots of another index.
  LB_DEVICE bool moves(int end) const { return end > n_committed; }
  LB_DEVICE int slot(int position) const {
    return position < n_committed ? position : n_committed + load<int32_t>(path + position - n_committed);
  }
};

// Params of one row of a tree, as of a step of its own. Partials of rows follow one another.
LB_DEVICE AttentionSplits params_of_row(const AttentionSplits& p, int row) {
  AttentionSplits own = p;
  const long heads = p.op.n_heads, entries = p.n_splits * heads, dim = p.op.cache.head_dim;
  own.op.rows = 1;
  own.op.tree = {};
  own.op.q += row * heads * key_dim_of(p.op.cache);
  own.op.o += row * heads * dim;
  if (own.op.gate != nullptr) own.op.gate += row * p.op.gate_row_stride;
  if (p.has_merge) own.o = p.n_splits > 1 ? p.o + row * entries * dim : own.op.o;
  if (p.has_merge) own.m += row * entries, own.l += row * entries;
  return own;
}

// Positions before the rows of an append, or before a row of a tree.
template <class Slots>
LB_DEVICE int past_of(const Attention& op, const Slots* slots) {
  if constexpr (Slots::kMoves) return slots->n_past;
  return *op.n_past;
}

}  // namespace lb::gpu
