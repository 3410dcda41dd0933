// Cache appends and moves, and attention. A task of attention is (row tile, KV head, split of the context). The partial
// results of the splits are added in order, however tasks divide them, so a row's bits do not depend on the rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "cpu/kernels.h"
#include "cpu/tasks.h"
#include "cpu/tree.h"
#include "ops/select_blocks.h"
#include "quant/kv_rows.h"

namespace lb {
namespace {

// Queries per tile (rows x the query heads that share a KV head); all of them reuse a converted page of keys.
constexpr int kTileQueries = 128;
// Appends of up to kSplitRows rows split the sequence across tasks: 8 splits of 1024 places, then 4 of 2048, 4 of 4096
// and so on, so that one token has work for every core. Longer appends have enough row tiles, and their partial results
// would not fit the scratch.
constexpr int kSplitRows = 64;
constexpr int kEvenSplits = 8, kSplitPlaces = 1024;

int tile_rows(int group) { return std::max(1, kTileQueries / group); }

int split_begin(int split) {
  if (split <= kEvenSplits) return split * kSplitPlaces;
  const int step = (split - kEvenSplits) / 4, part = (split - kEvenSplits) % 4;
  return (4 + part) * (2 * kSplitPlaces << step);
}

int n_splits(int n_places) {
  int n = 1;
  while (split_begin(n) < n_places) ++n;
  return n;
}

// Partial results of n queries: m [n], l [n], o [n, head_dim].
struct Partials {
  float *m, *l, *o;
  Partials(std::byte* at, long n) : m(reinterpret_cast<float*>(at)), l(m + n), o(l + n) {}
  static size_t bytes(long n, int head_dim) { return sizeof(float) * n * (head_dim + 2); }
};

// Adds the sinks' shares to the sums of n queries: query i is head first_head + i % group.
void add_sinks(const Attention& op, int first_head, int group, int n, const float* m, float* l, float* o) {
  if (op.sinks == nullptr) return;
  const int dim = op.cache.head_dim;
  for (int i = 0; i < n; ++i) {
    const float sink = op.sinks[first_head + i % group], largest = std::max(sink, m[i]);
    const float shrink = std::exp(m[i] - largest);
    l[i] = l[i] * shrink + std::exp(sink - largest);
    for (int d = 0; d < dim; ++d) o[long(i) * dim + d] *= shrink;
  }
}

// A head of a row of queries, or after these, of keys, for a cache with key_tail. Keys go from k to v.
void prepare_with_tail(const AttentionPrepare& op, int row, int item, const cpu::Kernels& kernels) {
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim, half = dim / 2, n = op.n_tail_pairs;
  const bool is_q = item < op.n_heads;
  const long kv_head = long(row) * cache.n_kv_heads + item - op.n_heads;
  const float* x = is_q ? op.u + row * op.u_row_stride + item * op.u_head_stride : op.k + kv_head * dim;
  float* y = is_q ? op.q + (long(row) * op.n_heads + item) * key_dim_of(cache) : op.v + kv_head * key_dim_of(cache);
  const RmsNorm norm{.x = x,
                     .w = is_q ? op.q_norm : op.v_norm,
                     .y = y,
                     .rows = 1,
                     .heads = 1,
                     .dim = dim,
                     .row_stride = dim,
                     .head_stride = dim,
                     .eps = op.eps};
  kernels.rms_norm(norm, 0, 1);
  float* tail = y + dim;
  std::fill_n(tail, cache.key_tail, 0.0f);
  const float *cos = is_q && op.q_cos != nullptr ? op.q_cos : op.cos, *sin = cos == op.cos ? op.sin : op.q_sin;
  for (int i = 0; i < n; ++i) {
    const float a = is_q ? y[i] : y[i] * op.k_norm[i], b = is_q ? y[i + half] : y[i + half] * op.k_norm[i + half];
    const float c = op.n_pairs == 0 ? 1 : cos[long(row) * op.n_pairs + i];
    const float s = op.n_pairs == 0 ? 0 : sin[long(row) * op.n_pairs + i];
    tail[i] = a * c - b * s;
    tail[n + i] = b * c + a * s;
    if (is_q) y[i] = y[i + half] = 0;
  }
  if (is_q && is_rotated(cache.k_type))
    for (int i = 0; i < key_dim_of(cache); i += rotated_group(dim)) quant::rotate(y + i, rotated_group(dim));
}

// Queries, a page of keys, a page of values, and two buffers of two pages of scores.
size_t body_scratch(int key_dim, int group) {
  const long queries = std::max(kTileQueries, group), dim = (key_dim + 15) / 16 * 16;
  return sizeof(float) * ((queries + 2 * kPageTokens) * dim + queries * 4 * kPageTokens);
}

}  // namespace

size_t attention_shared_scratch(int max_rows, int n_heads, int head_dim, int max_context) {
  return Partials::bytes(long(std::min(max_rows, kSplitRows)) * n_heads * n_splits(max_context), head_dim);
}

size_t attention_thread_scratch(int key_dim, int n_heads, int n_kv_heads) {
  const int group = n_heads / n_kv_heads;
  return body_scratch(key_dim, group) + 2 * Partials::bytes(std::max(kTileQueries, group), key_dim);
}

void CpuStream::run(const KvAppend& op) {
  cpu::for_ranges(pool(), op.rows, 2L * op.cache.n_kv_heads * key_dim_of(op.cache),
                  [&](int begin, int end) { kernels().kv_append(op, begin, end); });
}

void CpuStream::run(const AttentionPrepare& op) {
  const int n_kv = op.cache.n_kv_heads, dim = op.cache.head_dim;
  LB_ASSERT(op.q_norm != nullptr || op.q == op.u);
  LB_ASSERT(op.q_norm == nullptr || op.k_bias == nullptr);
  if (op.cache.key_tail > 0) {
    LB_ASSERT(op.q_norm != nullptr && op.pairs == RopePairs::kHalves);
    const int n_items = op.n_heads + (op.k == nullptr ? 0 : n_kv);
    cpu::for_ranges(pool(), op.rows * n_items, 16L * dim, [&](int begin, int end) {
      for (int i = begin; i < end; ++i) prepare_with_tail(op, i / n_items, i % n_items, kernels());
    });
    if (op.k != nullptr) run(KvAppend{op.v, nullptr, op.cache, op.n_past, op.rows});
    return;
  }
  if (op.k_bias != nullptr) {
    if (op.n_heads > 0) run(AddBias{op.q, op.q_bias, op.rows, op.n_heads * dim});
    run(AddBias{op.k, op.k_bias, op.rows, n_kv * dim});
    run(AddBias{op.v, op.v_bias, op.rows, n_kv * dim});
  }
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
    for (const auto& [x, w] : {std::pair(op.k, op.k_norm), std::pair(op.v, op.v_norm)})
      if (x != nullptr && w != nullptr)
        run(RmsNorm{.x = x,
                    .w = w,
                    .y = x,
                    .rows = op.rows,
                    .heads = n_kv,
                    .dim = dim,
                    .row_stride = long(n_kv) * dim,
                    .head_stride = dim,
                    .eps = op.eps});
  }
  const bool has_own = op.q_cos != nullptr;
  if (op.n_heads > 0)
    run(Rope{op.q, has_own ? op.q_cos : op.cos, has_own ? op.q_sin : op.sin, op.rows, op.n_heads, dim, op.n_pairs,
             op.pairs});
  if (op.k != nullptr) run(Rope{op.k, op.cos, op.sin, op.rows, n_kv, dim, op.n_pairs, op.pairs});
  if (is_rotated(op.cache.k_type))
    cpu::for_ranges(pool(), op.rows * op.n_heads, 16L * dim, [&](int begin, int end) {
      for (long i = long(begin) * dim; i < long(end) * dim; i += rotated_group(dim))
        quant::rotate(op.q + i, rotated_group(dim));
    });
  if (op.k != nullptr) run(KvAppend{op.k, op.v, op.cache, op.n_past, op.rows});
}

