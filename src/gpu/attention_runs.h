// Attention of one row in fp32, by single warps: a decode step has few queries and, with many multiprocessors, few
// slots for each of them. A warp has some queries of a KV head and runs of 32 slots: a lane the scores of one slot,
// then some columns of o. No block barrier, and half of the registers of the kernels for matrix units
// (attention_few.cpp), which a block of 512 threads does not have. Bound: latency; K and V once.
#pragma once

#include "attention_queries.h"
#include "kv_slots.h"
#include "launch/megakernel_shape.h"

namespace lb::gpu {

LB_DEVICE int n_active_splits(const RunsTask& p, int n_slots) {
  return min(p.n_splits, (n_slots + kRunSlots - 1) / kRunSlots);
}

// The kColumns values from `at` on; rows of this launch are among them, so not by the read-only path.
template <class T, int kColumns>
LB_DEVICE void read_columns(const void* values, long at, float (&v)[kColumns]) {
  using V = Vec<T, kColumns * sizeof(T) <= 16 ? kColumns : 16 / sizeof(T)>;
  constexpr int kEach = sizeof(V) / sizeof(T);
  LB_UNROLL
  for (int i = 0; i < kColumns / kEach; ++i) {
    const V part = load<V>(static_cast<const T*>(values) + at + i * kEach);
    LB_UNROLL
    for (int j = 0; j < kEach; ++j) v[i * kEach + j] = to_f32(part[j]);
  }
}

// The warp's queries in shared memory, [kQueries, dim], zero beyond the last: all of them are asked for at once.
template <int kQueries>
LB_DEVICE void stage_run(float* to, const float* q, int dim, int n_queries) {
  LB_UNROLL_BY(8)
  for (int i = 4 * lane(); i < kQueries * dim; i += 128) {
    f32x4 x = {};
    if (i < n_queries * dim) x = load<f32x4>(q + i);
    store(to + i, x);
  }
  warp_barrier();
}

// Queries [first_query, + n_queries) of kv_head over slots [begin, end). T: type of the cache.
template <class T, int kColumns, int kQueries>
LB_APART void attention_run(const RunsTask& p, const Queries& queries, int first_query, int split, int begin, int end,
                            float* staged) {
  const Attention& op = p.op;
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim, n_queries = min(queries.n - first_query, kQueries);
  warp_barrier();  // the queries before are done with
  stage_run<kQueries>(staged, op.q + queries.at(op, first_query) * dim, dim, n_queries);
  const float scale = op.scale * kLog2E;
  const bool has_columns = lane() * kColumns < dim;
  float m[kQueries], l[kQueries], o[kQueries][kColumns];
  LB_UNROLL
  for (int g = 0; g < kQueries; ++g) {
    m[g] = kNothingSeen;
    l[g] = 0;
    LB_UNROLL
    for (int c = 0; c < kColumns; ++c) o[g][c] = 0;
  }
  for (int slot = begin; slot < end; slot += kRunSlots) {
    const int n = min(end - slot, kRunSlots);
    const long row = slot_row(cache, slot, queries.kv_head);  // a run lies within a page
    const long own = (row + min(lane(), n - 1)) * dim;
    float weights[kQueries] = {};
    LB_UNROLL_BY(8)
    for (int i = 0; i < dim; i += 8) {
      float k[8];
      read_columns<T, 8>(cache.k, own + i, k);
      LB_UNROLL
      for (int g = 0; g < kQueries; ++g) {
        LB_UNROLL
        for (int half = 0; half < 2; ++half) {
          const f32x4 x = load<f32x4>(staged + g * dim + i + 4 * half);
          LB_UNROLL
          for (int j = 0; j < 4; ++j) weights[g] = fma(x[j], k[4 * half + j], weights[g]);
        }
      }
    }
    LB_UNROLL
    for (int g = 0; g < kQueries; ++g) {
      const float score = lane() < n ? weights[g] * scale : kNothingSeen;
      const float top = max(m[g], warp_max(score)), shrink = exp2_fast(m[g] - top);
      weights[g] = exp2_fast(score - top);
      l[g] = l[g] * shrink + weights[g];
      m[g] = top;
      LB_UNROLL
      for (int c = 0; c < kColumns; ++c) o[g][c] *= shrink;
    }
    LB_UNROLL_BY(8)
    for (int s = 0; s < n; ++s) {
      float v[kColumns] = {};
      if (has_columns) read_columns<T, kColumns>(cache.v, (row + s) * dim + lane() * kColumns, v);
      LB_UNROLL
      for (int g = 0; g < kQueries; ++g) {
        const float weight = shuffle(weights[g], s);
        LB_UNROLL
        for (int c = 0; c < kColumns; ++c) o[g][c] = fma(weight, v[c], o[g][c]);
      }
    }
  }
  LB_UNROLL
  for (int g = 0; g < kQueries; ++g) {
    if (g >= n_queries) break;
    const long at = long(split) * op.n_heads + queries.head(first_query + g);
    const float total = warp_sum(l[g]);
    if (lane() == 0) {
      p.m[at] = m[g];
      p.l[at] = total;
    }
    if (!has_columns) continue;
    LB_UNROLL
    for (int c = 0; c < kColumns; ++c) p.o[at * dim + lane() * kColumns + c] = o[g][c];
  }
}

template <class T>
LB_DEVICE void attention_run_of(const RunsTask& p, const Queries& queries, int first_query, int split, int begin,
                                int end, float* staged) {
  const int dim = p.op.cache.head_dim;
  if (dim <= 64) return attention_run<T, 2, run_queries(64)>(p, queries, first_query, split, begin, end, staged);
  if (dim <= 128) return attention_run<T, 4, run_queries(128)>(p, queries, first_query, split, begin, end, staged);
  attention_run<T, 8, run_queries(256)>(p, queries, first_query, split, begin, end, staged);
}

// Asks for K and V of the first run of this warp: all but the newest row were there before.
LB_DEVICE void prefetch_runs(const RunsTask& p, int part, int n_parts) {
  const KvLayer& cache = p.op.cache;
  const int n_slots = *p.op.n_past + 1, n_active = n_active_splits(p, n_slots);
  const int n_runs = (n_slots + kRunSlots - 1) / kRunSlots, i = part + warp() * n_parts;
  if (i >= cache.n_kv_heads * n_active) return;
  const int slot = int(long(n_runs) * (i % n_active) / n_active) * kRunSlots + lane();
  if (slot >= n_slots - 1) return;
  const int value_bytes = cache.k_type == DType::kF32 ? 4 : 2;
  const long at = slot_row(cache, slot, i / n_active) * cache.head_dim * value_bytes;
  for (int byte = 0; byte < cache.head_dim * value_bytes; byte += 128) {
    prefetch(static_cast<const char*>(cache.k) + at + byte);
    prefetch(static_cast<const char*>(cache.v) + at + byte);
  }
}

// The warps of all parts share out KV heads, tiles of queries and splits: first over the parts, then over their warps.
LB_DEVICE void attention_runs(const RunsTask& p, int part, int n_parts, float* pool) {
  float* staged = pool + warp() * kRunQueryFloats;
  const Attention& op = p.op;
  const KvLayer& cache = op.cache;
  const int n_slots = *op.n_past + 1, n_active = n_active_splits(p, n_slots);
  const int n_runs = (n_slots + kRunSlots - 1) / kRunSlots;
  const int tile_queries = run_queries(cache.head_dim);
  const int n_tiles = (op.n_heads / cache.n_kv_heads + tile_queries - 1) / tile_queries;
  for (int i = part + warp() * n_parts; i < cache.n_kv_heads * n_tiles * n_active; i += n_parts * n_warps()) {
    const int split = i % n_active, tile = i / n_active % n_tiles;
    const Queries queries(op, i / n_active / n_tiles);
    const int begin = int(long(n_runs) * split / n_active) * kRunSlots;
    const int end = min(int(long(n_runs) * (split + 1) / n_active) * kRunSlots, n_slots);
    if (cache.k_type == DType::kF16)
      attention_run_of<f16>(p, queries, tile * tile_queries, split, begin, end, staged);
    else if (cache.k_type == DType::kBF16)
      attention_run_of<bf16>(p, queries, tile * tile_queries, split, begin, end, staged);
    else
      attention_run_of<float>(p, queries, tile * tile_queries, split, begin, end, staged);
  }
}

// The splits of a head become one softmax: a warp has 32 columns of a head.
LB_DEVICE void attention_merge(const RunsTask& p, int part, int n_parts) {
  const Attention& op = p.op;
  const int dim = op.cache.head_dim, n_chunks = (dim + 31) / 32;
  const int n_active = n_active_splits(p, *op.n_past + 1);
  for (int i = part + warp() * n_parts; i < op.n_heads * n_chunks; i += n_parts * n_warps()) {
    const int head = i / n_chunks, column = i % n_chunks * 32 + lane();
    float m = kNothingSeen;
    for (int s = lane(); s < n_active; s += 32) m = max(m, p.m[s * op.n_heads + head]);
    m = warp_max(m);
    float l = 0, sum = 0;
    for (int first = 0; first < n_active; first += 32) {
      const int own = first + lane();
      const float weight = own < n_active ? exp2_fast(p.m[own * op.n_heads + head] - m) : 0.0f;
      if (own < n_active) l += weight * p.l[own * op.n_heads + head];
      LB_UNROLL_BY(8)
      for (int j = 0; j < min(32, n_active - first); ++j) {
        const float of_split = shuffle(weight, j);
        if (column < dim) sum = fma(of_split, p.o[(long(first + j) * op.n_heads + head) * dim + column], sum);
      }
    }
    l = warp_sum(l);
    if (column < dim) op.o[long(head) * dim + column] = sum / l * gate_of(op, 0, head, column);
  }
}

}  // namespace lb::gpu
