// Attention to selected key blocks (ops/select_blocks.h): the queries of a thread block, and its tiles of K and V.
#pragma once

#include "gpu/attention/queries.h"

namespace lb::gpu {

// Returns the first query of tile `tile`; query blocks are divided into tiles of tile_queries queries. Limits `queries`
// to the query block.
LB_DEVICE int first_of_query_block(Queries& queries, int tile, int tile_queries) {
  const int n = sparse_rows(queries.group) * queries.group, tiles = kSparseBlock / tile_queries;
  const int first = tile / tiles * n;
  queries.n = min(queries.n, first + n);
  return first + tile % tiles * tile_queries;
}

// Slots of the selected key blocks. Their list starts `at` integers after op.blocks.
struct SelectedSlots {
  static constexpr bool kSelects = true, kMoves = false;
  const Attention& op;
  int at = 0;

  LB_DEVICE explicit SelectedSlots(const Attention& given) : op(given) {}
  // Selects the key-block list of the query block that contains query `first`. Call after begin_attention(), because
  // the previous kernel writes the list.
  LB_DEVICE void select(const Queries& queries, int first) {
    const int query_block = queries.row(first) / sparse_rows(queries.group);
    at = (query_block * op.cache.n_kv_heads + queries.kv_head) * int(op.list_size);
  }
  LB_DEVICE int entry(int i) const { return load_cached<int32_t>(op.blocks + (at + i)); }
  // Number of tiles up to slot `end`.
  LB_DEVICE int n_tiles(int end, int tile_slots) const {
    const int n = entry(0), last = entry(n) * kSparseBlock;
    const int in_last = min(max(end - last + tile_slots - 1, 0) / tile_slots, kSparseBlock / tile_slots);
    return (n - 1) * (kSparseBlock / tile_slots) + in_last;
  }
  // The first slot of tile i.
  LB_DEVICE int operator()(int, int tile_slots, int i) const {
    const int tiles = kSparseBlock / tile_slots;
    return entry(1 + i / tiles) * kSparseBlock + i % tiles * tile_slots;
  }
};

}  // namespace lb::gpu
