// Vector bodies of attention over the paged KV cache, with online softmax.
//   Decode, up to 8 queries (one token: the heads that share a KV head): bandwidth bound by 2 * head_dim cache values
//   per slot and KV head, converted in registers. Prefill, more queries: compute bound. A page is converted to fp32
//   once for the whole tile of queries. Scores are stored [slot, query], so the running maximum and sum need no
//   horizontal operations.
#pragma once

#include "cpu/body_matmul.h"
#include "cpu/kernels.h"
#include "cpu/tree.h"

namespace lb::cpu {
namespace {

constexpr int kDecodeQueries = 8;  // with up to 8 queries, converting a page costs more than it saves

template <class T>
inline T* slot_of(void* data, const KvLayer& cache, int kv_head, int slot) {
  const long page = cache.page_table[slot / kPageTokens];
  return static_cast<T*>(data) +
         ((page * cache.n_kv_heads + kv_head) * kPageTokens + slot % kPageTokens) * cache.head_dim;
}

template <class T>
inline void append_rows(const float* x, void* data, const KvAppend& op, int begin, int end) {
  const int dim = op.cache.head_dim;
  for (int r = begin; r < end; ++r)
    for (int h = 0; h < op.cache.n_kv_heads; ++h)
      narrow(slot_of<T>(data, op.cache, h, *op.n_past + r), x + (long(r) * op.cache.n_kv_heads + h) * dim, dim);
}

inline void append_rows(const float* x, void* data, DType type, const KvAppend& op, int begin, int end) {
  if (type == DType::kF16) return append_rows<Half>(x, data, op, begin, end);
  if (type == DType::kBF16) return append_rows<BFloat>(x, data, op, begin, end);
  append_rows<float>(x, data, op, begin, end);
}

void kv_append(const KvAppend& op, int begin, int end) {
  append_rows(op.k, op.cache.k, op.cache.k_type, op, begin, end);
  append_rows(op.v, op.cache.v, op.cache.v_type, op, begin, end);
}

// The queries of rows [row_begin, row_end) and one KV head: query i is head kv_head * group + i % group of row
// row_begin + i / group.
struct QueryTile {
  const Attention& op;
  int kv_head, group, row_begin, n;
  const float* query(int i) const {
    const long row = row_begin + i / group;
    return op.q + (row * op.n_heads + kv_head * group + i % group) * op.cache.head_dim;
  }
};

// Scores of a page: at[i * query_step + s * slot_step] belongs to query i and slot s.
struct Scores {
  float* at;
  long query_step, slot_step;
};

// The mask: sets scores of slots [slot, slot + n_slots) to -inf where a row must not see the slot.
inline void mask_scores(const QueryTile& tile, int slot, int n_slots, const Scores& scores) {
  const int n_past = *tile.op.n_past, rows = tile.n / tile.group;
  const int first_hidden = n_past + (tile.op.tree.ancestors ? 0 : tile.row_begin + 1);
  const int first_seen = first_slot(tile.op, n_past, tile.row_begin + rows - 1);
  for (int s = slot; s < slot + n_slots; ++s) {
    if (s >= first_seen && s < first_hidden) continue;  // every row sees it
    float* score = scores.at + (s - slot) * scores.slot_step;
    for (int row = tile.row_begin; row < tile.row_begin + rows; ++row) {
      const bool is_hidden =
          s < first_slot(tile.op, n_past, row) || (s >= n_past && !sees(tile.op.tree, row, s - n_past));
      for (int h = 0; h < tile.group; ++h, score += scores.query_step)
        if (is_hidden) *score = -kInfinity;
    }
  }
}

template <class T>
inline void score_decode(const QueryTile& tile, const T* keys, int n_slots, float* scores) {
  const int dim = tile.op.cache.head_dim;
  for (int s = 0; s < n_slots; ++s, keys += dim)
    for (int i = 0; i < tile.n; i += 4) {
      const int n = tile.n - i < 4 ? tile.n - i : 4;
      const float* q[4];
      for (int j = 0; j < 4; ++j) q[j] = tile.query(i + (j < n ? j : 0));
      vf sum[4] = {};
      for (int d = 0; d < dim; d += kLanes) {
        const vf key = load(keys + d, dim - d);
        for (int j = 0; j < 4; ++j) sum[j] = fma(load(q[j] + d, dim - d), key, sum[j]);
      }
      for (int j = 0; j < n; ++j) scores[(i + j) * kPageTokens + s] = hsum(sum[j]) * tile.op.scale;
    }
}

inline void scale_values(float* x, int n, float by) {
  for (int i = 0; i < n; i += kLanes) store(x + i, load(x + i, n - i) * by, n - i);
}

// Turns the scores [query, 64] of one page into weights and rescales l and o to the new running maximum m.
inline void softmax_decode(const QueryTile& tile, int n_slots, float* scores, float* m, float* l, float* o) {
  const int dim = tile.op.cache.head_dim;
  for (int i = 0; i < tile.n; ++i, scores += kPageTokens) {
    float largest = m[i];
    for (int s = 0; s < n_slots; ++s) largest = scores[s] > largest ? scores[s] : largest;
    if (largest == -kInfinity) {
      for (int s = 0; s < n_slots; ++s) scores[s] = 0;
      continue;
    }
    if (largest > m[i]) {
      const float shrink = exp(splat(m[i] - largest))[0];
      l[i] *= shrink;
      scale_values(o + long(i) * dim, dim, shrink);
      m[i] = largest;
    }
    vf sum = {};
    for (int s = 0; s < n_slots; s += kLanes) {
      vf weight = exp(load(scores + s, n_slots - s) - largest);
      weight = lane_index() < n_slots - s ? weight : vf{};
      store(scores + s, weight, n_slots - s);
      sum += weight;
    }
    l[i] += hsum(sum);
  }
}

template <class T>
inline void accumulate_values(const Scores& weights, const T* values, int n_slots, int n_queries, int dim, float* o) {
  const float one = 1;
  multiply(Product<T>{weights.at, weights.query_step, weights.slot_step, values, dim, o, dim, n_queries, dim, n_slots,
                      &one});
}

inline void attend_decode(const QueryTile& tile, int slot_begin, int slot_end, float* m, float* l, float* o,
                          float* scratch) {
  const KvLayer& cache = tile.op.cache;
  const Scores scores{scratch, kPageTokens, 1};
  for (int slot = slot_begin, next; slot < slot_end; slot = next) {
    next = (slot / kPageTokens + 1) * kPageTokens;
    const int n = (next < slot_end ? next : slot_end) - slot;
    if (cache.k_type == DType::kF16)
      score_decode(tile, slot_of<const Half>(cache.k, cache, tile.kv_head, slot), n, scores.at);
    else if (cache.k_type == DType::kBF16)
      score_decode(tile, slot_of<const BFloat>(cache.k, cache, tile.kv_head, slot), n, scores.at);
    else
      score_decode(tile, slot_of<const float>(cache.k, cache, tile.kv_head, slot), n, scores.at);
    mask_scores(tile, slot, n, scores);
    softmax_decode(tile, n, scores.at, m, l, o);
    if (cache.v_type == DType::kF16)
      accumulate_values(scores, slot_of<const Half>(cache.v, cache, tile.kv_head, slot), n, tile.n, cache.head_dim, o);
    else if (cache.v_type == DType::kBF16)
      accumulate_values(scores, slot_of<const BFloat>(cache.v, cache, tile.kv_head, slot), n, tile.n, cache.head_dim,
                        o);
    else
      accumulate_values(scores, slot_of<const float>(cache.v, cache, tile.kv_head, slot), n, tile.n, cache.head_dim, o);
  }
}

template <class T>
inline const float* widen(const T* from, int n, float* to) {
  for (int i = 0; i < n; i += kLanes) store(to + i, load(from + i, n - i), n - i);
  return to;
}

// Returns n_slots rows of K or V in fp32; points into the cache when the cache is fp32.
inline const float* page_values(void* data, DType type, const KvLayer& cache, int kv_head, int slot, int n_slots,
                                float* scratch) {
  const int n = n_slots * cache.head_dim;
  if (type == DType::kF16) return widen(slot_of<const Half>(data, cache, kv_head, slot), n, scratch);
  if (type == DType::kBF16) return widen(slot_of<const BFloat>(data, cache, kv_head, slot), n, scratch);
  return slot_of<const float>(data, cache, kv_head, slot);
}

// Same as softmax_decode, one vector of queries at a time, for scores [slot, padded queries].
inline void softmax_prefill(const QueryTile& tile, int n_slots, float* scores, int padded, float* m, float* l,
                            float* o) {
  const int dim = tile.op.cache.head_dim;
  for (int i = 0; i < tile.n; i += kLanes) {
    const int n = tile.n - i;
    const vf before = load(m + i, n);
    vf largest = before;
    for (int s = 0; s < n_slots; ++s) largest = max(largest, load(scores + s * padded + i));
    const vf offset = largest == -kInfinity ? vf{} : largest;  // all masked so far: weights e^-inf = 0, not e^NaN
    vf sum = {};
    for (int s = 0; s < n_slots; ++s) {
      const vf weight = exp(load(scores + s * padded + i) - offset);
      store(scores + s * padded + i, weight);
      sum += weight;
    }
    const vf shrink = exp(before - offset);
    store(m + i, largest, n);
    store(l + i, fma(load(l + i, n), shrink, sum), n);
    for (int j = 0; j < kLanes && j < n; ++j)
      if (shrink[j] != 1) scale_values(o + long(i + j) * dim, dim, shrink[j]);
  }
}

inline void attend_prefill(const QueryTile& tile, int slot_begin, int slot_end, float* m, float* l, float* o,
                           float* scratch) {
  const KvLayer& cache = tile.op.cache;
  const int dim = cache.head_dim;
  const int padded = (tile.n + kLanes - 1) / kLanes * kLanes;
  float* keys = scratch;                                         // [64, dim]
  float* values = keys + kPageTokens * dim;                      // [64, dim]
  float* queries = values + kPageTokens * dim;                   // [dim, padded], scaled
  const Scores scores{queries + long(dim) * padded, 1, padded};  // [64, padded]
  for (int d = 0; d < dim; ++d)
    for (int i = tile.n; i < padded; ++i) queries[long(d) * padded + i] = 0;
  for (int i = 0; i < tile.n; ++i) {
    const float* q = tile.query(i);
    for (int d = 0; d < dim; ++d) queries[long(d) * padded + i] = q[d] * tile.op.scale;
  }
  for (int slot = slot_begin, next; slot < slot_end; slot = next) {
    next = (slot / kPageTokens + 1) * kPageTokens;
    const int n = (next < slot_end ? next : slot_end) - slot;
    const float* k = page_values(cache.k, cache.k_type, cache, tile.kv_head, slot, n, keys);
    multiply(Product<float>{k, dim, 1, queries, padded, scores.at, padded, n, padded, dim, nullptr});
    mask_scores(tile, slot, n, scores);
    softmax_prefill(tile, n, scores.at, padded, m, l, o);
    const float* v = page_values(cache.v, cache.v_type, cache, tile.kv_head, slot, n, values);
    accumulate_values(scores, v, n, tile.n, dim, o);
  }
}

void attention(const Attention& op, int kv_head, int row_begin, int row_end, int slot_begin, int slot_end, float* m,
               float* l, float* o, std::byte* scratch) {
  const int group = op.n_heads / op.cache.n_kv_heads;
  const QueryTile tile{op, kv_head, group, row_begin, (row_end - row_begin) * group};
  for (int i = 0; i < tile.n; ++i) m[i] = -kInfinity, l[i] = 0;
  for (long i = 0; i < long(tile.n) * op.cache.head_dim; ++i) o[i] = 0;
  auto attend = tile.n <= kDecodeQueries ? attend_decode : attend_prefill;
  attend(tile, slot_begin, slot_end, m, l, o, reinterpret_cast<float*>(scratch));
}

void attention_merge(const Attention& op, int head_begin, int head_end, int row_begin, int row_end, int n_splits,
                     long split_stride, const float* m, const float* l, const float* o) {
  const int dim = op.cache.head_dim;
  for (int r = row_begin; r < row_end; ++r)
    for (int h = head_begin; h < head_end; ++h, ++m, ++l, o += dim) {
      float largest = m[0];
      for (int s = 1; s < n_splits; ++s) largest = m[s * split_stride] > largest ? m[s * split_stride] : largest;
      float* y = op.o + (long(r) * op.n_heads + h) * dim;
      float sum = 0;
      for (int s = 0; s < n_splits; ++s) {
        const float weight = exp(splat(m[s * split_stride] - largest))[0];
        sum += weight * l[s * split_stride];
        const float* part = o + s * split_stride * dim;
        for (int i = 0; i < dim; i += kLanes) {
          const vf before = s == 0 ? vf{} : load(y + i, dim - i);
          store(y + i, fma(splat(weight), load(part + i, dim - i), before), dim - i);
        }
      }
      const float scale = 1.0f / sum;
      const float* gate = op.gate ? op.gate + r * op.gate_row_stride + h * op.gate_head_stride : nullptr;
      for (int i = 0; i < dim; i += kLanes) {
        vf value = load(y + i, dim - i) * scale;
        if (gate) value *= sigmoid(load(gate + i, dim - i));
        store(y + i, value, dim - i);
      }
    }
}

}  // namespace
}  // namespace lb::cpu
