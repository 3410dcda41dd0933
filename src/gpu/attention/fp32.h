// The body of attention_fp32, for caches that the matrix-unit kernels do not support: F32 pages, and any head_dim up to
// 512 that is a multiple of 8 (of 32 for packed types).
//
// Grid: tiles of 8 queries, KV heads, splits of the context. 16 slots at a time: a thread first computes one score,
// then four columns of o for all 8 queries. Bound: shared memory, about one read per multiplication; each tile of
// queries reads K and V once.
#pragma once

#include "gpu/attention/kv_load.h"
#include "gpu/attention/queries.h"
#include "gpu/attention/tile.h"
#include "gpu/attention/tree_row.h"

namespace lb::gpu {

// Reads slots [first, first + kFp32Slots) of a head's page to shared memory, [kFp32Slots][head_dim + 4]; zeros from
// n_valid on. Not inlined: two copies of every type's loop would not fit AMD's scalar registers.
LB_NOINLINE void read_slots(float* to, uint8_t* head, KvType type, int dim, int first, int n_valid) {
  assume_shared(to);
  const int shift = scale_shift(type, dim);
  const KvRowBytes bytes = row_bytes(type, dim);
  for (int i = 8 * thread_id(); i < kFp32Slots * dim; i += 8 * kAttentionThreads) {
    const int row = i / dim, column = i % dim;
    const quant::KvRow from = row_of(head, bytes, first + row);
    f32x4 x[2] = {};
    if (row < n_valid) with_kv_type(type, [&](auto tag) { load_eight<tag.kType, FromGlobal>(from, column, shift, x); });
    store(to + row * (dim + 4) + column, x[0]);
    store(to + row * (dim + 4) + column + 4, x[1]);
  }
}
// Positions whose slots are not consecutive.
LB_DEVICE void read_moved_slots(float* to, void* pages, KvType type, const KvLayer& cache, int kv_head,
                                const TreeRow& row_slots, int first, int n_valid) {
  assume_shared(to);
  const int dim = key_dim_of(cache), shift = scale_shift(type, dim);
  for (int i = 8 * thread_id(); i < kFp32Slots * dim; i += 8 * kAttentionThreads) {
    const int row = i / dim, column = i % dim;
    f32x4 x[2] = {};
    if (row < n_valid) {
      const quant::KvRow from = slot_of(pages, type, cache, row_slots.slot(first + row), kv_head);
      with_kv_type(type, [&](auto tag) { load_eight<tag.kType, FromGlobal>(from, column, shift, x); });
    }
    store(to + row * (dim + 4) + column, x[0]);
    store(to + row * (dim + 4) + column + 4, x[1]);
  }
}
template <class Slots>
LB_DEVICE void read_slots(float* to, void* pages, KvType type, const KvLayer& cache, int kv_head, const Slots* slots,
                          int slot, int end) {
  if constexpr (Slots::kMoves)
    if (slots->moves(slot + kFp32Slots))
      return read_moved_slots(to, pages, type, cache, kv_head, *slots, slot, end - slot);
  uint8_t* head = head_of(pages, row_bytes(type, key_dim_of(cache)), cache, page_of(cache, slot), kv_head);
  read_slots(to, head, type, key_dim_of(cache), slot % kPageTokens, end - slot);
}

// slots: as for attention_decode.
template <class Slots>
LB_DEVICE void attention_fp32(const AttentionSplits& p, int split, const Slots* slots) {
  const Attention& op = p.op;
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim, key_dim = key_dim_of(cache), stride = key_dim + 4;
  float* q = dynamic_shared<float>();                    // [kFp32Queries][stride]
  float* tile = q + kFp32Queries * stride;               // [kFp32Slots][stride]
  float* weights = tile + kFp32Slots * stride;           // [kFp32Queries][kFp32Slots]
  float* factors = weights + kFp32Queries * kFp32Slots;  // [kFp32Queries]

  const Queries queries(op, block_id_y());
  const int n_past = past_of(op, slots), first = block_id() * kFp32Queries;
  if (split >= live_splits(p, n_past)) return;
  const int end = slots_seen(op, n_past, queries.row(min(first + kFp32Queries, queries.n) - 1));
  const PageRange pages = pages_of(p, split, n_past, end, queries.row(first));
  const int split_end = min(pages.end * kPageTokens, end);
  begin_attention();

  for (int i = 4 * thread_id(); i < kFp32Queries * key_dim; i += 4 * kAttentionThreads) {
    const int query = first + i / key_dim, column = i % key_dim;
    f32x4 x = {};
    if (query < queries.n) x = load<f32x4>(op.q + queries.at(op, query) * key_dim + column);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) x[j] *= op.scale * kLog2E;
    store(q + i / key_dim * stride + column, x);
  }

