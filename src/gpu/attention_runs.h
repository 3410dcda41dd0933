// Attention of one row of queries, with what AttentionPrepare does: blocks have splits of the context. A block makes
// the queries of its KV head itself, and the row's own K and V where its split ends with it. Tiles of 16 slots of K and
// V come to shared memory, the first before the projections are there: a warp has the scores of a slot, then 64 columns
// of o for some queries. Queries are rounded to the cache's type, as for the kernels on matrix units; sums are fp32.
// Bound: latency for a short context; K and V once.
//
// Then the splits become one softmax: a block has some columns of a head, and all of their partials at once.
#pragma once

#include "attention_prepare.h"
#include "attention_queries.h"
#include "launch/megakernel_shape.h"
#include "warp_sums.h"

namespace lb::gpu {

LB_DEVICE int n_active_splits(const RunsTask& p, int n_slots) {
  return min(p.n_splits, (n_slots + kLeastRunSlots - 1) / kLeastRunSlots);
}

// What a block does at a time: up to kRunQueries queries of a KV head over a split of the slots.
struct RunUnit {
  int kv_head, first_query, n_queries, split, begin, end;

  LB_DEVICE RunUnit(const RunsTask& p, int i, int n_slots) {
    const Attention& op = p.op;
    const int n_active = n_active_splits(p, n_slots), group = op.n_heads / op.cache.n_kv_heads;
    const int n_tiles = (group + kRunQueries - 1) / kRunQueries;
    split = i % n_active;
    first_query = i / n_active % n_tiles * kRunQueries;
    kv_head = i / n_active / n_tiles;
    n_queries = min(group - first_query, kRunQueries);
    begin = int(long(n_slots) * split / n_active);
    end = int(long(n_slots) * (split + 1) / n_active);
  }
  LB_DEVICE static int count(const RunsTask& p, int n_slots) {
    const int group = p.op.n_heads / p.op.cache.n_kv_heads;
    return n_active_splits(p, n_slots) * ((group + kRunQueries - 1) / kRunQueries) * p.op.cache.n_kv_heads;
  }
};

// Shared memory of a block.
template <class T>
struct RunMemory {
  T *k, *v;       // [2, kRunTile, head_dim] each
  T* queries;     // [kRunQueries, head_dim]
  float* heads;   // [kRunQueries + 2, head_dim]: where warps make them
  float* scores;  // [kRunQueries, kRunTile]

  LB_DEVICE RunMemory(void* pool, int dim)
      : k(static_cast<T*>(pool)),
        v(k + 2 * kRunTile * dim),
        queries(v + 2 * kRunTile * dim),
        heads(reinterpret_cast<float*>(queries + kRunQueries * dim)),
        scores(heads + (kRunQueries + 2) * dim) {}
};

// Brings slots [begin, end) of a head to half `half` of the tiles: warp w those that it will make the scores of.
template <class T>
LB_DEVICE void bring_tile(const KvLayer& cache, int kv_head, int begin, int end, int half, const RunMemory<T>& memory) {
  const int dim = cache.head_dim, row_bytes = dim * int(sizeof(T));
  for (int s = warp(); s < end - begin; s += n_warps()) {
    const long row = slot_row(cache, begin + s, kv_head);
    const int to = half * kRunTile + s;
    for (int byte = 16 * lane(); byte < row_bytes; byte += 512) {
      copy_async<16>(reinterpret_cast<char*>(memory.k + to * dim) + byte,
                     static_cast<const char*>(cache.k) + row * row_bytes + byte);
      copy_async<16>(reinterpret_cast<char*>(memory.v + to * dim) + byte,
                     static_cast<const char*>(cache.v) + row * row_bytes + byte);
    }
  }
  copy_commit();
}

// A head of q, k or v of the row, by a warp: normalised, rotated, put(i, value i) for each value. As prepare_attention,
// but for up to kMaxRunDim values in registers of which the norm weights are there; heads are counted as there.
struct RunHead {
  static constexpr int kHeld = kMaxRunDim / 32;
  const float *from, *norm;
  bool is_v;
  float w[kHeld] = {};

