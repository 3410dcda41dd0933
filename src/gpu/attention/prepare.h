// The body of AttentionPrepare: RmsNorm (of values too, if the op has v_norm) or biases, Rope of queries and keys,
// rotation of both if the cache stores rotated keys, and stores of keys and values to the cache.
//
// One item is a head of a row: the query heads, then K's heads, then V's. One warp computes an item, with four
// consecutive values per lane and round. The halves of each Rope pair meet in shared memory. Loads ahead of start(),
// which waits for the previous kernel: norm weights, biases and everything older than the step's embedding (the table
// of angles, n_past, the page table).
#pragma once

#include "gpu/attention/kv_store.h"
#include "gpu/attention/shape.h"

namespace lb::gpu {

// An item of a cache with key_tail: a head of queries or of keys, whose tail follows it in shared memory.
template <class Start>
LB_DEVICE void prepare_with_tail(const AttentionPrepare& p, int item, float* staged, Start&& start) {
  constexpr int kRounds = kMaxHeadDim / 128, kRowRounds = kMaxKeyDim / 128;
  const KvLayer& cache = p.cache;
  const int dim = cache.head_dim, key_dim = key_dim_of(cache), half = dim / 2, n = p.n_tail_pairs;
  const int n_items = p.n_heads + (p.k == nullptr ? 0 : cache.n_kv_heads), row = item / n_items, head = item % n_items;
  if (row >= p.rows) return start();  // a whole warp returns
  const bool is_q = head < p.n_heads;
  const KvType type = cache.k_type;
  quant::KvRow slot = {};
  if (!is_q) slot = slot_of(cache.k, type, cache, *p.n_past + row, head - p.n_heads);
  start();

  const float* from = is_q ? p.u + row * p.u_row_stride + head * p.u_head_stride
                           : p.k + (long(row) * cache.n_kv_heads + head - p.n_heads) * dim;
  const float* norm = is_q ? p.q_norm : p.v_norm;
  f32x4 x[kRounds];
  float sum = 0;
  LB_UNROLL
  for (int j = 0; j < kRounds; ++j) {
    x[j] = {};
    if (head_column(j) < dim) x[j] = load<f32x4>(from + head_column(j));
    LB_UNROLL
    for (int i = 0; i < 4; ++i) sum += x[j][i] * x[j][i];
  }
  const float scale = rsqrt_fast(warp_sum(sum) / float(dim) + p.eps);
  LB_UNROLL
  for (int j = 0; j < kRounds; ++j) {
    if (head_column(j) >= dim) continue;
    const auto w = load<f32x4>(norm + head_column(j));
    LB_UNROLL
    for (int i = 0; i < 4; ++i) x[j][i] = x[j][i] * scale * w[i];
    store(staged + head_column(j), x[j]);
  }
  for (int i = lane(); i < cache.key_tail; i += 32) store(staged + dim + i, 0.0f);
  warp_barrier();
  const bool has_own = is_q && p.q_cos != nullptr;
  for (int pair = lane(); pair < n; pair += 32) {
    float *first = staged + pair, *second = first + half;
    float a = load<float>(first), b = load<float>(second), cos = 1, sin = 0;
    if (!is_q) a *= p.k_norm[pair], b *= p.k_norm[pair + half];
    if (p.n_pairs > 0) {
      const long entry = long(row) * p.n_pairs + pair;
      cos = (has_own ? p.q_cos : p.cos)[entry];
      sin = (has_own ? p.q_sin : p.sin)[entry];
    }
    store(staged + dim + pair, fma(a, cos, -(b * sin)));  // as attention_prepare() rotates
    store(staged + dim + n + pair, fma(b, cos, a * sin));
    if (is_q) store(first, 0.0f), store(second, 0.0f);
  }
  warp_barrier();
  f32x4 whole[kRowRounds];
  LB_UNROLL
  for (int j = 0; j < kRowRounds; ++j) {
    whole[j] = {};
    if (head_column(j) < key_dim) whole[j] = load<f32x4>(staged + head_column(j));
  }
  if (!is_q) return store_head(type, slot, whole, key_dim);
  if (stores_rotated(type)) rotate_head(whole, rotated_group(dim));
  float* q = p.q + (long(row) * p.n_heads + head) * key_dim;
  LB_UNROLL
  for (int j = 0; j < kRowRounds; ++j)
    if (head_column(j) < key_dim) store(q + head_column(j), whole[j]);
}

// Heads of up to 128 kRounds values. kRounds is a template parameter because this kernel is bound by instructions. With
// four rounds the table of angles is loaded after start(): loading it earlier would take too many registers for 8
// blocks per SM.
template <int kRounds, class Start>
LB_DEVICE void attention_prepare(const AttentionPrepare& p, int item, float* staged, Start&& start) {
  constexpr int kPairRounds = 2 * kRounds, kPairsAhead = kRounds <= 2 ? kPairRounds : 0;
  const KvLayer& cache = p.cache;
  const int dim = cache.head_dim, n_kv = p.k == nullptr ? 0 : cache.n_kv_heads, n_items = p.n_heads + 2 * n_kv;
  const int row = item / n_items, item_of_row = item % n_items;
  if (row >= p.rows) return start();  // a whole warp returns
  const bool is_q = item_of_row < p.n_heads, is_v = item_of_row >= p.n_heads + n_kv;
  const int head = is_q ? item_of_row : is_v ? item_of_row - p.n_heads - n_kv : item_of_row - p.n_heads;

  // Norm weights or biases: no model has both.
  const float* norm = is_q ? p.q_norm : is_v ? p.v_norm : p.k_norm;
  const float* bias = is_q ? p.q_bias : is_v ? p.v_bias : p.k_bias;
  const float* by_column = norm != nullptr ? norm : bias != nullptr ? bias + head * dim : nullptr;
  const auto column = [](int j) { return head_column(j); };
  f32x4 w[kRounds], x[kRounds];
  float cos[kPairRounds], sin[kPairRounds];
  const auto read_table = [&](int j) {
    const bool has_own = is_q && p.q_cos != nullptr;
    const long entry = long(row) * p.n_pairs + lane() + 32 * j;
    cos[j] = (has_own ? p.q_cos : p.cos)[entry];
    sin[j] = (has_own ? p.q_sin : p.sin)[entry];
  };
  LB_UNROLL
  for (int j = 0; j < kRounds; ++j)
    if (by_column != nullptr && column(j) < dim) w[j] = load<f32x4>(by_column + column(j));
  LB_UNROLL
  for (int j = 0; j < kPairsAhead; ++j)
    if (!is_v && lane() + 32 * j < p.n_pairs) read_table(j);
  const KvType type = is_v ? cache.v_type : cache.k_type;
  quant::KvRow slot = {};
  if (!is_q) slot = slot_of(is_v ? cache.v : cache.k, type, cache, *p.n_past + row, head);
  start();

  const float* from =
      is_q ? p.u + row * p.u_row_stride + head * p.u_head_stride : (is_v ? p.v : p.k) + (long(row) * n_kv + head) * dim;
  float sum = 0;
  LB_UNROLL
  for (int j = 0; j < kRounds; ++j) {
    x[j] = {};
    if (column(j) < dim) x[j] = load<f32x4>(from + column(j));
    if (bias != nullptr && column(j) < dim) {
      LB_UNROLL
      for (int i = 0; i < 4; ++i) x[j][i] += w[j][i];
    }
  }
  if (norm != nullptr) {
    LB_UNROLL
    for (int j = 0; j < kRounds; ++j) {
      LB_UNROLL
      for (int i = 0; i < 4; ++i) sum += x[j][i] * x[j][i];
    }
    const float scale = rsqrt_fast(warp_sum(sum) / float(dim) + p.eps);
    LB_UNROLL
    for (int j = 0; j < kRounds; ++j) {
      LB_UNROLL
      for (int i = 0; i < 4; ++i) x[j][i] = x[j][i] * scale * w[j][i];
    }
  }
  if (!is_v) {
    LB_UNROLL
    for (int j = 0; j < kRounds; ++j)
      if (column(j) < dim) store(staged + column(j), x[j]);
    warp_barrier();
    const bool is_halves = p.pairs == RopePairs::kHalves;
    LB_UNROLL
    for (int j = 0; j < kPairRounds; ++j) {
      const int pair = lane() + 32 * j;
      if (pair >= p.n_pairs) continue;
      if (j >= kPairsAhead) read_table(j);
      float *first = staged + (is_halves ? pair : 2 * pair), *second = first + (is_halves ? p.n_pairs : 1);
      const float a = load<float>(first), b = load<float>(second);
      store(first, fma(a, cos[j], -(b * sin[j])));  // explicit fma: every kernel that rotates gives the same bits
      store(second, fma(b, cos[j], a * sin[j]));
    }
    warp_barrier();
    LB_UNROLL
    for (int j = 0; j < kRounds; ++j)
      if (column(j) < dim) x[j] = load<f32x4>(staged + column(j));
  }
  if (!is_q) return store_head(type, slot, x, dim);
  if (stores_rotated(type)) rotate_head(x, rotated_group(dim));
  float* q = p.q + (long(row) * p.n_heads + head) * dim;
  LB_UNROLL
  for (int j = 0; j < kRounds; ++j)
    if (column(j) < dim) store(q + column(j), x[j]);
}

// Called by a warp. staged: [key_dim] in shared memory, private to the warp. Every warp calls start() once, before it
// reads the projections.
template <class Start>
LB_DEVICE void attention_prepare(const AttentionPrepare& p, int item, float* staged, Start&& start) {
  if (p.cache.key_tail > 0)
    prepare_with_tail(p, item, staged, start);
  else if (p.cache.head_dim <= 128)
    attention_prepare<1>(p, item, staged, start);
  else if (p.cache.head_dim <= 256)
    attention_prepare<2>(p, item, staged, start);
  else
    attention_prepare<kMaxHeadDim / 128>(p, item, staged, start);
}

}  // namespace lb::gpu
