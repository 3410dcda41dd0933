// The body of attention_decode (split-K): up to 16 queries per KV head. Queries are rows times the query heads that
// share the KV head.
//
// Grid: splits of the context, KV heads. Each of the four warps handles all queries and every fourth tile of 16 slots.
// Ring and online softmax are per warp, so the loop has no block barrier. At the end the block merges the four
// softmaxes.
// Bound: read bandwidth, the bytes of K and V up to the last slot.
#pragma once

#include "gpu/attention/tile.h"
#include "gpu/attention/tree_row.h"
#include "gpu/attention/warp_merge.h"

namespace lb::gpu {

struct WarpBarrier {
  LB_DEVICE void operator()() const { warp_barrier(); }
};

// slots: null for all slots of the append's sequence; or a row of a tree, of which p has the params.
template <class Stored, int kDim, class Slots = AllSlots>
LB_DEVICE void attention_decode(const AttentionSplits& p, const Slots* slots = nullptr) {
  using T = Operand<Stored>;
  constexpr int kSlots = kDecodeSlots, kTile = kDecodeQueries * operand_stride(kDim);
  unsigned char* shared = dynamic_shared<unsigned char>();
  T* q = reinterpret_cast<T*>(shared);
  T* scratch = q + kTile + warp() * kOperandScratch;
  float* stats = reinterpret_cast<float*>(q + kTile + kAttentionWarps * kOperandScratch);
  const WarpMerge<kDecodeQueries> merge(stats);
  T* rings = reinterpret_cast<T*>(stats + merge.kFloats);
  using Tiles = Ring<Stored, kDim, kSlots, 32, WarpBarrier, Slots>;
  const int ring_values = Tiles::values(p);
  T* own_ring = rings + warp() * ring_values;

  const Attention& op = p.op;
  const Queries queries(op, block_id_y());
  const int split = block_id(), n_past = past_of(op, slots), end = n_past + op.rows;
  const PageRange pages = pages_of(p, split, n_past, end, 0);
  if (pages.begin == pages.end) return;
  begin_attention();

  const int first_slot = pages.begin * kPageTokens + warp() * kSlots;
  const int last_slot = (pages.end - 1) * kPageTokens + warp() * kSlots;
  Tiles ring = {
      .p = p,
      .kv_head = queries.kv_head,
      .thread = lane(),
      .buffers = own_ring,
      .first_slot = first_slot,
      .step = kPageTokens,
      .end = end,
      .n_tiles = pages.end - pages.begin - (last_slot < end ? 0 : 1),
      .slots = slots,
  };
  ring.start();
  stage_queries<T, kDim, kDecodeQueries>(q, op, queries, 0);
  block_barrier();

  QueryTiles<T, kDim, kSlots, 1> tile;
  for (int i = 0; i < ring.n_tiles; ++i) {
    const int offset =
        first_slot + i * kPageTokens - n_past;  // the tile's first slot, counted from this append's row 0
    const T* k = ring.take();
    tile.attend(
        q, k, [&] { return ring.take(); }, scratch, offset + kSlots > 0 || offset < first_seen(op, n_past, op.rows - 1),
        [&](int row, int slot) { return sees(op, n_past, min(queries.row(row), op.rows - 1), offset + slot); });
  }
  tile.close();

  for_each_row(tile.o[0][0], [&](int i, int column, float&) {
    if (column == 0) merge.put(lane_row(i), tile.m[0][i], tile.l[0][i]);
  });
  block_barrier();
  merge.merge(p, queries, split);
  block_barrier();

  // The block's o, half of the columns at a time: each warp stores its rescaled o in its ring, then the block adds the
  // four.
  constexpr int kHalf = kDim / 2;
  float factors[kLaneRows];
  LB_UNROLL
  for (int i = 0; i < kLaneRows; ++i) factors[i] = merge.factor(lane_row(i), tile.m[0][i]);
  LB_UNROLL
  for (int half = 0; half < 2; ++half) {
    tile.put(reinterpret_cast<float*>(own_ring), 0, half, factors);
    block_barrier();
    write_warp_sums(p, queries, split, rings, ring_values * sizeof(T), kHalf + 4, half * kHalf, kHalf);
    block_barrier();
  }
}

}  // namespace lb::gpu
