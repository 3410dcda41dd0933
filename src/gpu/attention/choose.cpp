// Which attention kernel, and into how many splits the context is cut. Splits fill the chip when the cache is full;
// their number never depends on how full the cache is, so a recorded launch stays valid.
#include "gpu/attention/choose.h"

#include <algorithm>
#include <optional>
#include <span>

#include "base/error.h"
#include "gpu/attention/instances.h"
#include "gpu/ceil_div.h"
#include "ops/select_blocks.h"
#include "quant/kv_names.h"

namespace lb::gpu {
namespace {

// Co-resident blocks per SM, as registers allow; shared memory may allow fewer.
constexpr int kBlocksPerSm = 2;
constexpr int decode_blocks_per_sm(int head_dim) { return head_dim <= 64 ? 4 : head_dim <= 128 ? 3 : 2; }
constexpr int decode_8_blocks_per_sm(int head_dim) { return head_dim <= 128 ? 4 : 3; }
constexpr int kSm90MinCapacity = 128;  // one tile: nothing to copy ahead
constexpr int kPagesPerSplit = 2;      // fewer would not pay for their partials

std::string to_string(const Attention& op) {
  const KvLayer& cache = op.cache;
  return cat("[attention] [", op.rows, ", ", op.n_heads, ", ", cache.head_dim, "] over ", cache.n_kv_heads,
             " heads of ", kv_name(cache.k_type), " and ", kv_name(cache.v_type));
}

// The kernels on matrix units, by cache type and head_dim.
struct TileKernel {
  const char* name;
  KvType type;
  int head_dim;
};
#define X(kernel, Type, Stored, kDim) {#kernel, KvType::k##Type, kDim},
constexpr TileKernel kDecode[] = {LB_ATTENTION_DECODE(X)};
constexpr TileKernel kPrefill16[] = {LB_ATTENTION_PREFILL_16(X)};
constexpr TileKernel kPrefill32[] = {LB_ATTENTION_PREFILL_32(X)};
constexpr TileKernel kPrefillSm90[] = {LB_ATTENTION_PREFILL_SM90(X)};
constexpr TileKernel kSparse16[] = {LB_ATTENTION_SPARSE_16(X) LB_ATTENTION_SPARSE_256(X)};
constexpr TileKernel kSparse32[] = {LB_ATTENTION_SPARSE_32(X)};
constexpr TileKernel kSparseSm90[] = {LB_ATTENTION_SPARSE_SM90(X)};
#undef X
#define X(kernel, kDim) {#kernel, {}, kDim},
constexpr TileKernel kDecodePacked[] = {LB_ATTENTION_DECODE_PACKED(X)};
constexpr TileKernel kDecode8Packed[] = {LB_ATTENTION_DECODE_8_PACKED(X)};
constexpr TileKernel kPrefill16Packed[] = {LB_ATTENTION_PREFILL_16_PACKED(X)};
constexpr TileKernel kPrefill32Packed[] = {LB_ATTENTION_PREFILL_32_PACKED(X)};
constexpr TileKernel kPrefillSm90Packed[] = {LB_ATTENTION_PREFILL_SM90_PACKED(X)};
#undef X
// Null if no kernel of the list reads the cache.
const char* tile_kernel(std::span<const TileKernel> list, const KvLayer& cache) {
  for (const TileKernel& entry : list)
    if (entry.type == cache.k_type && entry.type == cache.v_type && entry.head_dim == cache.head_dim) return entry.name;
  return nullptr;
}
// Among the kernels of 16-bit pages, or where the cache has others, of packed pages.
const char* tile_kernel(std::span<const TileKernel> list, std::span<const TileKernel> packed, const KvLayer& cache) {
  if (const char* const name = tile_kernel(list, cache)) return name;
  if (cache.k_type == KvType::kF32 || cache.v_type == KvType::kF32) return nullptr;
  for (const TileKernel& entry : packed)
    if (entry.head_dim == cache.head_dim) return entry.name;
  return nullptr;
}
bool is_packed(const KvLayer& cache) { return tile_kernel(kDecode, cache) == nullptr; }

// A kernel and what one of its thread blocks takes.
struct BlockShape {
  const char* kernel;
  int queries, per_sm;   // queries of a block, co-resident blocks per SM
  int ring, tile_bytes;  // of AttentionSplits
  size_t shared_bytes;
  bool splits_first;  // grid x is the split; else x is the tile of queries and z the split
  uint32_t threads = kAttentionThreads;
};

// Tiles in the ring, and the block's shared memory: bytes(ring, tile_bytes). 16-bit tiles: three if copies are
// asynchronous and three fit. A fourth would not raise the bytes in flight. Packed tiles are smaller: four, or as many
// as leave room for per_sm blocks; none without asynchronous copies.
struct Ring {
  int tiles, tile_bytes;
  size_t shared_bytes;
};
template <class Bytes>
Ring ring_of(const KvLayer& cache, int slots, int per_sm, const Target& target, Bytes&& bytes, int pad = 0) {
  const bool has_async = target.capabilities.async_copy;
  if (!is_packed(cache)) {
    int ring = has_async ? 3 : 1;
    while (ring > 1 && bytes(ring, 0) > target.shared_block_bytes) --ring;
    return {ring, 0, bytes(ring, 0)};
  }
  const size_t slot =
      std::max(kv_slot_bytes(cache.k_type, cache.head_dim), kv_slot_bytes(cache.v_type, cache.head_dim));
  const int tile = slots * (int(slot) + pad);
  constexpr size_t kReserved = 1024;  // of each block, by the chip
  for (int blocks = per_sm; has_async && blocks > 0; --blocks)
    for (int ring = 4; ring >= 2; --ring)
      if (bytes(ring, tile) <= (target.shared_block_bytes + kReserved) / blocks - kReserved)
        return {ring, tile, bytes(ring, tile)};
  return {0, tile, bytes(0, tile)};
}

// The kernel of packed pages and few queries, if there is one.
std::optional<BlockShape> decode_8_shape(const KvLayer& cache, const Target& target) {
  const int dim = cache.head_dim, per_sm = decode_8_blocks_per_sm(dim);
  const char* const kernel = is_packed(cache) ? tile_kernel({}, kDecode8Packed, cache) : nullptr;
  if (kernel == nullptr || !target.has(kernel)) return std::nullopt;
  const Ring ring = ring_of(
      cache, kDecodeSlots, per_sm, target, [&](int n, int tile) { return decode_8_shared_bytes(dim, n, tile); },
      kDecode8Pad);
  if (ring.tiles == 0) return std::nullopt;
  return BlockShape{kernel, kDecode8Queries, per_sm, ring.tiles, ring.tile_bytes, ring.shared_bytes, true};
}

// The kernel on wgmma, if there is one. Where it converts pages, its ring has as many units as fit.
std::optional<BlockShape> sm90_shape(const KvLayer& cache, const Target& target) {
  const char* const kernel = tile_kernel(kPrefillSm90, kPrefillSm90Packed, cache);
  if (kernel == nullptr || !target.has(kernel)) return std::nullopt;
  BlockShape shape = {kernel, kSm90Queries, 1, 0, 0, sm90_shared_bytes(cache.head_dim), false, kSm90BlockThreads};
  const size_t fixed = kSm90StaticBytes + shape.shared_bytes;
  if (fixed > target.shared_block_bytes) return std::nullopt;
  if (!is_packed(cache)) return shape;
  shape.tile_bytes = kSm90Unit * int(std::max(kv_slot_bytes(cache.k_type, cache.head_dim),
                                              kv_slot_bytes(cache.v_type, cache.head_dim)));
  const size_t stage = size_t(kSm90ProducerWarps) * shape.tile_bytes;
  shape.ring = int(std::min((target.shared_block_bytes - fixed) / stage, size_t{kSm90MaxUnits}));
  shape.shared_bytes += shape.ring * stage;
  return shape.ring > 0 ? std::optional(shape) : std::nullopt;
}

BlockShape block_shape(const Attention& op, int capacity, const Target& target) {
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim;
  const char* const decode = tile_kernel(kDecode, kDecodePacked, cache);
  if (decode == nullptr)
    return {"attention_fp32_kernel", kFp32Queries, kBlocksPerSm, 0, 0, fp32_shared_bytes(dim), false};
  const int queries = op.rows * (op.n_heads / cache.n_kv_heads);
  if (queries <= kDecode8Queries)
    if (const auto shape = decode_8_shape(cache, target)) return *shape;
  if (queries <= kDecodeQueries) {
    const int per_sm = decode_blocks_per_sm(dim);
    const Ring ring = ring_of(cache, kDecodeSlots, per_sm, target,
                              [&](int n, int tile) { return decode_shared_bytes(dim, n, tile); });
    return {decode, kDecodeQueries, per_sm, ring.tiles, ring.tile_bytes, ring.shared_bytes, true};
  }
  if (queries > kSm90Queries / 2 && capacity > kSm90MinCapacity)
    if (const auto sm90 = sm90_shape(cache, target)) return *sm90;
  const char* const prefill_32 = tile_kernel(kPrefill32, kPrefill32Packed, cache);
  const bool is_prefill_32 = op.rows > kMaxTree && prefill_32 != nullptr && target.has(prefill_32);
  const int n_tiles = is_prefill_32 ? 2 : 1;
  const Ring ring = ring_of(cache, prefill_slots(dim, n_tiles), kBlocksPerSm, target,
                            [&](int n, int tile) { return prefill_shared_bytes(dim, n_tiles, n, tile); });
  return {is_prefill_32 ? prefill_32 : tile_kernel(kPrefill16, kPrefill16Packed, cache),
          prefill_queries(n_tiles),
          kBlocksPerSm,
          ring.tiles,
          ring.tile_bytes,
          ring.shared_bytes,
          false};
}

// The kernel of a query block's tiles, over the key blocks that were selected.
BlockShape sparse_shape(const Attention& op, const Target& target) {
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim;
  const char *const sm90 = tile_kernel(kSparseSm90, cache), *const wide = tile_kernel(kSparse32, cache);
  const char* const narrow = tile_kernel(kSparse16, cache);
  LB_CHECK(
      narrow != nullptr && (dim <= 128 || target.has(narrow)), kUnsupported, to_string(op), ": on ", target.name,
      ", selected blocks take an f16 cache of heads of 64 or 128, on most NVIDIA targets also of 256. Use kv = f16, ",
      "or all blocks");
  if (sm90 != nullptr && target.has(sm90))
    return {sm90, kSm90Queries, 1, 0, 0, sm90_shared_bytes(dim), false, kSm90BlockThreads};
  const int n_tiles = wide != nullptr && target.has(wide) ? 2 : 1;
  const Ring ring = ring_of(cache, prefill_slots(dim, n_tiles), kBlocksPerSm, target,
                            [&](int n, int tile) { return prefill_shared_bytes(dim, n_tiles, n, tile); });
  return {
      n_tiles == 2 ? wide : narrow, prefill_queries(n_tiles), kBlocksPerSm, ring.tiles, 0, ring.shared_bytes, false};
}

int max_splits(int capacity) {
  const int pages = (capacity + kPageTokens - 1) / kPageTokens;
  return std::clamp((pages + kPagesPerSplit - 1) / kPagesPerSplit, 1, kMaxSplits);
}

// So many that each reads its splits at once, if possible; up to 16 for a column, since their sums are added one by
// one.
uint32_t merge_threads(int n_splits, int head_dim) {
  const int wanted = std::min(ceil_div(n_splits, kMergeInFlight), 16) * (head_dim / 4);
  return uint32_t(std::clamp(ceil_div(wanted, 32) * 32, kMinMergeThreads, kMaxMergeThreads));
}

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

void check_cache(const KvLayer& cache, const std::string& what) {
  LB_CHECK(cache.n_kv_heads >= 1 && cache.head_dim >= 8 && cache.head_dim % 8 == 0 && cache.head_dim <= kMaxHeadDim,
           kInvalid, what, ": head_dim must be a multiple of 8 up to ", kMaxHeadDim);
  for (KvType type : {cache.k_type, cache.v_type})
    LB_CHECK(has_whole_groups(type, cache.head_dim), kInvalid, what, ": ", kv_name(type),
             " takes head_dim in multiples of 32");
}

// If the context is split, the grid is at most one wave: kBlocksPerSm blocks per SM of up to 128 queries each, or twice
// as many of kDecodeQueries.
size_t attention_scratch_bytes(int max_rows, int n_heads, int head_dim, int capacity, const Target& target) {
  const long by_blocks = long(kBlocksPerSm) * target.n_sms * prefill_queries(head_dim > 128 ? 1 : 2);
  const long by_rows = long(max_rows) * n_heads * max_splits(capacity);
  // One split of a rotated V leaves o in its place: m and l alone.
  const size_t unsplit = size_t(max_rows) * n_heads * 2;
  return std::max(size_t(std::min(by_blocks, by_rows)) * (head_dim + 2), unsplit) * sizeof(float) + 32;
}

size_t attention_row_scratch_bytes(int n_heads, int n_kv_heads, int head_dim, int capacity, const Target& target) {
  constexpr int kMostPerSm = 4;  // co-resident blocks of decode_blocks_per_sm() and decode_8_blocks_per_sm()
  const long splits = std::clamp<long>(long(kMostPerSm) * target.n_sms / n_kv_heads, 1, max_splits(capacity));
  return std::max(size_t(splits) * (head_dim + 2), size_t{2}) * n_heads * sizeof(float) + 32;
}

bool can_round(const Attention& op) { return op.cache.head_dim % kRoundBlock == 0; }

AttentionLaunches choose(const Attention& op, int capacity, void* scratch, const Target& target) {
  const std::string what = to_string(op);
  check_cache(op.cache, what);
  LB_CHECK(op.rows >= 1 && op.n_heads >= 1 && op.n_heads % op.cache.n_kv_heads == 0, kInvalid, what,
           ": nothing to compute, or heads that do not share KV heads evenly");
  LB_CHECK(op.tree.ancestors == nullptr || op.rows <= kMaxTree, kInvalid, what, ": a tree has at most ", kMaxTree,
           " rows");
  LB_CHECK(op.rows <= kMaxTree || (op.first_slot == 0 && op.window == 0), kUnsupported, what,
           ": a window or a first slot takes at most ", kMaxTree, " rows");
  LB_CHECK(op.first_slot >= 0 && op.window >= 0, kInvalid, what, ": a window and a first slot are not negative");
  LB_CHECK(capacity >= op.rows, kInvalid, what, ": a cache of ", capacity, " tokens cannot hold the rows");
  LB_CHECK(is_aligned(op.q) && is_aligned(op.o) && is_aligned(scratch), kInvalid, what,
           ": q, o and scratch must be 16-byte aligned");
  LB_CHECK(is_aligned(op.gate) && op.gate_row_stride % 4 == 0 && op.gate_head_stride % 4 == 0, kInvalid, what,
           ": the gate must be 16-byte aligned");

  const int group = op.n_heads / op.cache.n_kv_heads, n_queries = op.rows * group;
  const bool is_sparse = op.blocks != nullptr;
  if (is_sparse)
    LB_CHECK(op.tree.ancestors == nullptr && op.first_slot == 0 && op.window == 0 && group <= kSparseBlock &&
                 op.n_query_blocks == query_blocks(op.rows, group),
             kInvalid, what, ": selected blocks are of a chain without a window, ", query_blocks(op.rows, group),
             " query blocks");
  const BlockShape block = is_sparse ? sparse_shape(op, target) : block_shape(op, capacity, target);
  const int n_tiles = is_sparse ? int(op.n_query_blocks) * (kSparseBlock / block.queries)
                                : (n_queries + block.queries - 1) / block.queries;
  const long blocks = long(n_tiles) * op.cache.n_kv_heads;
  // Selected blocks are not split: where they pay, the queries alone fill the chip.
  const int n_splits =
      is_sparse ? 1 : int(std::clamp<long>(long(block.per_sm) * target.n_sms / blocks, 1, max_splits(capacity)));

  AttentionLaunches result = {};
  const bool has_merge = n_splits > 1 || is_rotated(op.cache.v_type);
  result.n = has_merge ? 2 : 1;
  result.params = {.op = op,
                   .n_splits = n_splits,
                   .has_merge = has_merge,
                   .ring = block.ring,
                   .tile_bytes = block.tile_bytes,
                   .m = nullptr,
                   .l = nullptr,
                   .o = nullptr};
  if (has_merge) {  // o first: it must be 16-byte aligned
    const long entries = long(n_splits) * op.rows * op.n_heads;
    float* const partials = static_cast<float*>(scratch);
    result.params.o = n_splits > 1 ? partials : op.o;
    result.params.m = n_splits > 1 ? partials + entries * op.cache.head_dim : partials;
    result.params.l = result.params.m + entries;
    result.launches[1] = checked({.kernel = "attention_merge_kernel",
                                  .grid = {static_cast<uint32_t>(op.rows * op.n_heads), 1, 1},
                                  .block = {merge_threads(n_splits, op.cache.head_dim), 1, 1},
                                  .overlap_previous = true},
                                 target, what);
  }
  const auto splits = static_cast<uint32_t>(n_splits), heads = static_cast<uint32_t>(op.cache.n_kv_heads);
  result.launches[0] = checked(
      {.kernel = block.kernel,
       .grid = {block.splits_first ? splits : static_cast<uint32_t>(n_tiles), heads, block.splits_first ? 1 : splits},
       .block = {block.threads, 1, 1},
       .shared_bytes = block.shared_bytes,
       .overlap_previous = true},
      target, what);
  return result;
}

size_t bytes_of(const Attention& op, int n_past) {
  const KvLayer& cache = op.cache;
  const size_t slot = kv_slot_bytes(cache.k_type, cache.head_dim) + kv_slot_bytes(cache.v_type, cache.head_dim);
  const size_t values = size_t(op.rows) * op.n_heads * cache.head_dim;
  return slot * cache.n_kv_heads * (size_t(n_past) + op.rows) + values * (op.gate ? 3 : 2) * sizeof(float);
}

double flops_of(const Attention& op, int n_past) {
  const double slots = op.rows * (n_past + (op.rows + 1) / 2.0);
  return 4.0 * op.n_heads * op.cache.head_dim * slots;
}

Launch choose(const KvAppend& op, const Target& target) {
  const std::string what = cat("[kv_append] ", op.rows, " rows of ", op.cache.n_kv_heads, " heads of ",
                               op.cache.head_dim, " to ", kv_name(op.cache.k_type), " and ", kv_name(op.cache.v_type));
  check_cache(op.cache, what);
  LB_CHECK(op.rows >= 1, kInvalid, what, ": nothing to append");
  LB_CHECK(is_aligned(op.k) && is_aligned(op.v), kInvalid, what, ": k and v must be 16-byte aligned");
  constexpr int kWarps = kAppendThreads / 32;
  const long heads = long(op.rows) * op.cache.n_kv_heads;
  return checked({.kernel = "kv_append_kernel",
                  .grid = {static_cast<uint32_t>((heads + kWarps - 1) / kWarps), 2, 1},
                  .block = {kAppendThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

MoveLaunch choose(std::span<const KvMove> moves, const Target& target) {
  const KvMove& op = moves.front();
  MoveLaunch move{.launch = {}, .params = {.op = op, .k = {}, .v = {}}, .n = 0};
  for (const KvMove& next : moves.first(std::min(moves.size(), size_t{kMaxMovedLayers}))) {
    const KvLayer &a = op.cache, &b = next.cache;
    if (a.k_type != b.k_type || a.v_type != b.v_type || a.n_kv_heads != b.n_kv_heads || a.head_dim != b.head_dim ||
        a.page_table != b.page_table)
      break;
    LB_ASSERT(op.n_past == next.n_past && op.accepted.n == next.accepted.n);
    move.params.k[move.n] = b.k;
    move.params.v[move.n] = b.v;
    ++move.n;
  }
  const std::string what = cat("[kv_move] ", op.cache.n_kv_heads, " heads of ", op.cache.head_dim, " of ",
                               kv_name(op.cache.k_type), " and ", kv_name(op.cache.v_type));
  check_cache(op.cache, what);
  int pieces = 0;  // of a slot of K or of V, the larger
  for (KvType type : {op.cache.k_type, op.cache.v_type}) {
    const KvRowBytes row = kv_row_bytes(type, op.cache.head_dim);
    pieces = std::max(pieces,
                      op.cache.n_kv_heads * (move_pieces(row.codes) + move_pieces(row.high) + move_pieces(row.scales)));
  }
  move.launch = checked({.kernel = "kv_move_kernel",
                         .grid = {static_cast<uint32_t>(ceil_div(pieces, kMoveThreads)), 2 * uint32_t(move.n), 1},
                         .block = {kMoveThreads, 1, 1},
                         .overlap_previous = true},
                        target, what);
  return move;
}

Launch choose(const AttentionPrepare& op, const Target& target) {
  const KvLayer& cache = op.cache;
  const std::string what = cat("[attention_prepare] ", op.rows, " rows of ", op.n_heads, " and ", cache.n_kv_heads,
                               " heads of ", cache.head_dim);
  check_cache(cache, what);
  LB_CHECK(op.rows >= 1 && op.n_heads >= 0, kInvalid, what, ": nothing to compute");
  LB_CHECK(2 * op.n_pairs <= cache.head_dim, kInvalid, what, ": cannot rotate ", op.n_pairs, " pairs");
  for (const void* p :
       {op.u, static_cast<const float*>(op.q), static_cast<const float*>(op.k), op.v, op.q_norm, op.k_norm})
    LB_CHECK(is_aligned(p), kInvalid, what, ": what is read and written must be 16-byte aligned");
  LB_CHECK(op.u_row_stride % 4 == 0 && op.u_head_stride % 4 == 0, kInvalid, what, ": rows of u must stay aligned");
  constexpr int kWarps = kPrepareThreads / 32;
  const long items = long(op.rows) * (op.n_heads + 2 * cache.n_kv_heads);
  return checked({.kernel = "attention_prepare_kernel",
                  .grid = {static_cast<uint32_t>((items + kWarps - 1) / kWarps), 1, 1},
                  .block = {kPrepareThreads, 1, 1},
                  .shared_bytes = kWarps * size_t(cache.head_dim) * sizeof(float),
                  .overlap_previous = true},
                 target, what);
}

}  // namespace lb::gpu
