// The open softmax of a block's queries over tiles of 16 slots, for attention_runs.h: on matrix units where the chip
// has them for the cache's type, else a warp a slot, then 64 columns of some queries. Scores are exponents of 2.
#pragma once

#include "attention_queries.h"
#include "launch/megakernel_shape.h"
#include "warp_sums.h"

namespace lb::gpu {

// Shared memory of a block. Rows are run_stride() apart.
template <class T>
struct RunMemory {
  int stride;
  T *k, *v;  // [2, kRunTile, dim] each
  float*
      heads;   // [kRunQueries + 2, dim], next to each other: where warps make them, before there is a second tile of K
  T* queries;  // [kRunRows, dim]
  float* scores;  // [kRunRows, kRunTile], of PlainSums

  LB_DEVICE RunMemory(void* pool, int dim)
      : stride(run_stride(dim, sizeof(T))),
        k(static_cast<T*>(pool)),
        v(k + 2 * kRunTile * stride),
        heads(reinterpret_cast<float*>(k + kRunTile * stride)),
        queries(v + 2 * kRunTile * stride),
        scores(reinterpret_cast<float*>(queries + kRunRows * stride)) {}
  // Row `slot` of tile 0 or 1.
  LB_DEVICE int row(int tile, int slot) const { return (tile * kRunTile + slot) * stride; }
};
static_assert((kRunQueries + 2) * sizeof(float) <= kRunTile * sizeof(f16));

template <class T>
inline constexpr bool kIsOperand = false;
template <>
inline constexpr bool kIsOperand<f16> = kSumIsOperand;
template <>
inline constexpr bool kIsOperand<bf16> = kSumIsOperand && kHasBf16Matrix;

// Each warp makes all scores anew, which takes less than handing them over; of o it has 16 columns in 128.
template <class T>
struct MatrixSums {
  static constexpr int kWarps = kMegaThreads / 32, kPieces = kMaxRunDim / 16 / kWarps;
  static_assert(kRunTile == 16 && kRunRows == 8);  // a fragment's columns; of its rows those that a lane has first
  float m = kNothingSeen, l = 0;                   // of the lane's query; l of its own slots
  FragmentC o[kPieces];

  LB_DEVICE explicit MatrixSums(const RunsTask&) {
    LB_UNROLL
    for (FragmentC& piece : o) fill(piece, 0);
  }

  LB_DEVICE static int query() { return lane_row(0); }
  LB_DEVICE static int column_of(int piece) { return 16 * (warp() + piece * kWarps); }

  // n: slots of the tile.
  LB_DEVICE void meet(const RunsTask& p, const RunMemory<T>& memory, int tile, int n, int) {
    const int dim = p.op.cache.head_dim;
    const T *k = memory.k + memory.row(tile, 0), *v = memory.v + memory.row(tile, 0);
    FragmentC s[2];  // sums of every other 16 columns: a product waits for the one before
    fill(s[0], 0);
    fill(s[1], 0);
    LB_UNROLL_BY(2)
    for (int d = 0; d < dim; d += 32) {
      LB_UNROLL
      for (int half = 0; half < 2; ++half) {
        FragmentA<T> a;
        FragmentB<T> b;
        load_shared_eight(a, memory.queries + d + 16 * half, memory.stride);
        load_shared(b, k + d + 16 * half, memory.stride);
        multiply(s[half], a, b);
      }
    }
    float top = m;
    LB_UNROLL
    for (int i = 0; i < 8; ++i) s[0].v[i] += s[1].v[i];
    for_each_row(s[0], [&](int i, int slot, float& score) {
      if (i == 0) top = max(top, score = slot < n ? score : kNothingSeen);
    });
    top = row_max(top);
    const float shrink = exp2_fast(m - top);
    m = top;
    l *= shrink;
    for_each_row(s[0], [&](int i, int, float& score) {
      if (i == 0) l += score = exp2_fast(score - top);
    });
    FragmentA<T> weights;
    sum_as_operand(weights, s[0]);
    LB_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      if (column_of(piece) >= dim) continue;
      for_each_row(o[piece], [&](int i, int, float& sum) {
        if (i == 0) sum *= shrink;
      });
      FragmentB<T> b;
      load_shared_transposed(b, v + column_of(piece), memory.stride);
      multiply(o[piece], weights, b);
    }
  }

  // of_o(query, column, two neighbouring values) and of_softmax(query, m, l): each once.
  template <class OfO, class OfSoftmax>
  LB_DEVICE void leave(const RunsTask& p, int n_queries, OfO&& of_o, OfSoftmax&& of_softmax) {
    l = row_sum(l);
    if (query() >= n_queries) return;
    LB_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      if (column_of(piece) >= p.op.cache.head_dim) continue;
      for_each_pair(o[piece], [&](int i, int column, float first, float second) {
        if (i == 0) of_o(query(), column_of(piece) + column, first, second);
        if (i == 0 && column_of(piece) + column == 0) of_softmax(query(), m, l);
      });
    }
  }
};

