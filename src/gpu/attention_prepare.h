// The body of AttentionPrepare: queries and keys normalised and rotated, keys and values into the cache.
//
// Values meet their partners of the rotation in shared memory. Norm weights are asked for before what precedes has
// ended.
#pragma once

#include "kv_slots.h"
#include "launch/attention_shape.h"

namespace lb::gpu {

// Of value i of a head: which pair it is in, where the other one is.
struct Turn {
  int pair, partner;
  bool is_second;
  LB_DEVICE Turn(const AttentionPrepare& p, int i) {
    if (p.pairs == RopePairs::kHalves) {
      is_second = i >= p.n_pairs;
      pair = is_second ? i - p.n_pairs : i;
      partner = is_second ? pair : i + p.n_pairs;
    } else {
      is_second = i % 2 != 0;
      pair = i / 2;
      partner = i ^ 1;
    }
  }
};

LB_DEVICE void store_value(void* values, DType type, long at, float x) {
  if (type == DType::kF16)
    store(static_cast<f16*>(values) + at, stored_as(x, f16{}));
  else if (type == DType::kBF16)
    store(static_cast<bf16*>(values) + at, stored_as(x, bf16{}));
  else
    store(static_cast<float*>(values) + at, x);
}

// Loops of no more rounds than a head has need of, as their instructions are what takes time. Lanes of up to 8 values
// ask for all they need ahead; with more they would hold too many registers for 8 blocks on a processor.
template <int kHeldValues, class Start>
LB_DEVICE void attention_prepare(const AttentionPrepare& p, long item, float* staged, Start&& start) {
  const KvLayer& cache = p.cache;
  const int dim = cache.head_dim, n_kv = cache.n_kv_heads, n_items = p.n_heads + 2 * n_kv;
  const long row = item / n_items;
  const int of_row = int(item % n_items);
  const bool is_inside = row < p.rows, is_q = of_row < p.n_heads, is_v = of_row >= p.n_heads + n_kv;
  const int head = is_q ? of_row : (of_row - p.n_heads) % n_kv;

  const float* norm = is_q ? p.q_norm : is_v ? nullptr : p.k_norm;
  constexpr bool kIsAhead = kHeldValues <= 8;
  float w[kHeldValues] = {}, x[kHeldValues] = {};
  LB_UNROLL
  for (int j = 0; j < kHeldValues; ++j)
    if (kIsAhead && norm != nullptr && lane() + 32 * j < dim) w[j] = norm[lane() + 32 * j];
  start();
  if (!is_inside) return;  // whole warps

  const long kv_at = (row * n_kv + head) * dim;
  const float* from = is_q ? p.u + row * p.u_row_stride + head * p.u_head_stride : (is_v ? p.v : p.k) + kv_at;
  LB_UNROLL
  for (int j = 0; j < kHeldValues; ++j)
    if (lane() + 32 * j < dim) x[j] = from[lane() + 32 * j];
  const long at = is_q ? (row * p.n_heads + head) * dim : slot_row(cache, *p.n_past + int(row), head) * dim;

  const auto entry = [&](int i) { return row * p.n_pairs + Turn(p, i).pair; };
  float cos[kHeldValues] = {}, sin[kHeldValues] = {};  // asked for before the sum
  LB_UNROLL
  for (int j = 0; j < kHeldValues; ++j) {
    const int i = lane() + 32 * j;
    if (!kIsAhead || is_v || i >= 2 * p.n_pairs) continue;
    cos[j] = p.cos[entry(i)];
    sin[j] = p.sin[entry(i)];
  }

  if (norm != nullptr) {
    float sum = 0;
    LB_UNROLL
    for (int j = 0; j < kHeldValues; ++j) sum += x[j] * x[j];
    const float scale = rsqrt_fast(warp_sum(sum) / float(dim) + p.eps);
    LB_UNROLL
    for (int j = 0; j < kHeldValues; ++j) {
      if (!kIsAhead && lane() + 32 * j < dim) w[j] = norm[lane() + 32 * j];
      x[j] = x[j] * scale * w[j];
    }
  }
  LB_UNROLL
  for (int j = 0; j < kHeldValues; ++j)
    if (lane() + 32 * j < dim) store(staged + lane() + 32 * j, x[j]);
  warp_barrier();
  LB_UNROLL
  for (int j = 0; j < kHeldValues; ++j) {
    const int i = lane() + 32 * j;
    if (i >= dim) continue;
    float y = x[j];
    if (!is_v && i < 2 * p.n_pairs) {
      const Turn turn(p, i);
      if (!kIsAhead) cos[j] = p.cos[entry(i)], sin[j] = p.sin[entry(i)];
      const float other = load<float>(staged + turn.partner);
      y = turn.is_second ? y * cos[j] + other * sin[j] : y * cos[j] - other * sin[j];
    }
    if (is_q)
      p.q[at + i] = y;
    else
      store_value(is_v ? cache.v : cache.k, is_v ? cache.v_type : cache.k_type, at + i, y);
  }
}

// A head of q, k or v of a row on its way to where it is needed, by a warp: a lane has every 32nd value. Heads are
// counted as n_heads of q, then those of k, then those of v.
template <int kHeld>
struct PreparedHead {
  bool is_q, is_v;
  int head;  // of its kind
  const float* norm;
  float w[kHeld] = {};

