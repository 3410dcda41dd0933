// Cache appends and moves, and attention, whose tasks are (row tile, KV head, split of the context).
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"
#include "cpu/kernels.h"
#include "cpu/tasks.h"
#include "cpu/tree.h"

namespace lb {
namespace {

// Queries of a tile (rows x the heads that share a KV head), each of which uses a converted page of keys.
constexpr int kTileQueries = 64;
// Split-K over the context for appends of up to 64 rows, so that one token has work for every core. Longer appends have
// enough row tiles, and their partial results would not fit the scratch.
constexpr int kSplitRows = 64;
constexpr int kSplitSlots = 1024;
constexpr int kMaxSplits = 16;

int tile_rows(int group) { return std::max(1, kTileQueries / group); }

int slots_per_split(int rows, int n_slots) {
  if (rows > kSplitRows) return n_slots;
  const int even = (n_slots + kMaxSplits - 1) / kMaxSplits;
  return std::max(kSplitSlots, (even + kPageTokens - 1) / kPageTokens * kPageTokens);
}

// Partial results of n queries: m [n], l [n], o [n, head_dim].
struct Partials {
  float *m, *l, *o;
  Partials(std::byte* at, long n) : m(reinterpret_cast<float*>(at)), l(m + n), o(l + n) {}
  static size_t bytes(long n, int head_dim) { return sizeof(float) * n * (head_dim + 2); }
};

size_t body_scratch(int head_dim, int group) {
  const long queries = (std::max(kTileQueries, group) + 15) / 16 * 16;
  const long dim = (head_dim + 15) / 16 * 16;
  return sizeof(float) * (2 * kPageTokens * dim + queries * (dim + kPageTokens));
}

}  // namespace

size_t attention_shared_scratch(int max_rows, int n_heads, int head_dim, int max_context) {
  const int n_splits = std::min(kMaxSplits, (max_context + kSplitSlots - 1) / kSplitSlots);
  return Partials::bytes(long(std::min(max_rows, kSplitRows)) * n_heads * std::max(n_splits, 1), head_dim);
}

size_t attention_thread_scratch(int head_dim, int n_heads, int n_kv_heads) {
  const int group = n_heads / n_kv_heads;
  return body_scratch(head_dim, group) + Partials::bytes(std::max(kTileQueries, group), head_dim);
}

void CpuStream::run(const KvAppend& op) {
  cpu::for_ranges(pool(), op.rows, 2L * op.cache.n_kv_heads * op.cache.head_dim,
                  [&](int begin, int end) { kernels().kv_append(op, begin, end); });
}

void CpuStream::run(const AttentionPrepare& op) {
  const int n_kv = op.cache.n_kv_heads, dim = op.cache.head_dim;
  LB_ASSERT(op.q_norm != nullptr || op.q == op.u);
  if (op.q_norm != nullptr) {
    if (op.n_heads > 0)
      run(RmsNorm{.x = op.u,
                  .w = op.q_norm,
                  .y = op.q,
                  .rows = op.rows,
                  .heads = op.n_heads,
                  .dim = dim,
                  .row_stride = op.u_row_stride,
                  .head_stride = op.u_head_stride,
                  .eps = op.eps});
    run(RmsNorm{.x = op.k,
                .w = op.k_norm,
                .y = op.k,
                .rows = op.rows,
                .heads = n_kv,
                .dim = dim,
                .row_stride = long(n_kv) * dim,
                .head_stride = dim,
                .eps = op.eps});
  }
  if (op.n_heads > 0) run(Rope{op.q, op.cos, op.sin, op.rows, op.n_heads, dim, op.n_pairs, op.pairs});
  run(Rope{op.k, op.cos, op.sin, op.rows, n_kv, dim, op.n_pairs, op.pairs});
  run(KvAppend{op.k, op.v, op.cache, op.n_past, op.rows});
}

void CpuStream::run(const KvMove& op) {
  const KvLayer& cache = op.cache;
  auto move = [&](void* data, DType type, int from, int to) {
    const size_t bytes = row_bytes(type, cache.head_dim);
    for (int h = 0; h < cache.n_kv_heads; ++h) {
      auto at = [&](int slot) {
        const size_t page = cache.page_table[slot / kPageTokens];
        return static_cast<std::byte*>(data) +
               ((page * cache.n_kv_heads + h) * kPageTokens + slot % kPageTokens) * bytes;
      };
      std::memcpy(at(to), at(from), bytes);
    }
  };
  for (int j = 0; j < *op.accepted.n; ++j) {
    const int row = op.accepted.path[j];
    LB_ASSERT(row >= j);
    if (row == j) continue;
    move(cache.k, cache.k_type, *op.n_past + row, *op.n_past + j);
    move(cache.v, cache.v_type, *op.n_past + row, *op.n_past + j);
  }
}

void CpuStream::run(const Attention& op) {
  const int n_kv = op.cache.n_kv_heads, dim = op.cache.head_dim;
  const int group = op.n_heads / n_kv;
  const int tile = tile_rows(group);
  const int n_tiles = (op.rows + tile - 1) / tile;
  const int n_past = *op.n_past, n_slots = n_past + op.rows;
  const int first = cpu::first_slot(op, n_past, 0) / kPageTokens * kPageTokens;  // of the first page that a row sees
  const int split_slots = slots_per_split(op.rows, n_slots - first);
  const int n_splits = (n_slots - first + split_slots - 1) / split_slots;
  const long values = long(op.rows) * op.n_heads * dim * (n_slots - first) / 4;

  LB_ASSERT(op.rows <= kMaxTree || (op.first_slot == 0 && op.window == 0));
  // Computes a tile of rows over one split. A chain's causal mask ends the split at the tile's last row.
  auto partial = [&](int row_tile, int kv_head, int split, const Partials& to, int thread) {
    const int row_end = std::min(op.rows, (row_tile + 1) * tile);
    const int last = op.tree.ancestors ? n_slots : n_past + row_end;
    const int slot_end = std::min(first + (split + 1) * split_slots, last);
    const int slot_begin = std::min(first + split * split_slots, slot_end);
    kernels().attention(op, kv_head, row_tile * tile, row_end, slot_begin, slot_end, to.m, to.l, to.o,
                        thread_scratch(thread, body_scratch(dim, group)));
  };
  auto merge = [&](int row_tile, int kv_head, const Partials& from, long split_stride) {
    kernels().attention_merge(op, kv_head * group, (kv_head + 1) * group, row_tile * tile,
                              std::min(op.rows, (row_tile + 1) * tile), n_splits, split_stride, from.m, from.l, from.o);
  };

  if (n_splits == 1) {
    cpu::for_tasks(pool(), n_tiles * n_kv, values, [&](int task, int thread) {
      const int row_tile = n_tiles - 1 - task / n_kv;  // the last rows see the most slots: start them first
      std::byte* scratch = thread_scratch(thread, attention_thread_scratch(dim, op.n_heads, n_kv));
      const Partials partials(scratch + body_scratch(dim, group), long(tile) * group);
      partial(row_tile, task % n_kv, 0, partials, thread);
      merge(row_tile, task % n_kv, partials, 0);
    });
    return;
  }

  const long split_stride = long(op.rows) * op.n_heads;
  const Partials all(shared_scratch(Partials::bytes(split_stride * n_splits, dim)), split_stride * n_splits);
  auto at = [&](int row_tile, int kv_head, int split) {
    const long entry = split * split_stride + (long(kv_head) * op.rows + row_tile * tile) * group;
    Partials partials = all;
    partials.m += entry, partials.l += entry, partials.o += entry * dim;
    return partials;
  };
  cpu::for_tasks(pool(), n_tiles * n_kv * n_splits, values, [&](int task, int thread) {
    const int split = task % n_splits, kv_head = task / n_splits % n_kv, row_tile = task / n_splits / n_kv;
    partial(row_tile, kv_head, split, at(row_tile, kv_head, split), thread);
  });
  cpu::for_tasks(pool(), n_tiles * n_kv, split_stride * n_splits * dim, [&](int task, int) {
    merge(task / n_kv, task % n_kv, at(task / n_kv, task % n_kv, 0), split_stride);
  });
}

}  // namespace lb