// A warp has the scores of a slot, then 64 columns of o of every so-many-th query.
template <class T>
struct PlainSums {
  static constexpr int kHeld = kRunQueries * (kMaxRunDim / 64) / (kMegaThreads / 32);
  int set, n_sets, column;  // of the warp's queries; of the lane's two columns the first
  float m[kHeld], l[kHeld], o[kHeld][2];

  LB_DEVICE explicit PlainSums(const RunsTask& p) {
    set = quotient(warp(), p.chunks_step);
    n_sets = quotient(kMegaThreads / 32, p.chunks_step);
    column = (warp() - set * (p.op.cache.head_dim / 64)) * 64 + 2 * lane();
    LB_UNROLL
    for (int h = 0; h < kHeld; ++h) {
      m[h] = kNothingSeen;
      l[h] = o[h][0] = o[h][1] = 0;
    }
  }

  LB_DEVICE void meet(const RunsTask& p, const RunMemory<T>& memory, int tile, int n, int n_queries) {
    score(memory, tile, n, n_queries, p.op.cache.head_dim);
    block_barrier();
    LB_UNROLL
    for (int h = 0; h < kHeld; ++h)
      if (has(h, n_queries)) add(h, memory, tile, n);
  }

  template <class OfO, class OfSoftmax>
  LB_DEVICE void leave(const RunsTask&, int n_queries, OfO&& of_o, OfSoftmax&& of_softmax) {
    LB_UNROLL
    for (int h = 0; h < kHeld; ++h) {
      if (!has(h, n_queries)) continue;
      of_o(query(h), column, o[h][0], o[h][1]);
      const float sum = warp_sum(l[h]);
      if (column == 0) of_softmax(query(h), m[h], sum);
    }
  }

 private:
  LB_DEVICE int query(int h) const { return set + h * n_sets; }
  LB_DEVICE bool has(int h, int n_queries) const { return set < n_sets && query(h) < n_queries; }

  // A lane has pairs of columns, 64 apart, of four queries at a time.
  LB_DEVICE void score(const RunMemory<T>& memory, int tile, int n, int n_queries, int dim) const {
    LB_UNROLL_BY(1)
    for (int s = warp(); s < n; s += n_warps()) {
      LB_UNROLL_BY(1)
      for (int first = 0; first < n_queries; first += 4) {
        float sums[4] = {};
        const T* key_at = memory.k + memory.row(tile, s) + 2 * lane();
        const T* query_at = memory.queries + first * memory.stride + 2 * lane();
        LB_UNROLL_BY(2)
        for (int i = 0; i < dim; i += 64) {
          const Vec<T, 2> key = load<Vec<T, 2>>(key_at + i);
          LB_UNROLL
          for (int g = 0; g < 4; ++g) {
            const Vec<T, 2> query = load<Vec<T, 2>>(query_at + g * memory.stride + i);
            sums[g] = fma(to_f32(query[0]), to_f32(key[0]), fma(to_f32(query[1]), to_f32(key[1]), sums[g]));
          }
        }
        const float sum = sum_each(sums);
        if (lane() % 8 == 0) store(memory.scores + (first + lane() / 8) * kRunTile + s, sum);
      }
    }
  }

  LB_DEVICE void add(int h, const RunMemory<T>& memory, int tile, int n) {
    const float score = lane() < n ? load<float>(memory.scores + query(h) * kRunTile + lane()) : kNothingSeen;
    const float top = max(m[h], warp_max(score)), shrink = exp2_fast(m[h] - top), weight = exp2_fast(score - top);
    m[h] = top;
    l[h] = l[h] * shrink + weight;
    o[h][0] *= shrink;
    o[h][1] *= shrink;
    const T* v = memory.v + memory.row(tile, 0) + column;
    LB_UNROLL_BY(4)
    for (int s = 0; s < n; ++s) {
      const float of_slot = shuffle(weight, s);
      const Vec<T, 2> value = load<Vec<T, 2>>(v + s * memory.stride);
      o[h][0] = fma(of_slot, to_f32(value[0]), o[h][0]);
      o[h][1] = fma(of_slot, to_f32(value[1]), o[h][1]);
    }
  }
};

template <class T, bool kOnMatrix = kIsOperand<T>>
struct RunSumsOf {
  using Type = PlainSums<T>;
};
template <class T>
struct RunSumsOf<T, true> {
  using Type = MatrixSums<T>;
};
template <class T>
using RunSums = typename RunSumsOf<T>::Type;

}  // namespace lb::gpu
