// The body of AttentionPrepare: queries and keys normalised and rotated, keys and values into the cache.
//
// A warp a head of a row: the query heads, then those of K, then those of V. A lane has every 32nd value in registers;
// they meet their partners of the rotation in shared memory. Norm weights are asked for before what precedes has ended.
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

// One item, by a warp; staged: [head_dim], its own. start() is called when the inputs are needed, by every warp.
template <class Start>
LB_DEVICE void attention_prepare(const AttentionPrepare& p, long item, float* staged, Start&& start) {
  if (p.cache.head_dim <= 64) {
    attention_prepare<2>(p, item, staged, start);
  } else if (p.cache.head_dim <= 128) {
    attention_prepare<4>(p, item, staged, start);
  } else if (p.cache.head_dim <= 256) {
    attention_prepare<8>(p, item, staged, start);
  } else {
    attention_prepare<kMaxPreparedDim / 32>(p, item, staged, start);
  }
}

}  // namespace lb::gpu
