// The body of attention_wide: heads of 512, whose sums o of 16 queries would fill the registers of a warp. The block's
// four warps share the queries and each tile of 16 slots; a warp has a quarter of the head's columns:
//   S = Q K^T    a warp multiplies its columns of Q and K. The four partial sums meet in shared memory, and every warp
//                adds them in the same order, so all have the same scores and weights.
//   O = P V      a warp has its columns of V and o.
// With a tail (KvLayer), the block reads a tile once: a warp multiplies its columns and a quarter of the tail's, and
// then reads its columns again as V.
//
// Grid: as attention_decode for kTiles = 1 (16 queries), as attention_prefill for kTiles = 2 (32).
// Bound: read bandwidth for a step; in prompts reading fragments from shared memory: 1 KiB per 16 x 16 x 16 product.
#pragma once

#include "gpu/attention/prefill.h"
#include "gpu/attention/tree_row.h"

namespace lb::gpu {

// A lane's values of an accumulator, in an order that is the same in every warp. Lanes are adjacent: no bank conflicts.
inline constexpr int kLaneValues = 16 * 16 / 32;
LB_DEVICE void put_partial(float* to, FragmentC& s) {
  float values[kLaneValues];
  int n = 0;
  for_each_row(s, [&](int, int, float& value) { values[n++] = value; });
  LB_UNROLL
  for (int i = 0; i < kLaneValues; i += 4)
    store(to + 32 * i + 4 * lane(), f32x4{values[i], values[i + 1], values[i + 2], values[i + 3]});
}
LB_DEVICE void add_partials(FragmentC& s, const float* from, int stride) {
  float all[kLaneValues] = {};
  LB_UNROLL
  for (int w = 0; w < kAttentionWarps; ++w) {
    LB_UNROLL
    for (int i = 0; i < kLaneValues; i += 4) {
      const auto four = load<f32x4>(from + w * stride + 32 * i + 4 * lane());
      LB_UNROLL
      for (int j = 0; j < 4; ++j) all[i + j] += four[j];
    }
  }
  int n = 0;
  for_each_row(s, [&](int, int, float& value) { value = all[n++]; });
}

// first: of the block's queries. slots: as for attention_decode.
template <class Stored, int kDim, int kTiles, int kTail = 0, class Slots = AllSlots>
LB_DEVICE void attention_wide(const AttentionSplits& p, int first, int split, const Slots* slots = nullptr) {
  using T = Operand<Stored>;
  constexpr int kRow = kDim + kTail, kStride = operand_stride(kRow), kParts = kTail > 0 ? 1 : 2;
  constexpr int kSlots = kWideSlots, kQueries = wide_queries(kTiles);
  constexpr int kOwn = kDim / kAttentionWarps, kOwnTail = kTail / kAttentionWarps;  // columns of a warp
  unsigned char* shared = dynamic_shared<unsigned char>();
  T* q = reinterpret_cast<T*>(shared);
  T* scratch = q + kQueries * kStride + warp() * kOperandScratch;
  float* sums = reinterpret_cast<float*>(q + kQueries * kStride + kAttentionWarps * kOperandScratch);
  T* buffers = reinterpret_cast<T*>(sums + kAttentionWarps * kTiles * 16 * kSlots);

  const Attention& op = p.op;
  const Queries queries(op, block_id_y());
  const int n_past = past_of(op, slots);
  if (split >= live_splits(p, n_past)) return;
  const int first_row = queries.row(first), last_row = queries.row(min(first + kQueries, queries.n) - 1);
  const int end = slots_seen(op, n_past, last_row);
  const PageRange pages = pages_of(p, split, n_past, end, first_row);
  const int first_slot = pages.begin * kPageTokens;
  begin_attention();

  Ring<Stored, kRow, kSlots, kAttentionThreads, BlockBarrier, Slots, kParts> ring = {
      .p = p,
      .kv_head = queries.kv_head,
      .thread = thread_id(),
      .buffers = buffers,
      .first_slot = first_slot,
      .step = kSlots,
      .end = end,
      .n_tiles = (min(pages.end * kPageTokens, end) - first_slot + kSlots - 1) / kSlots,
      .slots = slots,
  };
  ring.start();
  if constexpr (kTail > 0)
    stage_long_queries<T, kRow, kQueries>(q, op, queries, first);
  else
    stage_queries<T, kDim, kQueries>(q, op, queries, first);
  block_barrier();

  QueryTiles<T, kOwn, kSlots, kTiles, kRow> tile;
  for (int i = 0; i < ring.n_tiles; ++i) {
    const int offset = first_slot + i * kSlots - n_past;  // the tile's first slot, counted from this append's row 0
    const bool is_masked = offset + kSlots > (op.tree.ancestors == nullptr ? first_row + 1 : 0) ||
                           offset < first_seen(op, n_past, op.tree.ancestors == nullptr ? last_row : op.rows - 1);
    typename decltype(tile)::Scores s;
    const T *k = ring.take(), *v = k;
    tile.multiply_keys(s, q + warp() * kOwn, k + warp() * kOwn);
    if constexpr (kTail > 0)
      tile.template add_keys<kOwnTail>(s, q + kDim + warp() * kOwnTail, k + kDim + warp() * kOwnTail);
    LB_UNROLL
    for (int t = 0; t < kTiles; ++t) put_partial(sums + (warp() * kTiles + t) * 16 * kSlots, s[t][0]);
    if constexpr (kTail > 0)
      block_barrier();
    else
      v = ring.take();  // its barrier also lets every warp read the partial sums
    LB_UNROLL
    for (int t = 0; t < kTiles; ++t) add_partials(s[t][0], sums + t * 16 * kSlots, kTiles * 16 * kSlots);
    tile.weigh(s, is_masked, [&](int row, int slot) {
      return sees(op, n_past, min(queries.row(first + row), op.rows - 1), offset + slot);
    });
    tile.add_values(s, v + warp() * kOwn, scratch);
  }
  tile.close();

  constexpr int kColumns = 16 * (kOwn / 2 + 4);  // floats per warp
  static_assert(kAttentionWarps * kColumns * sizeof(float) <= wide_shared_bytes(kRow, 1, 0, 1));
  block_barrier();
  tile.write(p, queries, first, warp() * kOwn, reinterpret_cast<float*>(shared) + warp() * kColumns, split,
             ring.n_tiles > 0);
}

}  // namespace lb::gpu
