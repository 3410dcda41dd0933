// Chooses attention kernels, and how they divide queries and context.
#include "gpu/attention/choose_config.h"

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

// Like kBlocksPerSm, for the decode kernels.
constexpr int decode_blocks_per_sm(int head_dim) { return head_dim <= 64 ? 4 : head_dim <= 128 ? 3 : 2; }
constexpr int decode_8_blocks_per_sm(int head_dim) { return head_dim <= 128 ? 4 : 3; }
constexpr int kSm90MinCapacity = 128;  // one tile: there is nothing to copy ahead
constexpr int kPagesPerSplit = 2;      // smaller splits lose more by their partials than they gain

// A matrix-unit kernel, by cache type, head_dim and key_tail.
struct TileKernel {
  const char* name;
  KvType type;
  int head_dim, key_tail = 0;
};
#define X(kernel, Type, Stored, kDim) {#kernel, KvType::k##Type, kDim},
constexpr TileKernel kDecode[] = {LB_ATTENTION_DECODE(X)};
constexpr TileKernel kPrefill16[] = {LB_ATTENTION_PREFILL_16(X)};
constexpr TileKernel kPrefill32[] = {LB_ATTENTION_PREFILL_32(X)};
constexpr TileKernel kPrefillSm90[] = {LB_ATTENTION_PREFILL_SM90(X)};
constexpr TileKernel kSparse16[] = {LB_ATTENTION_SPARSE_16(X) LB_ATTENTION_SPARSE_256(X)};
constexpr TileKernel kSparse32[] = {LB_ATTENTION_SPARSE_32(X)};
constexpr TileKernel kSparseSm90[] = {LB_ATTENTION_SPARSE_SM90(X)};
#define TAIL(kernel, Type, Stored, kDim) {#kernel, KvType::k##Type, kDim, kWideTail},
constexpr TileKernel kWide16[] = {LB_ATTENTION_WIDE_16(X) LB_ATTENTION_WIDE_TAIL_16(TAIL)};
constexpr TileKernel kWide32[] = {LB_ATTENTION_WIDE_32(X) LB_ATTENTION_WIDE_TAIL_32(TAIL)};
#undef TAIL
#undef X
#define X(kernel, kDim) {#kernel, {}, kDim},
constexpr TileKernel kDecodePacked[] = {LB_ATTENTION_DECODE_PACKED(X)};
constexpr TileKernel kDecode8Packed[] = {LB_ATTENTION_DECODE_8_PACKED(X)};
constexpr TileKernel kPrefill16Packed[] = {LB_ATTENTION_PREFILL_16_PACKED(X)};
constexpr TileKernel kPrefill32Packed[] = {LB_ATTENTION_PREFILL_32_PACKED(X)};
constexpr TileKernel kPrefillSm90Packed[] = {LB_ATTENTION_PREFILL_SM90_PACKED(X)};
#define TAIL(kernel, kDim) {#kernel, {}, kDim, kWideTail},
constexpr TileKernel kWide16Packed[] = {LB_ATTENTION_WIDE_16_PACKED(X) LB_ATTENTION_WIDE_TAIL_16_PACKED(TAIL)};
constexpr TileKernel kWide32Packed[] = {LB_ATTENTION_WIDE_32_PACKED(X) LB_ATTENTION_WIDE_TAIL_32_PACKED(TAIL)};
#undef TAIL
#undef X
bool takes_heads(const TileKernel& kernel, const KvLayer& cache) {
  return kernel.head_dim == cache.head_dim && kernel.key_tail == cache.key_tail;
}
// Returns null if no kernel of the list reads the cache.
const char* tile_kernel(std::span<const TileKernel> list, const KvLayer& cache) {
  for (const TileKernel& entry : list)
    if (entry.type == cache.k_type && entry.type == cache.v_type && takes_heads(entry, cache)) return entry.name;
  return nullptr;
}
// Looks in `list`, the kernels of 16-bit pages, then in `packed`.
const char* tile_kernel(std::span<const TileKernel> list, std::span<const TileKernel> packed, const KvLayer& cache) {
  if (const char* const name = tile_kernel(list, cache)) return name;
  if (cache.k_type == KvType::kF32 || cache.v_type == KvType::kF32) return nullptr;
  for (const TileKernel& entry : packed)
    if (takes_heads(entry, cache)) return entry.name;
  return nullptr;
}
// Whether kernels convert the pages. With a tail, BF16 pages too.
bool is_packed(const KvLayer& cache) {
  return cache.k_type != cache.v_type ||
         (cache.k_type != KvType::kF16 && (cache.k_type != KvType::kBF16 || cache.key_tail > 0));
}

