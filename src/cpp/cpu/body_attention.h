// Vector bodies of attention over the paged KV cache, with online softmax, 64 places at a time. A place is a position
// in a row's own sequence; a slot is a position in the cache.
//   One token is bandwidth bound: it reads 2 * head_dim cache values per slot and KV head. Many rows are compute bound.
//   A page of keys is transposed once for a tile of queries. Then a score is one chain of multiply-adds over head_dim,
//   and an output value is one chain over the places, so the bits of a row do not depend on the other rows.
//   In a tree, a row's places after the committed tokens are its ancestors: scores are permuted to this order for the
//   softmax, and the weights of other rows are 0, which changes no sum.
#pragma once

#include "cpu/body_kv.h"
#include "cpu/body_matmul.h"
#include "cpu/kernels.h"
#include "cpu/tree.h"

namespace lb::cpu {
namespace {

constexpr int kSmallQueries = 8;  // with up to 8 queries, writing a page of values as fp32 costs more than it saves

template <class T>
inline T* slot_of(void* data, const KvLayer& cache, int kv_head, int slot) {
  const long page = cache.page_table[slot / kPageTokens];
  return static_cast<T*>(data) +
         ((page * cache.n_kv_heads + kv_head) * kPageTokens + slot % kPageTokens) * key_dim_of(cache);
}

template <class T>
inline void append_rows(const float* x, void* data, const KvAppend& op, int begin, int end) {
  const int dim = key_dim_of(op.cache);
  for (int r = begin; r < end; ++r)
    for (int h = 0; h < op.cache.n_kv_heads; ++h)
      narrow(slot_of<T>(data, op.cache, h, *op.n_past + r), x + (long(r) * op.cache.n_kv_heads + h) * dim, dim);
}

// One KV head's part of the page that holds a slot.
inline uint8_t* head_of(void* data, KvType type, const KvLayer& cache, int kv_head, int slot) {
  const size_t page = cache.page_table[slot / kPageTokens];
  return static_cast<uint8_t*>(data) + (page * cache.n_kv_heads + kv_head) * kv_head_bytes(type, key_dim_of(cache));
}

inline void append_rows(const float* x, void* data, KvType type, const KvAppend& op, int begin, int end) {
  if (type == KvType::kF16) return append_rows<Half>(x, data, op, begin, end);
  if (type == KvType::kBF16) return append_rows<BFloat>(x, data, op, begin, end);
  if (type == KvType::kF32) return append_rows<float>(x, data, op, begin, end);
  const int dim = key_dim_of(op.cache);
  for (int r = begin; r < end; ++r)
    for (int h = 0; h < op.cache.n_kv_heads; ++h) {
      const int slot = *op.n_past + r;
      quant::store_row(type, x + (long(r) * op.cache.n_kv_heads + h) * dim, dim, head_of(data, type, op.cache, h, slot),
                       slot % kPageTokens);
    }
}

void kv_append(const KvAppend& op, int begin, int end) {
  append_rows(op.k, op.cache.k, op.cache.k_type, op, begin, end);
  if (op.cache.key_tail == 0) append_rows(op.v, op.cache.v, op.cache.v_type, op, begin, end);
}

// The queries of rows [row_begin, row_begin + rows) and one KV head: query i is head kv_head * group + i % group of row
// row_begin + i / group.
struct QueryTile {
  const Attention& op;
  int kv_head, group, row_begin, rows;
  int base;  // all rows see slots [first_slot(), base)
  int n() const { return rows * group; }
};

// The running sums of a tile of queries, and its buffers.
struct Softmax {
  float *m, *l, *o;
  const float* queries;  // [n, key_dim], scaled
  float* keys;           // [key_dim, 64] of a page
  float* values;         // [64, key_dim] of a page
  float* scores;         // [n, 128]
  float* weights;        // [n, 128]
};
constexpr long kScoreRow = 2 * kPageTokens;

template <class T>
inline void transpose_keys(const T* keys, int n_slots, int dim, float* to) {
  for (int s = 0; s < n_slots; s += kLanes)
    for (int d = 0; d < dim; d += kLanes) {
      vf x[kLanes];
      for (int i = 0; i < kLanes; ++i) x[i] = s + i < n_slots ? load(keys + long(s + i) * dim + d, dim - d) : vf{};
      transpose(x);
      for (int i = 0; i < kLanes && d + i < dim; ++i) store(to + long(d + i) * kPageTokens + s, x[i]);
    }
}

inline int pad(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Computes the scores of all queries with n_slots slots of a page, from `slot` on.
inline void score_page(const QueryTile& tile, const Softmax& at, int slot, int n_slots, float* scores) {
  const KvLayer& cache = tile.op.cache;
  const int dim = key_dim_of(cache);
  if (cache.k_type == KvType::kF16)
    transpose_keys(slot_of<const Half>(cache.k, cache, tile.kv_head, slot), n_slots, dim, at.keys);
  else if (cache.k_type == KvType::kBF16)
    transpose_keys(slot_of<const BFloat>(cache.k, cache, tile.kv_head, slot), n_slots, dim, at.keys);
  else if (cache.k_type == KvType::kF32)
    transpose_keys(slot_of<const float>(cache.k, cache, tile.kv_head, slot), n_slots, dim, at.keys);
  else
    with_codes(cache.k_type, [&](auto code) {
      transpose_slots<decltype(code)>(head_of(cache.k, cache.k_type, cache, tile.kv_head, slot), dim,
                                      slot % kPageTokens, n_slots, at.keys);
    });
  multiply(Product<float>{at.queries, dim, 1, at.keys, kPageTokens, scores, kScoreRow, tile.n(), pad(n_slots), dim,
                          nullptr});
}

inline void scale_values(float* x, int n, float by) {
  for (int i = 0; i < n; i += kLanes) store(x + i, load(x + i, n - i) * by, n - i);
}

// Turns a query's scores of a page into weights and rescales l and o to the new running maximum m. n is whole vectors;
// places that the row does not see have -inf.
[[gnu::always_inline]] inline void weigh_vectors(float* scores, int n, int dim, float& m, float& l, float* o) {
  vf top = splat(m);
  for (int s = 0; s < n; s += kLanes) top = max(top, load(scores + s));
  const float largest = hmax(top);
  if (largest == -kInfinity) {
    for (int s = 0; s < n; s += kLanes) store(scores + s, vf{});
    return;
  }
  if (largest > m) {
    const float shrink = exp(splat(m - largest))[0];
    l *= shrink;
    scale_values(o, dim, shrink);
    m = largest;
  }
  vf sum = {};
  for (int s = 0; s < n; s += kLanes) {
    const vf weight = exp(load(scores + s) - largest);
    store(scores + s, weight);
    sum += weight;
  }
  l += hsum(sum);
}

inline void weigh(float* scores, int n, int dim, float& m, float& l, float* o) {
  if (n == kPageTokens) return weigh_vectors(scores, kPageTokens, dim, m, l, o);  // unrolled
  weigh_vectors(scores, n, dim, m, l, o);
}

template <class T>
inline const float* widen(const T* from, int n, float* to) {
  for (int i = 0; i < n; i += kLanes) store(to + i, load(from + i, n - i), n - i);
  return to;
}

template <class T>
inline void accumulate_values(const QueryTile& tile, const Softmax& at, const T* values, int n_slots,
                              const float* weights) {
  const float one = 1;
  const int dim = tile.op.cache.head_dim, row = key_dim_of(tile.op.cache);
  if constexpr (sizeof(T) < sizeof(float))
    if (tile.n() > kSmallQueries)
      return accumulate_values(tile, at, widen(values, n_slots * row, at.values), n_slots, weights);
  multiply(Product<T>{weights, kScoreRow, 1, values, row, at.o, dim, tile.n(), dim, n_slots, &one});
}

inline void accumulate_page(const QueryTile& tile, const Softmax& at, int slot, int n_slots, const float* weights) {
  const KvLayer& cache = tile.op.cache;
  if (cache.v_type == KvType::kF16)
    accumulate_values<Half>(tile, at, slot_of<const Half>(value_pages(cache), cache, tile.kv_head, slot), n_slots,
                            weights);
  else if (cache.v_type == KvType::kBF16)
    accumulate_values<BFloat>(tile, at, slot_of<const BFloat>(value_pages(cache), cache, tile.kv_head, slot), n_slots,
                              weights);
  else if (cache.v_type == KvType::kF32)
    accumulate_values<float>(tile, at, slot_of<const float>(value_pages(cache), cache, tile.kv_head, slot), n_slots,
                             weights);
  else
    with_codes(cache.v_type, [&](auto code) {
      load_slots<decltype(code)>(head_of(value_pages(cache), cache.v_type, cache, tile.kv_head, slot),
                                 key_dim_of(cache), slot % kPageTokens, n_slots, at.values);
      accumulate_values<float>(tile, at, at.values, n_slots, weights);
    });
}

// Attends to n_slots slots of a page whose places are its slots: committed tokens, or a chain.
inline void attend_page(const QueryTile& tile, const Softmax& at, int slot, int n_slots) {
  const int dim = tile.op.cache.head_dim;
  score_page(tile, at, slot, n_slots, at.scores);
  for (int i = 0; i < tile.n(); ++i) {
    float* scores = at.scores + i * kScoreRow;
    const int row = i / tile.group, first = first_slot(tile.op, *tile.op.n_past, tile.row_begin + row) - slot;
    for (int s = 0; s < first && s < n_slots; ++s) scores[s] = -kInfinity;
    const int seen = *tile.op.n_past + last_seen(tile.op, tile.row_begin + row) + 1 - slot;
    for (int s = seen < 0 ? 0 : seen < n_slots ? seen : n_slots; s < pad(n_slots); ++s) scores[s] = -kInfinity;
    weigh(scores, pad(n_slots), dim, at.m[i], at.l[i], at.o + long(i) * dim);
  }
  accumulate_page(tile, at, slot, n_slots, at.scores);
}

// Lists a row's places in one page of its own sequence, as slots relative to the tail's first slot. Returns their
// number.
inline int places_of(const QueryTile& tile, int r, int tail, int page, int* slots) {
  int n = 0;
  for (int s = page; s < tile.base && s < page + kPageTokens; ++s) slots[n++] = s - tail;
  int place = page > tile.base ? page : tile.base, skip = place - tile.base;
  for (uint64_t seen = tile.op.tree.ancestors[tile.row_begin + r]; seen != 0 && n < kPageTokens; seen &= seen - 1)
    if (skip-- <= 0) slots[n++] = tile.base - tail + __builtin_ctzll(seen);
  return n;
}

// Attends, for the rows of a tree, to the places from the page of `base` on: at most two pages of each row's own
// sequence, which are in at most two pages of slots.
inline void attend_tree(const QueryTile& tile, const Softmax& at, int begin, int end) {
  const int dim = tile.op.cache.head_dim;
  const int tail = tile.base / kPageTokens * kPageTokens, n_slots = tile.base + tile.op.rows - tail;
  const auto in_page = [&](int page) { return n_slots - page < kPageTokens ? n_slots - page : kPageTokens; };
  for (int page = 0; page < n_slots; page += kPageTokens)
    score_page(tile, at, tail + page, in_page(page), at.scores + page);
  for (int page = tail; page < tail + n_slots && page < end; page += kPageTokens) {
    if (page < begin) continue;
    for (long i = 0; i < tile.n() * kScoreRow; i += kLanes) store(at.weights + i, vf{});
    for (int r = 0; r < tile.rows; ++r) {
      int slots[kPageTokens];
      const int n = places_of(tile, r, tail, page, slots);
      const int first = first_slot(tile.op, *tile.op.n_past, tile.row_begin + r) - tail;
      for (int i = r * tile.group; n > 0 && i < (r + 1) * tile.group; ++i) {
        const float* scores = at.scores + i * kScoreRow;
        float in_order[kPageTokens];
        for (int j = 0; j < n; ++j) in_order[j] = slots[j] < first ? -kInfinity : scores[slots[j]];
        for (int j = n; j < pad(n); ++j) in_order[j] = -kInfinity;
        weigh(in_order, pad(n), dim, at.m[i], at.l[i], at.o + long(i) * dim);
        for (int j = 0; j < n; ++j) at.weights[i * kScoreRow + slots[j]] = in_order[j];
      }
    }
    for (int slot = 0; slot < n_slots; slot += kPageTokens)
      accumulate_page(tile, at, tail + slot, in_page(slot), at.weights + slot);
  }
}

void attention(const Attention& op, int kv_head, int row_begin, int row_end, int begin, int end, float* m, float* l,
               float* o, std::byte* scratch) {
  const int dim = op.cache.head_dim, key_dim = key_dim_of(op.cache), rows = row_end - row_begin;
  const int group = op.n_heads / op.cache.n_kv_heads;
  const bool is_tree = op.tree.ancestors != nullptr;
  const QueryTile tile{op, kv_head, group, row_begin, rows, *op.n_past + (is_tree ? 0 : row_begin)};
  for (int i = 0; i < tile.n(); ++i) m[i] = -kInfinity, l[i] = 0;
  for (long i = 0; i < long(tile.n()) * dim; ++i) o[i] = 0;
  float* queries = reinterpret_cast<float*>(scratch);  // run_attention.cpp counts this layout
  float* keys = queries + long(tile.n()) * key_dim;
  float* values = keys + long(key_dim) * kPageTokens;
  float* scores = values + long(key_dim) * kPageTokens;
  const Softmax at{m, l, o, queries, keys, values, scores, scores + tile.n() * kScoreRow};
  for (int r = 0, n = group * key_dim; r < rows; ++r) {
    const float* q = op.q + (long(row_begin + r) * op.n_heads + kv_head * group) * key_dim;
    for (int i = 0; i < n; i += kLanes) store(queries + long(r) * n + i, load(q + i, n - i) * op.scale, n - i);
  }
  const int tail = tile.base / kPageTokens * kPageTokens;
  const int last = is_tree && tail < end ? tail : end;
  const int32_t* blocks = blocks_of(op, row_begin, kv_head);
  for (int slot = begin; slot < last; slot += kPageTokens)
    if (is_selected(blocks, slot)) attend_page(tile, at, slot, last - slot < kPageTokens ? last - slot : kPageTokens);
  if (is_tree && end > tail) attend_tree(tile, at, begin, end);
}

// --- KeyScores

// Computes the scaled scores of a KV head's queries with slots [begin, end) of a page; -inf where a row does not see a
// slot. Layout: [rows * group, kScoreRow].
inline float* page_scores(const KeyScores& op, int kv_head, int begin, int end, std::byte* scratch) {
  const int dim = op.cache.head_dim, group = op.n_heads / op.cache.n_kv_heads, n_slots = end - begin;
  Attention attention = {};
  attention.cache = op.cache;
  attention.n_heads = op.n_heads;
  const QueryTile tile{attention, kv_head, group, 0, op.rows, 0};
  float* queries = reinterpret_cast<float*>(scratch);  // run_key_scores.cpp counts this layout
  float* keys = queries + long(tile.n()) * dim;
  float* values = keys + long(dim) * kPageTokens;
  float* scores = values + long(dim) * kPageTokens;
  for (int r = 0; r < op.rows; ++r) {
    const float* q = op.q + (long(r) * op.n_heads + kv_head * group) * dim;
    for (int i = 0; i < group * dim; i += kLanes)
      store(queries + long(r) * group * dim + i, load(q + i, group * dim - i) * op.scale, group * dim - i);
  }
  const Softmax at{nullptr, nullptr, nullptr, queries, keys, values, scores, nullptr};
  score_page(tile, at, begin, n_slots, scores);
  for (int i = 0; i < tile.n(); ++i) {
    const int seen = *op.n_past + op.first_row + i / group + 1 - begin;
    for (int s = seen < 0 ? 0 : seen < n_slots ? seen : n_slots; s < pad(n_slots); ++s)
      scores[i * kScoreRow + s] = -kInfinity;
  }
  return scores;
}

void key_sums(const KeyScores& op, int kv_head, int begin, int end, float* parts, std::byte* scratch) {
  const int group = op.n_heads / op.cache.n_kv_heads;
  float* scores = page_scores(op, kv_head, begin, end, scratch);
  for (int i = 0; i < op.rows * group; ++i) {
    float* sums = parts + 2 * (i / group * op.n_heads + kv_head * group + i % group);
    weigh(scores + i * kScoreRow, pad(end - begin), 0, sums[0], sums[1], nullptr);
  }
}

void key_scores(const KeyScores& op, int kv_head, int begin, int end, const float* sums, std::byte* scratch) {
  const int group = op.n_heads / op.cache.n_kv_heads, n_slots = end - begin;
  const float* scores = page_scores(op, kv_head, begin, end, scratch);
  for (int i = 0; i < op.rows * group; ++i) {
    const float* own = sums + 2 * (i / group * op.n_heads + kv_head * group + i % group);
    float* best = op.scores + long(i / group) * op.stride + begin;
    const float scale = 1 / own[1];
    for (int s = 0; s < n_slots; s += kLanes) {
      const vf weight = exp(load(scores + i * kScoreRow + s) - own[0]) * scale;
      store(best + s, max(load(best + s, n_slots - s), weight), n_slots - s);
    }
  }
}

void attention_add(int n, int head_dim, const float* from_m, const float* from_l, const float* from_o, float* m,
                   float* l, float* o) {
  for (int i = 0; i < n; ++i, from_o += head_dim, o += head_dim) {
    if (from_m[i] == -kInfinity) continue;
    const float largest = from_m[i] > m[i] ? from_m[i] : m[i];
    const float shrink = exp(splat(m[i] - largest))[0], weight = exp(splat(from_m[i] - largest))[0];
    m[i] = largest;
    l[i] = l[i] * shrink + weight * from_l[i];
    for (int d = 0; d < head_dim; d += kLanes)
      store(o + d, fma(splat(weight), load(from_o + d, head_dim - d), load(o + d, head_dim - d) * shrink),
            head_dim - d);
  }
}

inline const float* unrotate_head(const float* o, int dim, float* to) {
  for (int i = 0; i < dim; ++i) to[i] = o[i];
  for (int i = 0; i < dim; i += rotated_group(dim)) quant::unrotate(to + i, rotated_group(dim));
  return to;
}

void attention_finish(const Attention& op, int head_begin, int head_end, int row_begin, int row_end, const float* l,
                      const float* o) {
  const int dim = op.cache.head_dim;
  for (int r = row_begin; r < row_end; ++r)
    for (int h = head_begin; h < head_end; ++h, ++l, o += dim) {
      float* y = op.o + (long(r) * op.n_heads + h) * dim;
      const float scale = 1.0f / *l;
      const float* gate = op.gate ? op.gate + r * op.gate_row_stride + h * op.gate_head_stride : nullptr;
      const float* sum = o;
      float plain[kMaxHeadDim];
      if (is_rotated(op.cache.v_type)) sum = unrotate_head(o, dim, plain);
      for (int i = 0; i < dim; i += kLanes) {
        vf value = load(sum + i, dim - i) * scale;
        if (gate) value *= sigmoid(load(gate + i, dim - i));
        store(y + i, value, dim - i);
      }
    }
}

}  // namespace
}  // namespace lb::cpu