  const int own_query = thread_id() / kFp32Slots, own_slot = thread_id() % kFp32Slots, own_column = 4 * thread_id();
  const int row = queries.row(min(first + own_query, queries.n - 1));
  float m = kNothingSeen, l = 0;  // state of own_query; l sums only slots with index own_slot in their tile
  f32x4 o[kFp32Queries] = {};
  for (int slot = pages.begin * kPageTokens; slot < split_end; slot += kFp32Slots) {
    read_slots(tile, cache.k, cache.k_type, cache, queries.kv_head, slots, slot, end);
    block_barrier();
    f32x4 sums = {};
    for (int i = 0; i < key_dim; i += 4) {
      const auto a = load<f32x4>(q + own_query * stride + i), b = load<f32x4>(tile + own_slot * stride + i);
      LB_UNROLL
      for (int j = 0; j < 4; ++j) sums[j] = fma(a[j], b[j], sums[j]);
    }
    float score = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    if (!sees(op, n_past, row, slot + own_slot - n_past)) score = kNothingSeen;
    float top = max(m, score);
    LB_UNROLL
    for (int lanes = kFp32Slots / 2; lanes > 0; lanes /= 2) top = max(top, shuffle_xor(top, lanes));
    const float base = top == kNothingSeen ? 0.0f : top;
    const float factor = exp2_fast(m - base), weight = exp2_fast(score - base);
    m = top;
    l = l * factor + weight;
    store(weights + thread_id(), weight);
    if (own_slot == 0) store(factors + own_query, factor);
    block_barrier();
    if (cache.key_tail == 0) {  // else the tile has the values
      read_slots(tile, cache.v, cache.v_type, cache, queries.kv_head, slots, slot, end);
      block_barrier();
    }
    if (own_column < dim) {
      LB_UNROLL
      for (int i = 0; i < kFp32Queries; ++i) {
        const float shrink = load<float>(factors + i);
        LB_UNROLL
        for (int j = 0; j < 4; ++j) o[i][j] *= shrink;
      }
      for (int s = 0; s < kFp32Slots; ++s) {
        const auto v = load<f32x4>(tile + s * stride + own_column);
        LB_UNROLL
        for (int i = 0; i < kFp32Queries; ++i) {
          const float w = load<float>(weights + i * kFp32Slots + s);
          LB_UNROLL
          for (int j = 0; j < 4; ++j) o[i][j] = fma(w, v[j], o[i][j]);
        }
      }
    }
    block_barrier();
  }

  LB_UNROLL
  for (int lanes = kFp32Slots / 2; lanes > 0; lanes /= 2) l += shuffle_xor(l, lanes);
  if (own_slot == 0) {
    store(factors + own_query, l);
    if (p.has_merge && first + own_query < queries.n) write_softmax(p, queries, first + own_query, m, l, split);
  }
  block_barrier();
  if (own_column >= dim) return;
  LB_UNROLL
  for (int i = 0; i < kFp32Queries; ++i) {
    if (first + i >= queries.n) break;
    const float scale = p.has_merge ? 1.0f : 1.0f / load<float>(factors + i);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) o[i][j] *= scale;
    write_columns(p, queries, first + i, own_column, o[i], split);
  }
}

}  // namespace lb::gpu