// Shared memory for each of this many blocks on an SM.
size_t shared_bytes_of_each(int blocks, const Target& target) {
  constexpr size_t kReserved = 1024;  // reserved by the chip in each block
  return (target.shared_block_bytes + kReserved) / blocks - kReserved;
}

// Tiles in the ring, and the block's shared memory: bytes(ring, tile_bytes). 16-bit tiles: three, if copies are
// asynchronous and three fit; a fourth would not raise the bytes in flight. Packed tiles are smaller: up to four, as
// long as per_sm blocks fit on an SM. Without asynchronous copies there is no packed ring.
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
      std::max(kv_slot_bytes(cache.k_type, key_dim_of(cache)), kv_slot_bytes(cache.v_type, key_dim_of(cache)));
  const int tile = slots * (int(slot) + pad);
  for (int blocks = per_sm; has_async && blocks > 0; --blocks)
    for (int ring = 4; ring >= 2; --ring)
      if (bytes(ring, tile) <= shared_bytes_of_each(blocks, target)) return {ring, tile, bytes(ring, tile)};
  return {0, tile, bytes(0, tile)};
}

// The kernel for packed pages and up to 8 queries; nullopt if there is none.
std::optional<AttentionConfig> decode_8_shape(const KvLayer& cache, const Target& target) {
  const int dim = cache.head_dim, per_sm = decode_8_blocks_per_sm(dim);
  const char* const kernel = is_packed(cache) ? tile_kernel({}, kDecode8Packed, cache) : nullptr;
  if (kernel == nullptr || !target.has(kernel)) return std::nullopt;
  const Ring ring = ring_of(
      cache, kDecodeSlots, per_sm, target, [&](int n, int tile) { return decode_8_shared_bytes(dim, n, tile); },
      kDecode8Pad);
  if (ring.tiles == 0) return std::nullopt;
  return AttentionConfig{kernel, kDecode8Queries, per_sm, ring.tiles, ring.tile_bytes, ring.shared_bytes, true};
}