void CpuStream::run(const KvMove& op) {
  const KvLayer& cache = op.cache;
  auto move = [&](void* data, KvType type, int from, int to) {
    const KvRowBytes bytes = kv_row_bytes(type, key_dim_of(cache));
    for (int h = 0; h < cache.n_kv_heads; ++h) {
      auto at = [&](int slot) {
        const size_t page = cache.page_table[slot / kPageTokens];
        uint8_t* head =
            static_cast<uint8_t*>(data) + (page * cache.n_kv_heads + h) * kv_head_bytes(type, key_dim_of(cache));
        return quant::kv_row(type, key_dim_of(cache), head, slot % kPageTokens);
      };
      const quant::KvRow source = at(from), target = at(to);
      std::memcpy(target.codes, source.codes, bytes.codes);
      std::memcpy(target.high, source.high, bytes.high);
      std::memcpy(target.scales, source.scales, bytes.scales);
    }
  };
  for (int j = 0; j < *op.accepted.n; ++j) {
    const int row = op.accepted.path[j];
    LB_ASSERT(row >= j);
    if (row == j) continue;
    move(cache.k, cache.k_type, *op.n_past + row, *op.n_past + j);
    if (cache.key_tail == 0) move(cache.v, cache.v_type, *op.n_past + row, *op.n_past + j);
  }
}