  LB_DEVICE RunHead(const AttentionPrepare& p, int of_row) {
    const int n_kv = p.cache.n_kv_heads, dim = p.cache.head_dim;
    const bool is_q = of_row < p.n_heads;
    is_v = of_row >= p.n_heads + n_kv;
    norm = is_q ? p.q_norm : is_v ? nullptr : p.k_norm;
    from = is_q ? p.u + of_row * p.u_head_stride : (is_v ? p.v : p.k) + (of_row - p.n_heads) % n_kv * dim;
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j)
      if (norm != nullptr && lane() + 32 * j < dim) w[j] = norm[lane() + 32 * j];
  }

  template <class Put>
  LB_DEVICE void make(const AttentionPrepare& p, float* staged, Put&& put) const {
    const int dim = p.cache.head_dim;
    float x[kHeld] = {}, cos[kHeld] = {}, sin[kHeld] = {};  // all asked for at once
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j) {
      const int i = lane() + 32 * j;
      if (i < dim) x[j] = from[i];
      if (is_v || i >= 2 * p.n_pairs) continue;
      cos[j] = p.cos[Turn(p, i).pair];
      sin[j] = p.sin[Turn(p, i).pair];
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
      if (i >= dim) continue;
      float y = x[j];
      if (!is_v && i < 2 * p.n_pairs) {
        const Turn turn(p, i);
        const float other = load<float>(staged + turn.partner);
        y = turn.is_second ? y * cos[j] + other * sin[j] : y * cos[j] - other * sin[j];
      }
      put(i, y);
    }
  }
};

// scores[query][slot of the tile], by a warp each slot: a lane has pairs of columns, 64 apart.
template <class T>
LB_DEVICE void score_tile(const T* k, int dim, int n, int n_queries, const RunMemory<T>& memory) {
  for (int s = warp(); s < n; s += n_warps()) {
    float sums[kRunQueries] = {};
    for (int i = 2 * lane(); i < dim; i += 64) {
      const Vec<T, 2> key = load<Vec<T, 2>>(k + s * dim + i);
      LB_UNROLL
      for (int g = 0; g < kRunQueries; ++g) {
        if (g >= n_queries) break;
        const Vec<T, 2> query = load<Vec<T, 2>>(memory.queries + g * dim + i);
        sums[g] = fma(to_f32(query[0]), to_f32(key[0]), fma(to_f32(query[1]), to_f32(key[1]), sums[g]));
      }
    }
    const float sum = sum_each(sums);
    constexpr int kLanes = 32 / kRunQueries;
    if (lane() % kLanes == 0) store(memory.scores + lane() / kLanes * kRunTile + s, sum);
  }
}

// The softmax so far of the queries that a warp has, and two columns of each one's o a lane.
struct RunSums {
  float m = kNothingSeen, l = 0, o[2] = {};

  template <class T>
  LB_DEVICE void add_tile(const float* scores, const T* v, int dim, int n) {
    const float score = lane() < n ? load<float>(scores + lane()) : kNothingSeen;
    const float top = max(m, warp_max(score)), shrink = exp2_fast(m - top), weight = exp2_fast(score - top);
    m = top;
    l = l * shrink + weight;
    o[0] *= shrink;
    o[1] *= shrink;
    LB_UNROLL_BY(4)
    for (int s = 0; s < n; ++s) {
      const float of_slot = shuffle(weight, s);
      const Vec<T, 2> value = load<Vec<T, 2>>(v + s * dim);
      o[0] = fma(of_slot, to_f32(value[0]), o[0]);
      o[1] = fma(of_slot, to_f32(value[1]), o[1]);
    }
  }
};