// The wgmma kernel; nullopt if there is none. If it converts pages, its ring has as many units as fit.
std::optional<AttentionConfig> sm90_shape(const KvLayer& cache, const Target& target) {
  const char* const kernel = tile_kernel(kPrefillSm90, kPrefillSm90Packed, cache);
  if (kernel == nullptr || !target.has(kernel)) return std::nullopt;
  AttentionConfig shape = {kernel, kSm90Queries, 1, 0, 0, sm90_shared_bytes(cache.head_dim), false, kSm90BlockThreads};
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

// The kernel for heads of 512; nullopt if there is none.
std::optional<AttentionConfig> wide_shape(const KvLayer& cache, int queries, const Target& target) {
  const bool is_step = queries <= wide_queries(1);
  const char* const kernel =
      is_step ? tile_kernel(kWide16, kWide16Packed, cache) : tile_kernel(kWide32, kWide32Packed, cache);
  if (kernel == nullptr || !target.has(kernel)) return std::nullopt;
  const int n_tiles = is_step ? 1 : 2;
  const Ring ring = ring_of(cache, kWideSlots, kBlocksPerSm, target,
                            [&](int n, int tile) { return wide_shared_bytes(key_dim_of(cache), n_tiles, n, tile); });
  if (ring.shared_bytes > target.shared_block_bytes) return std::nullopt;
  const int per_sm = ring.shared_bytes <= shared_bytes_of_each(kBlocksPerSm, target) ? kBlocksPerSm : 1;
  return AttentionConfig{kernel,          wide_queries(n_tiles), per_sm, ring.tiles,
                         ring.tile_bytes, ring.shared_bytes,     is_step};
}

AttentionConfig dense_config(const Attention& op, int capacity, const Target& target) {
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim;
  const char* const decode = tile_kernel(kDecode, kDecodePacked, cache);
  const int queries = op.rows * (op.n_heads / cache.n_kv_heads);
  if (decode == nullptr) {
    if (const auto wide = wide_shape(cache, queries, target)) return *wide;
    return {"attention_fp32_kernel", kFp32Queries, kBlocksPerSm, 0, 0, fp32_shared_bytes(key_dim_of(cache)), false};
  }
  if (queries <= kDecode8Queries)
    if (const auto shape = decode_8_shape(cache, target)) return *shape;
  if (queries <= kDecodeQueries) {
    const int per_sm = decode_blocks_per_sm(dim);
    const Ring ring = ring_of(cache, kDecodeSlots, per_sm, target,
                              [&](int n, int tile) { return decode_shared_bytes(dim, n, tile); });
    return {decode, kDecodeQueries, per_sm, ring.tiles, ring.tile_bytes, ring.shared_bytes, true};
  }
  if (queries > kSm90Queries / 2 && capacity > kSm90MinCapacity && op.last_seen == nullptr)
    if (const auto sm90 = sm90_shape(cache, target)) return *sm90;
  const char* const prefill_32 = tile_kernel(kPrefill32, kPrefill32Packed, cache);
  const bool is_prompt = op.rows > kMaxTree || op.n_heads / cache.n_kv_heads > kMaxTree;  // or patches of an image
  const bool is_prefill_32 = is_prompt && prefill_32 != nullptr && target.has(prefill_32);
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

// The kernel for attention to selected key blocks.
AttentionConfig sparse_config(const Attention& op, const Target& target) {
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim;
  const char *const sm90 = tile_kernel(kSparseSm90, cache), *const wide = tile_kernel(kSparse32, cache);
  const char* const narrow = tile_kernel(kSparse16, cache);
  if (sm90 != nullptr && target.has(sm90))
    return {sm90, kSm90Queries, 1, 0, 0, sm90_shared_bytes(dim), false, kSm90BlockThreads};
  LB_CHECK(
      narrow != nullptr && (dim <= 128 || target.has(narrow)), kUnsupported, to_string(op), ": on ", target.name,
      ", selected blocks take an f16 cache of heads of 64 or 128, on most NVIDIA targets also of 256. Use kv = f16, ",
      "or all blocks");
  const int n_tiles = wide != nullptr && target.has(wide) ? 2 : 1;
  const Ring ring = ring_of(cache, prefill_slots(dim, n_tiles), kBlocksPerSm, target,
                            [&](int n, int tile) { return prefill_shared_bytes(dim, n_tiles, n, tile); });
  return {
      n_tiles == 2 ? wide : narrow, prefill_queries(n_tiles), kBlocksPerSm, ring.tiles, 0, ring.shared_bytes, false};
}

}  // namespace

std::string to_string(const Attention& op) {
  const KvLayer& cache = op.cache;
  return cat("[attention] [", op.rows, ", ", op.n_heads, ", ", cache.head_dim, "] over ", cache.n_kv_heads,
             " heads of ", kv_name(cache.k_type), " and ", kv_name(cache.v_type));
}

std::string to_string(const AttentionConfig& config) {
  return cat(config.kernel, ": ", config.n_tiles, " x ", config.queries, " queries, ", config.n_splits,
             " splits, ring of ", config.ring, ", ", config.threads, " threads, ", config.shared_bytes, " B");
}

int max_splits(int capacity) {
  const int pages = (capacity + kPageTokens - 1) / kPageTokens;
  return std::clamp((pages + kPagesPerSplit - 1) / kPagesPerSplit, 1, kMaxSplits);
}

AttentionConfig attention_config(const Attention& op, int capacity, const Target& target) {
  const bool is_sparse = op.blocks != nullptr;
  AttentionConfig config = is_sparse ? sparse_config(op, target) : dense_config(op, capacity, target);
  const int n_queries = op.rows * (op.n_heads / op.cache.n_kv_heads);
  config.n_tiles = is_sparse ? int(op.n_query_blocks) * (kSparseBlock / config.queries)
                             : (n_queries + config.queries - 1) / config.queries;
  const long blocks = long(config.n_tiles) * op.cache.n_kv_heads;
  // Selected blocks are not split: wherever selection pays, the queries alone fill the chip.
  config.n_splits =
      is_sparse ? 1 : int(std::clamp<long>(long(config.per_sm) * target.n_sms / blocks, 1, max_splits(capacity)));
  return config;
}

}  // namespace lb::gpu
