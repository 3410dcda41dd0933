// Launches of attention and of the ops around it. The number of splits fills the chip for a full cache and never
// depends on the fill level, so a recorded launch stays valid.
#include "gpu/attention/choose.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string_view>

#include "base/error.h"
#include "gpu/attention/choose_config.h"
#include "gpu/attention/instances.h"
#include "gpu/ceil_div.h"
#include "ops/select_blocks.h"
#include "quant/kv_names.h"

namespace lb::gpu {
namespace {

// Enough threads that each loads all its splits in one batch, if possible. At most 16 threads share a column, because
// their sums are added serially.
uint32_t merge_threads(int n_splits, int head_dim) {
  const int wanted = std::min(ceil_div(n_splits, kMergeInFlight), 16) * (head_dim / 4);
  return uint32_t(std::clamp(ceil_div(wanted, 32) * 32, kMinMergeThreads, kMaxMergeThreads));
}

// The kernel that computes rows of a tree as this one computes a step; null if there is none.
const char* rows_kernel(std::string_view one) {
  struct Names {
    std::string_view one;
    const char* rows;
  };
#define NAMES(kernel, ...) {#kernel, #kernel "_rows"},
  static constexpr Names kNames[] = {NAMES(attention_merge_kernel) NAMES(attention_fp32_kernel)
                                         LB_ATTENTION_DECODE(NAMES) LB_ATTENTION_DECODE_PACKED(NAMES)
                                             LB_ATTENTION_DECODE_8_PACKED(NAMES) LB_ATTENTION_WIDE_16(NAMES)
                                                 LB_ATTENTION_WIDE_16_PACKED(NAMES) LB_ATTENTION_WIDE_TAIL_16(NAMES)
                                                     LB_ATTENTION_WIDE_TAIL_16_PACKED(NAMES)};
#undef NAMES
  const auto* const found = std::ranges::find(kNames, one, &Names::one);
  return found == std::end(kNames) ? nullptr : found->rows;
}

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

void check_cache(const KvLayer& cache, const std::string& what) {
  LB_CHECK(cache.n_kv_heads >= 1 && cache.head_dim >= 8 && cache.head_dim % 8 == 0 && cache.head_dim <= kMaxHeadDim,
           kInvalid, what, ": head_dim must be a multiple of 8 up to ", kMaxHeadDim);
  for (KvType type : {cache.k_type, cache.v_type})
    LB_CHECK(has_whole_groups(type, cache.head_dim), kInvalid, what, ": ", kv_name(type),
             " takes head_dim in multiples of 32");
  const int tail = cache.key_tail;
  LB_CHECK(tail == 0 || (tail <= kMaxKeyTail && tail == key_tail(cache.head_dim, tail) && cache.k_type == cache.v_type),
           kInvalid, what, ": keys have ", tail, " more values than values, of another type or not in whole groups");
}

// If the context is split, the grid is at most one wave: kBlocksPerSm blocks per SM of up to 128 queries each, or twice
// as many blocks of kDecodeQueries.
size_t attention_scratch_bytes(int max_rows, int n_heads, int head_dim, int capacity, const Target& target) {
  const long by_blocks = long(kBlocksPerSm) * target.n_sms * prefill_queries(head_dim > 128 ? 1 : 2);
  const long by_rows = long(max_rows) * n_heads * max_splits(capacity);
  // A single split before a merge writes o to op.o, so it needs m and l only.
  const size_t unsplit = size_t(max_rows) * n_heads * 2;
  return std::max(size_t(std::min(by_blocks, by_rows)) * (head_dim + 2), unsplit) * sizeof(float) + 32;
}

size_t attention_row_scratch_bytes(int n_heads, int n_kv_heads, int head_dim, int capacity, const Target& target) {
  constexpr int kMostPerSm = 4;  // maximum of decode_blocks_per_sm() and decode_8_blocks_per_sm()
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
  LB_CHECK(op.first_slot >= 0 && op.window >= 0, kInvalid, what, ": a window and a first slot are not negative");
  LB_CHECK(capacity >= op.rows, kInvalid, what, ": a cache of ", capacity, " tokens cannot hold the rows");
  LB_CHECK(is_aligned(op.q) && is_aligned(op.o) && is_aligned(scratch), kInvalid, what,
           ": q, o and scratch must be 16-byte aligned");
  LB_CHECK(is_aligned(op.gate) && op.gate_row_stride % 4 == 0 && op.gate_head_stride % 4 == 0, kInvalid, what,
           ": the gate must be 16-byte aligned");

  const int group = op.n_heads / op.cache.n_kv_heads;
  LB_CHECK(op.last_seen == nullptr || (op.tree.ancestors == nullptr && op.blocks == nullptr), kInvalid, what,
           ": last_seen is of a chain without selected blocks");
  if (op.blocks != nullptr)
    LB_CHECK(op.tree.ancestors == nullptr && op.first_slot == 0 && op.window == 0 && group <= kSparseBlock &&
                 op.n_query_blocks == query_blocks(op.rows, group),
             kInvalid, what, ": selected blocks are of a chain without a window, ", query_blocks(op.rows, group),
             " query blocks");
  const AttentionConfig config = attention_config(op, capacity, target);
  const int n_splits = config.n_splits;

  AttentionLaunches result = {};
  const bool has_merge = n_splits > 1 || is_rotated(op.cache.v_type) || op.sinks != nullptr;
  result.n = has_merge ? 2 : 1;
  result.params = {.op = op,
                   .n_splits = n_splits,
                   .has_merge = has_merge,
                   .ring = config.ring,
                   .tile_bytes = config.tile_bytes,
                   .m = nullptr,
                   .l = nullptr,
                   .o = nullptr};
  if (has_merge) {  // o first, because it must be 16-byte aligned
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
  result.launches[0] = checked({.kernel = config.kernel,
                                .grid = {config.splits_first ? splits : static_cast<uint32_t>(config.n_tiles), heads,
                                         config.splits_first ? 1 : splits},
                                .block = {config.threads, 1, 1},
                                .shared_bytes = config.shared_bytes,
                                .overlap_previous = true},
                               target, what);
  return result;
}

bool has_attention_by_row(const Target& target) { return target.has(rows_kernel("attention_merge_kernel")); }

AttentionLaunches choose_by_row(const Attention& op, int capacity, void* scratch, const Target& target) {
  LB_ASSERT(op.tree.ancestors != nullptr && op.rows <= kRowsOfLaunch);
  Attention step = op;
  step.rows = 1;
  step.tree = {};
  AttentionLaunches result = choose(step, capacity, scratch, target);
  AttentionSplits& params = result.params;
  LB_ASSERT(params.tile_bytes == 0 || params.ring > 0);  // a tile that moves is converted in shared memory
  params.op = op;
  if (params.has_merge) {
    const long entries = long(params.n_splits) * op.rows * op.n_heads;
    float* const partials = static_cast<float*>(scratch);
    params.m = params.n_splits > 1 ? partials + entries * op.cache.head_dim : partials;
    params.l = params.m + entries;
  }
  const std::string what = cat(to_string(op), ", row by row");
  for (int i = 0; i < result.n; ++i) {
    Launch& launch = result.launches[i];
    const char* const kernel = rows_kernel(launch.kernel);
    LB_CHECK(kernel != nullptr, kUnsupported, what, ": at most ", kDecodeQueries, " query heads share a KV head");
    launch.kernel = kernel;
    launch.grid[2] *= uint32_t(op.rows);
    launch = checked(launch, target, what);
  }
  return result;
}

size_t bytes_of(const Attention& op, int n_past) {
  const KvLayer& cache = op.cache;
  const size_t slot = kv_slot_bytes(cache.k_type, key_dim_of(cache)) +
                      (cache.key_tail > 0 ? 0 : kv_slot_bytes(cache.v_type, cache.head_dim));
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
  const auto parts = static_cast<uint32_t>(kv_parts(op.cache));
  constexpr int kWarps = kAppendThreads / 32;
  const long heads = long(op.rows) * op.cache.n_kv_heads;
  return checked({.kernel = "kv_append_kernel",
                  .grid = {static_cast<uint32_t>((heads + kWarps - 1) / kWarps), parts, 1},
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
        a.key_tail != b.key_tail || a.page_table != b.page_table)
      break;
    LB_ASSERT(op.n_past == next.n_past && op.accepted.n == next.accepted.n);
    move.params.k[move.n] = b.k;
    move.params.v[move.n] = b.v;
    ++move.n;
  }
  const std::string what = cat("[kv_move] ", op.cache.n_kv_heads, " heads of ", op.cache.head_dim, " of ",
                               kv_name(op.cache.k_type), " and ", kv_name(op.cache.v_type));
  check_cache(op.cache, what);
  int pieces = 0;  // per slot of K or V, whichever has more
  for (KvType type : {op.cache.k_type, op.cache.v_type}) {
    const KvRowBytes row = kv_row_bytes(type, key_dim_of(op.cache));
    pieces = std::max(pieces,
                      op.cache.n_kv_heads * (move_pieces(row.codes) + move_pieces(row.high) + move_pieces(row.scales)));
  }
  move.launch = checked({.kernel = "kv_move_kernel",
                         .grid = {static_cast<uint32_t>(ceil_div(pieces, kMoveThreads)),
                                  static_cast<uint32_t>(kv_parts(op.cache) * move.n), 1},
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
  for (const float* p : std::initializer_list<const float*>{op.u, op.q, op.k, op.v, op.q_norm, op.k_norm, op.v_norm,
                                                            op.q_bias, op.k_bias, op.v_bias})
    LB_CHECK(is_aligned(p), kInvalid, what, ": what is read and written must be 16-byte aligned");
  LB_CHECK(op.u_row_stride % 4 == 0 && op.u_head_stride % 4 == 0, kInvalid, what, ": rows of u must stay aligned");
  LB_CHECK(cache.key_tail == 0 || (op.q_norm != nullptr && op.pairs == RopePairs::kHalves && op.n_tail_pairs > 0 &&
                                   2 * op.n_tail_pairs <= cache.key_tail),
           kInvalid, what, ": a tail of ", cache.key_tail, " values takes norms and halves of ", op.n_tail_pairs,
           " pairs");
  constexpr int kWarps = kPrepareThreads / 32;
  const int kv_items = op.k == nullptr ? 0 : kv_parts(cache) * cache.n_kv_heads;
  LB_CHECK(op.n_heads + kv_items > 0, kInvalid, what, ": nothing to compute");
  const long items = long(op.rows) * (op.n_heads + kv_items);
  return checked({.kernel = "attention_prepare_kernel",
                  .grid = {static_cast<uint32_t>((items + kWarps - 1) / kWarps), 1, 1},
                  .block = {kPrepareThreads, 1, 1},
                  .shared_bytes = kWarps * size_t(key_dim_of(cache)) * sizeof(float),
                  .overlap_previous = true},
                 target, what);
}

}  // namespace lb::gpu