void CpuStream::run(const Attention& op) {
  const int n_kv = op.cache.n_kv_heads, dim = op.cache.head_dim, key_dim = key_dim_of(op.cache);
  const int group = op.n_heads / n_kv;
  const int tile = tile_rows(group), n_tiles = (op.rows + tile - 1) / tile;
  const int n_past = *op.n_past, n_places = n_past + op.rows;
  const int first = cpu::first_slot(op, n_past, 0) / kPageTokens * kPageTokens;  // start of the first visible page
  const int first_split = n_splits(first + 1) - 1, end_split = n_splits(n_places);
  const long values = long(op.rows) * op.n_heads * dim * (n_places - first) / 4;

  LB_ASSERT(op.blocks == nullptr ||
            (op.tree.ancestors == nullptr && op.last_seen == nullptr && tile == sparse_rows(group)));
  const auto end_of = [&](int row_tile) { return std::min(op.rows, (row_tile + 1) * tile); };
  // Computes a tile of rows over one split. A chain's causal mask ends the split at the tile's last row.
  const auto partial = [&](int row_tile, int kv_head, int split, const Partials& to, int thread) {
    const int last = op.tree.ancestors ? n_places : n_past + cpu::last_seen(op, end_of(row_tile) - 1) + 1;
    const int seen = cpu::first_slot(op, n_past, row_tile * tile) / kPageTokens * kPageTokens;
    const int end = std::min(split_begin(split + 1), last);
    const int begin = std::min(std::max(op.tree.ancestors ? first : seen, split_begin(split)), end);
    kernels().attention(op, kv_head, row_tile * tile, end_of(row_tile), begin, end, to.m, to.l, to.o,
                        thread_scratch(thread, body_scratch(key_dim, group)));
  };
  const auto add = [&](int n, const Partials& from, const Partials& to) {
    kernels().attention_add(n, dim, from.m, from.l, from.o, to.m, to.l, to.o);
  };
  const auto finish = [&](int row_tile, int kv_head, const Partials& whole) {
    add_sinks(op, kv_head * group, group, (end_of(row_tile) - row_tile * tile) * group, whole.m, whole.l, whole.o);
    kernels().attention_finish(op, kv_head * group, (kv_head + 1) * group, row_tile * tile, end_of(row_tile), whole.l,
                               whole.o);
  };

  const bool is_apart = ThreadPool::thread_of_task() >= 0;  // one of several ops: they would share the split scratch
  if (end_split - first_split == 1 || op.rows > kSplitRows || is_apart) {
    cpu::for_tasks(pool(), n_tiles * n_kv, values, [&](int task, int thread) {
      const int row_tile = n_tiles - 1 - task / n_kv;  // the last rows see the most slots: start them first
      const int kv_head = task % n_kv;
      const long n = long(tile) * group;
      std::byte* scratch =
          thread_scratch(thread, attention_thread_scratch(key_dim, op.n_heads, n_kv)) + body_scratch(key_dim, group);
      const Partials whole(scratch, n), next(scratch + Partials::bytes(n, dim), n);
      partial(row_tile, kv_head, first_split, whole, thread);
      for (int split = first_split + 1; split < end_split; ++split) {
        partial(row_tile, kv_head, split, next, thread);
        add((end_of(row_tile) - row_tile * tile) * group, next, whole);
      }
      finish(row_tile, kv_head, whole);
    });
    return;
  }

  const int n = end_split - first_split;
  const long split_stride = long(op.rows) * op.n_heads;
  const Partials all(shared_scratch(Partials::bytes(split_stride * n, dim)), split_stride * n);
  const auto at = [&](int row_tile, int kv_head, int i) {
    const long entry = i * split_stride + (long(kv_head) * op.rows + row_tile * tile) * group;
    Partials partials = all;
    partials.m += entry, partials.l += entry, partials.o += entry * dim;
    return partials;
  };
  cpu::for_tasks(pool(), n_tiles * n_kv * n, values, [&](int task, int thread) {
    const int i = n - 1 - task % n, kv_head = task / n % n_kv, row_tile = task / n / n_kv;  // the longest first
    partial(row_tile, kv_head, first_split + i, at(row_tile, kv_head, i), thread);
  });
  cpu::for_tasks(pool(), n_tiles * n_kv, split_stride * n * dim, [&](int task, int) {
    const int row_tile = task / n_kv, kv_head = task % n_kv;
    const Partials whole = at(row_tile, kv_head, 0);
    for (int i = 1; i < n; ++i) add((end_of(row_tile) - row_tile * tile) * group, at(row_tile, kv_head, i), whole);
    finish(row_tile, kv_head, whole);
  });
}

}  // namespace lb