  // Asks for the norm weights, which nothing that precedes writes.
  LB_DEVICE PreparedHead(const AttentionPrepare& p, int of_row) {
    const int n_kv = p.cache.n_kv_heads;
    is_q = of_row < p.n_heads;
    is_v = of_row >= p.n_heads + n_kv;
    head = is_q ? of_row : (of_row - p.n_heads) % n_kv;
    norm = is_q ? p.q_norm : is_v ? nullptr : p.k_norm;
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j)
      if (norm != nullptr && lane() + 32 * j < p.cache.head_dim) w[j] = norm[lane() + 32 * j];
  }

  // put(i, value i) for each value; staged: [head_dim], the warp's own, of no use afterwards.
  template <class Put>
  LB_DEVICE void make(const AttentionPrepare& p, long row, float* staged, Put&& put) const {
    const int dim = p.cache.head_dim;
    const float* from = is_q ? p.u + row * p.u_row_stride + head * p.u_head_stride
                             : (is_v ? p.v : p.k) + (row * p.cache.n_kv_heads + head) * dim;
    float x[kHeld] = {}, cos[kHeld] = {}, sin[kHeld] = {};  // all asked for before the sum
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j)
      if (lane() + 32 * j < dim) x[j] = from[lane() + 32 * j];
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j) {
      const int i = lane() + 32 * j;
      if (is_v || i >= 2 * p.n_pairs) continue;
      const long entry = row * p.n_pairs + Turn(p, i).pair;
      cos[j] = p.cos[entry];
      sin[j] = p.sin[entry];
    }
    if (norm != nullptr) {
      float sum = 0;
      LB_UNROLL
      for (int j = 0; j < kHeld; ++j) sum += x[j] * x[j];
      const float scale = rsqrt_fast(warp_sum(sum) / float(dim) + p.eps);
      LB_UNROLL
      for (int j = 0; j < kHeld; ++j) x[j] = x[j] * scale * w[j];
    }
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j)
      if (lane() + 32 * j < dim) store(staged + lane() + 32 * j, x[j]);
    warp_barrier();
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j) {
      const int i = lane() + 32 * j;
      if (is_v || i >= 2 * p.n_pairs) continue;
      const Turn turn(p, i);
      const float other = load<float>(staged + turn.partner);
      x[j] = turn.is_second ? x[j] * cos[j] + other * sin[j] : x[j] * cos[j] - other * sin[j];
    }
    warp_barrier();
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j)
      if (lane() + 32 * j < dim) put(lane() + 32 * j, x[j]);
  }
};

// One item, by a warp; staged: [head_dim], its own. start() is called when the inputs are needed, by every warp.
template <class Start>
LB_DEVICE void attention_prepare(const AttentionPrepare& p, long item, float* staged, Start&& start) {
  const KvLayer& cache = p.cache;
  const int n_items = p.n_heads + 2 * cache.n_kv_heads;
  const long row = item / n_items;
  const PreparedHead<kMaxPreparedDim / 32> head(p, int(item % n_items));
  start();
  if (row >= p.rows) return;  // whole warps
  const long at = head.is_q ? row * p.n_heads + head.head : slot_row(cache, *p.n_past + int(row), head.head);
  head.make(p, row, staged, [&](int i, float y) {
    if (head.is_q)
      p.q[at * cache.head_dim + i] = y;
    else
      store_value(head.is_v ? cache.v : cache.k, head.is_v ? cache.v_type : cache.k_type, at * cache.head_dim + i, y);
  });
}

}  // namespace lb::gpu
