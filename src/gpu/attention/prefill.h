// The body of attention_prefill_16 and _32: more than 16 queries per KV head (trees, batches of rows, prefill).
//
// Grid: tiles of queries, KV heads, splits of the context. A warp handles 16 kTiles queries and visits every tile of K
// and V that the block copies to shared memory. Tiles beyond the causal mask are skipped, and the longest query tiles
// start first. Blocks that share a split are neighbours in the grid, so all but one find K and V in L2.
// Bound: bandwidth up to about 64 queries per KV head, then arithmetic: 4 head_dim flops per query and slot.
#pragma once

#include "gpu/attention/selected.h"
#include "gpu/attention/tile.h"

namespace lb::gpu {

struct BlockBarrier {
  LB_DEVICE void operator()() const { block_barrier(); }
};

// Slots: maps tiles of K and V to slots.
template <class Stored, int kDim, int kTiles, class Slots = AllSlots>
LB_DEVICE void attention_prefill(const AttentionSplits& p) {
  using T = Operand<Stored>;
  constexpr int kSlots = prefill_slots(kDim, kTiles), kStride = operand_stride(kDim);
  constexpr int kQueries = prefill_queries(kTiles), kWarpQueries = 16 * kTiles;
  unsigned char* shared = dynamic_shared<unsigned char>();
  T* q = reinterpret_cast<T*>(shared);
  T* scratch = q + kQueries * kStride;
  T* buffers = scratch + kAttentionWarps * kOperandScratch;

  const Attention& op = p.op;
  Queries queries(op, block_id_y());
  const int split = block_id_z(), n_past = *op.n_past;
  if (split >= live_splits(p, n_past)) return;
  int first = (n_blocks() - 1 - block_id()) * kQueries;
  if constexpr (Slots::kSelects) {
    first = first_of_query_block(queries, n_blocks() - 1 - block_id(), kQueries);
    if (first >= queries.n) return;
  }
  const int first_row = queries.row(first), last_row = queries.row(min(first + kQueries, queries.n) - 1);
  const int end = slots_seen(op, n_past, last_row);
  const PageRange pages = pages_of(p, split, n_past, end, first_row);
  const int first_slot = pages.begin * kPageTokens;
  const int n_slots = min(pages.end * kPageTokens, end) - first_slot;
  begin_attention();

  Slots slots(op);
  int n_tiles = (n_slots + kSlots - 1) / kSlots;
  if constexpr (Slots::kSelects) {
    slots.select(queries, first);
    n_tiles = slots.n_tiles(end, kSlots);
  }
  Ring<Stored, kDim, kSlots, kAttentionThreads, BlockBarrier, Slots> ring = {
      .p = p,
      .kv_head = queries.kv_head,
      .thread = thread_id(),
      .buffers = buffers,
      .first_slot = first_slot,
      .step = kSlots,
      .end = end,
      .n_tiles = n_tiles,
  };
  if constexpr (Slots::kSelects) ring.slots = &slots;
  ring.start();
  stage_queries<T, kDim, kQueries>(q, op, queries, first);
  block_barrier();

  QueryTiles<T, kDim, kSlots, kTiles> tile;
  const int own_first = first + warp() * kWarpQueries;
  T* own_q = q + warp() * kWarpQueries * kStride;
  for (int i = 0; i < ring.n_tiles; ++i) {
    const int offset =
        slots(first_slot, kSlots, i) - n_past;  // the tile's first slot, counted from this append's row 0
    const bool is_masked = offset + kSlots > (op.tree.ancestors == nullptr ? first_row + 1 : 0) ||
                           offset < first_seen(op, n_past, op.tree.ancestors == nullptr ? last_row : op.rows - 1);
    const T* k = ring.take();
    tile.attend(
        own_q, k, [&] { return ring.take(); }, scratch + warp() * kOperandScratch, is_masked,
        [&](int row, int slot) {
          return sees(op, n_past, min(queries.row(own_first + row), op.rows - 1), offset + slot);
        });
  }
  tile.close();

  tile.write(p, queries, own_first, 0, reinterpret_cast<float*>(own_q), split, ring.n_tiles > 0);
}

}  // namespace lb::gpu
