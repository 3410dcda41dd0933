// Parameters, tile sizes and shared memory of the attention kernels: the contract of host and device.
#pragma once

#include <stddef.h>

#include "ops/attention.h"
#include "ops/key_scores.h"
#include "ops/round_rows.h"
#include "ops/select_blocks.h"
#include "quant/half.h"

namespace lb::gpu {

// Parameters of every attention kernel, and of the merge. The context is divided into n_splits ranges of whole pages;
// the kernel derives the ranges from *n_past.
//   has_merge false: the kernel gates the result and writes op.o.
//   has_merge true:  each split writes partials: m (maximum score, as an exponent of 2), l (sum of weights), o
//                    (unnormalised). A split in which a row sees no slot has m = -inf, l = 0 and leaves o unwritten.
//                    A split without pages writes nothing.
struct AttentionSplits {
  Attention op;
  int n_splits;
  bool has_merge;         // more than one split, a rotated V, whose sum the merge rotates back, or sinks
  int ring;               // tiles of K or V in the ring in shared memory
  int tile_bytes;         // bytes of a packed tile in the ring; 0: the kernel reads plain 16-bit pages
  float* m;               // [n_splits, rows, n_heads]
  float* l;               // [n_splits, rows, n_heads]
  float* o;               // [n_splits, rows, n_heads, head_dim]; op.o itself for a single split
  RoundedRows rounded{};  // [rows, n_heads * head_dim] op.o rounded as by RoundRows; null: not written
};

// A thread block computes one KV head. Its queries are rows times the query heads that share the KV head.
inline constexpr int kAttentionThreads = 128, kAttentionWarps = 4;
inline constexpr int kDecodeQueries = 16;  // attention_decode: each warp handles all queries and a quarter of the slots
inline constexpr int kFp32Queries = 8, kFp32Slots = 16;  // attention_fp32: queries and slots of a tile
inline constexpr int kMinMergeThreads = 256, kMaxMergeThreads = 1024, kMergeInFlight = 4;  // splits in flight
inline constexpr int kMaxSplits = 512;
inline constexpr int kPrepareThreads = 128;  // attention_prepare: one warp per head of a row
inline constexpr int kAppendThreads = 256;   // kv_append: one warp per head of a row of K or V
inline constexpr int kMoveThreads = 128;     // kv_move: one thread per piece of a slot

// attention_prefill_16 and _32 (n_tiles 1 and 2): queries per block, 16 n_tiles per warp; slots per tile of K or V,
// bounded by the registers for scores.
LB_FN constexpr int prefill_queries(int n_tiles) { return 16 * kAttentionWarps * n_tiles; }
LB_FN constexpr int prefill_slots(int head_dim, int n_tiles) { return head_dim * n_tiles > 128 ? 32 : 64; }

// Tiles of 16-bit operands in shared memory. Rows are padded by 16 bytes against bank conflicts.
LB_FN constexpr int operand_stride(int head_dim) { return head_dim + 8; }
LB_FN constexpr size_t operand_bytes(int rows, int head_dim) { return size_t(rows) * operand_stride(head_dim) * 2; }
inline constexpr int kOperandScratch = 16 * 24;  // 16-bit values per warp, scratch of to_operand()

// A ring of 16-bit operand tiles. With packed tiles (tile_bytes > 0): one operand tile, and a ring of packed tiles.
LB_FN constexpr size_t ring_bytes(int slots, int head_dim, int ring, int tile_bytes) {
  return tile_bytes == 0 ? operand_bytes(slots, head_dim) * ring
                         : operand_bytes(slots, head_dim) + size_t(tile_bytes) * ring;
}
// Dynamic shared memory of attention_decode: queries; scratch per warp; m and l per warp and of the block; a ring per
// warp. At the end each ring is reused for half of its warp's o.
inline constexpr int kDecodeSlots = 16;
LB_FN constexpr size_t decode_shared_bytes(int head_dim, int ring, int tile_bytes) {
  return operand_bytes(kDecodeQueries, head_dim) +
         kAttentionWarps * ring_bytes(kDecodeSlots, head_dim, ring, tile_bytes) +
         size_t(kAttentionWarps) * kOperandScratch * 2 + sizeof(float) * 2 * kDecodeQueries * (kAttentionWarps + 1);
}
// Dynamic shared memory of attention_decode_8: queries, m and l, a ring of packed tiles per warp. At the end each ring
// is reused for its warp's o.
inline constexpr int kDecode8Queries = 8, kDecode8Pad = 16;  // kDecode8Pad: bytes after each row of codes
LB_FN constexpr int decode_8_query_stride(int head_dim) { return head_dim + 32; }
LB_FN constexpr int decode_8_sum_stride(int head_dim) { return head_dim + 4; }
LB_FN constexpr size_t decode_8_ring_bytes(int head_dim, int ring, int tile_bytes) {
  const size_t tiles = size_t(ring) * tile_bytes,
               sums = kDecode8Queries * sizeof(float) * decode_8_sum_stride(head_dim);
  return tiles > sums ? tiles : sums;
}
LB_FN constexpr size_t decode_8_shared_bytes(int head_dim, int ring, int tile_bytes) {
  return size_t(kDecode8Queries) * decode_8_query_stride(head_dim) * 2 +
         sizeof(float) * 2 * kDecode8Queries * (kAttentionWarps + 1) +
         kAttentionWarps * decode_8_ring_bytes(head_dim, ring, tile_bytes);
}
// Shared memory of attention_prefill_16 and _32: queries; scratch per warp; one ring.
LB_FN constexpr size_t prefill_shared_bytes(int head_dim, int n_tiles, int ring, int tile_bytes) {
  return operand_bytes(prefill_queries(n_tiles), head_dim) + size_t(kAttentionWarps) * kOperandScratch * 2 +
         ring_bytes(prefill_slots(head_dim, n_tiles), head_dim, ring, tile_bytes);
}

// attention_wide: 16 n_tiles queries and a tile of 16 slots per block, a quarter of the columns per warp. Shared
// memory: queries; scratch per warp; partial scores of each warp; one ring.
inline constexpr int kWideSlots = 16, kWideDim = 512, kWideTail = 128;  // kWideTail: of attention_wide_tail
LB_FN constexpr int wide_queries(int n_tiles) { return 16 * n_tiles; }
LB_FN constexpr size_t wide_shared_bytes(int key_dim, int n_tiles, int ring, int tile_bytes) {
  return operand_bytes(wide_queries(n_tiles), key_dim) + size_t(kAttentionWarps) * kOperandScratch * 2 +
         size_t(kAttentionWarps) * wide_queries(n_tiles) * kWideSlots * sizeof(float) +
         ring_bytes(kWideSlots, key_dim, ring, tile_bytes);
}

// attention_prefill_sm90: one producer warpgroup, two consumer warpgroups of 64 queries each. Registers for scores
// bound the slots per tile. Queries stay in registers, or in shared memory if head_dim exceeds 128.
inline constexpr int kSm90BlockThreads = 384, kSm90GroupThreads = kSm90BlockThreads / 3, kSm90Queries = 128;
LB_FN constexpr int sm90_slots(int head_dim) { return head_dim > 128 ? 64 : 128; }
LB_FN constexpr int sm90_stages(int head_dim) { return head_dim > 128 ? 2 : 3; }  // each of the K and V rings
LB_FN constexpr size_t sm90_query_bytes(int head_dim) {
  return head_dim > 128 ? size_t(kSm90Queries) * head_dim * 2 : 0;
}
inline constexpr size_t kSm90StaticBytes = 256;  // barriers
LB_FN constexpr size_t sm90_shared_bytes(int head_dim) {
  // Tiles must start at a multiple of 1024 bytes. Static memory starts at such a multiple, and dynamic memory follows
  // it.
  constexpr size_t kGap = 1024 - kSm90StaticBytes;
  return kGap + sm90_query_bytes(head_dim) + size_t(2) * sm90_stages(head_dim) * sm90_slots(head_dim) * head_dim * 2;
}
// Packed pages pass through a third ring: each producer warp has room for up to kSm90MaxUnits units of 16 slots.
inline constexpr int kSm90ProducerWarps = kSm90GroupThreads / 32, kSm90Unit = 16, kSm90MaxUnits = 4;

// attention_fp32: queries, one tile of K or V, weights, and one rescale factor per query.
LB_FN constexpr size_t fp32_shared_bytes(int key_dim) {
  return sizeof(float) * (size_t(kFp32Queries + kFp32Slots) * (key_dim + 4) + kFp32Queries * (kFp32Slots + 1));
}

// key_scores: slots per tile, and queries per pass over the slots, in whole rows. Shared memory: the maximum and sum of
// every query, queries, keys.
inline constexpr int kKeyThreads = 128, kKeySlots = 32, kKeyQueries = 16;
LB_FN constexpr int key_rows(int group) { return group < kKeyQueries ? kKeyQueries / group : 1; }
LB_FN constexpr int key_state(int rows, int n_heads) { return (2 * rows * n_heads + 3) / 4 * 4; }
LB_FN constexpr size_t key_shared_bytes(int rows, int n_heads, int group, int head_dim) {
  return sizeof(float) * (key_state(rows, n_heads) + size_t(key_rows(group) * group + kKeySlots) * (head_dim + 4));
}

// Shared memory. key_means: sums of each thread group, [head_dim]. select_blocks: queries and means of a pass; m, 1 / l
// and n_seen of each query; scores.
inline constexpr int kMeansThreads = 128, kSelectQueries = 64;
LB_FN constexpr int select_means(int head_dim) { return head_dim > 128 ? 32 : 64; }
LB_FN constexpr size_t means_shared_bytes(int head_dim) {
  return sizeof(float) * (kMeansThreads / (head_dim / 8)) * head_dim;
}
LB_FN constexpr size_t block_scores_shared_bytes(int head_dim, int list_size) {
  return operand_bytes(kSelectQueries + select_means(head_dim), head_dim) +
         sizeof(float) * (3 * kSelectQueries + size_t(list_size));
}

// KvMove of several layers that have one shape and page table.
inline constexpr int kMaxMovedLayers = 32;
// Bytes that one thread moves in a row of a plane: the largest power of two up to 16 that divides the row. 0: the plane
// is empty.
LB_FN constexpr int move_bytes(int row_bytes) {
  const int lowest_bit = row_bytes & -row_bytes;
  return lowest_bit < 16 ? lowest_bit : 16;
}
LB_FN constexpr int move_pieces(int row_bytes) { return row_bytes == 0 ? 0 : row_bytes / move_bytes(row_bytes); }
// Sets of pages of a layer: of K and V, or one of both.
LB_FN constexpr int kv_parts(const KvLayer& cache) { return cache.key_tail > 0 ? 1 : 2; }
struct KvMoves {
  KvMove op;  // has the pages of the first layer
  void* k[kMaxMovedLayers];
  void* v[kMaxMovedLayers];
};

}  // namespace lb::gpu