template <class T, class Wait>
LB_APART void attention_runs_of(const RunsTask& p, int part, int n_parts, void* pool, Wait wait) {
  constexpr int kHeld = kRunQueries * (kMaxRunDim / 64) / (kMegaThreads / 32);
  const Attention& op = p.op;
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim, n_chunks = (dim + 63) / 64, n_sets = n_warps() / n_chunks;
  const int n_kv = cache.n_kv_heads, group = op.n_heads / n_kv;
  const int set = warp() / n_chunks, column = warp() % n_chunks * 64 + 2 * lane();
  const RunMemory<T> memory(pool, dim);
  const int n_past = *op.n_past, n_units = RunUnit::count(p, n_past + 1);

  for (int i = part; i < n_units || i == part; i += n_parts) {
    const RunUnit unit(p, min(i, n_units - 1), n_past + 1);
    const bool has_own = unit.end > n_past;  // of the slots, the row's own
    const int roles = unit.n_queries + (has_own ? 2 : 0), of_kind = warp() - unit.n_queries;
    const int n_tiles = i < n_units ? (unit.end - unit.begin + kRunTile - 1) / kRunTile : 0;
    if (n_tiles > 0)
      bring_tile(cache, unit.kv_head, unit.begin, min(min(unit.end, n_past), unit.begin + kRunTile), 0, memory);
    // The first warps make a head each: the queries, then K and V of the row itself, which go to slot n_past of the
    // cache and, where they are in the first tile, there.
    const RunHead head(p.prepare, of_kind < 0 ? unit.kv_head * group + unit.first_query + warp()
                                              : op.n_heads + min(of_kind, 1) * n_kv + unit.kv_head);
    const long slot_at = slot_row(cache, n_past, unit.kv_head) * dim;
    if (i == part) wait();
    if (n_tiles > 0 && warp() < roles)
      head.make(p.prepare, memory.heads + warp() * dim, [&](int at, float y) {
        if (of_kind < 0) return store(memory.queries + warp() * dim + at, stored_as(y * (op.scale * kLog2E), T{}));
        const T rounded = stored_as(y, T{});
        store(static_cast<T*>(head.is_v ? cache.v : cache.k) + slot_at + at, rounded);
        const int own = n_past - unit.begin;
        if (own < kRunTile) store((head.is_v ? memory.v : memory.k) + own * dim + at, rounded);
      });

    RunSums sums[kHeld];
    for (int tile = 0; tile < n_tiles; ++tile) {
      const int slot = unit.begin + tile * kRunTile, n = min(unit.end - slot, kRunTile), half = tile % 2;
      copy_wait<0>();
      block_barrier();  // the tile is there, and the one before has been read
      if (tile + 1 < n_tiles)
        bring_tile(cache, unit.kv_head, slot + kRunTile, min(unit.end, slot + 2 * kRunTile), 1 - half, memory);
      score_tile(memory.k + half * kRunTile * dim, dim, n, unit.n_queries, memory);
      block_barrier();
      if (set >= n_sets || column >= dim) continue;
      const T* v = memory.v + half * kRunTile * dim + column;
      LB_UNROLL
      for (int h = 0; h < kHeld; ++h)
        if (set + h * n_sets < unit.n_queries)
          sums[h].add_tile(memory.scores + (set + h * n_sets) * kRunTile, v, dim, n);
    }
    if (set < n_sets && n_tiles > 0) {
      LB_UNROLL
      for (int h = 0; h < kHeld; ++h) {
        const int query = unit.first_query + set + h * n_sets;
        if (set + h * n_sets >= unit.n_queries) continue;
        const long at = long(unit.split) * op.n_heads + unit.kv_head * group + query;
        const float l = warp_sum(sums[h].l);
        if (column < dim) store(p.o + at * dim + column, f32x2{sums[h].o[0], sums[h].o[1]});
        if (column == 0) {
          p.m[at] = sums[h].m;
          p.l[at] = l;
        }
      }
    }
    if (i + n_parts < n_units) block_barrier();  // the tiles and queries are used again
  }
}

template <class Wait>
LB_DEVICE void attention_runs(const RunsTask& p, int part, int n_parts, void* pool, Wait wait) {
  switch (p.op.cache.k_type) {
    case DType::kF16: return attention_runs_of<f16>(p, part, n_parts, pool, wait);
    case DType::kBF16: return attention_runs_of<bf16>(p, part, n_parts, pool, wait);
    default: return attention_runs_of<float>(p, part, n_parts, pool, wait);
  }
}

// A block has four columns of a head for each of merge_quads threads; a thread four columns of every
// (n_threads / merge_quads)-th split. gate was there a phase ago.
template <class Wait>
LB_APART void attention_merge(const RunsTask& p, int part, int n_parts, float* pool, Wait wait) {
  constexpr int kSplitsOfLane = kMaxRunSplits / 32;
  const Attention& op = p.op;
  const int dim = op.cache.head_dim, quads = p.merge_quads, chunks = (dim + 4 * quads - 1) / (4 * quads);
  const int n_active = n_active_splits(p, *op.n_past + 1), n_units = op.n_heads * chunks;
  const int quad = thread_id() % quads, first_split = thread_id() / quads, split_step = n_threads() / quads;
  for (int i = part; i < n_units; i += n_parts) {
    const int head = i / chunks, column = i % chunks * 4 * quads + 4 * quad;
    const int written = i % chunks * 4 * quads + thread_id();  // the column that this thread writes
    const bool is_writer = thread_id() < 4 * quads && written < dim;
    const float gate = is_writer ? gate_of(op, 0, head, written) : 0.0f;
    if (i == part) wait();

    float m[kSplitsOfLane], l[kSplitsOfLane], largest = kNothingSeen, total = 0;
    LB_UNROLL
    for (int j = 0; j < kSplitsOfLane; ++j) {
      const int s = lane() + 32 * j;
      m[j] = s < n_active ? p.m[s * op.n_heads + head] : kNothingSeen;
      l[j] = s < n_active ? p.l[s * op.n_heads + head] : 0.0f;
    }
    f32x4 sum = {};
    const auto read = [&](int s) {
      f32x4 o = {};
      if (s < n_active && column < dim) o = load<f32x4>(p.o + (long(s) * op.n_heads + head) * dim + column);
      return o;
    };
    f32x4 next = read(first_split);
    float next_m = first_split < n_active ? p.m[first_split * op.n_heads + head] : kNothingSeen;
    LB_UNROLL
    for (int j = 0; j < kSplitsOfLane; ++j) largest = max(largest, m[j]);
    largest = warp_max(largest);
    LB_UNROLL
    for (int j = 0; j < kSplitsOfLane; ++j) total += exp2_fast(m[j] - largest) * l[j];
    total = warp_sum(total);
    for (int s = first_split; s < n_active; s += split_step) {
      const f32x4 o = next;
      const float weight = exp2_fast(next_m - largest);
      next = read(s + split_step);
      next_m = s + split_step < n_active ? p.m[(s + split_step) * op.n_heads + head] : kNothingSeen;
      LB_UNROLL
      for (int j = 0; j < 4; ++j) sum[j] = fma(weight, o[j], sum[j]);
    }
    for (int mask = quads; mask < 32; mask *= 2) {
      LB_UNROLL
      for (int j = 0; j < 4; ++j) sum[j] += shuffle_xor(sum[j], mask);
    }
    if (lane() < quads) store(pool + warp() * 4 * quads + 4 * quad, sum);
    block_barrier();
    if (is_writer) {
      float o = 0;
      for (int w = 0; w < n_warps(); ++w) o += load<float>(pool + w * 4 * quads + thread_id());
      op.o[long(head) * dim + written] = o / total * gate;
    }
    if (i + n_parts < n_units) block_barrier();  // the sums are used again
  }
}

}  // namespace lb::gpu
