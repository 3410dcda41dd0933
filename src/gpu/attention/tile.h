// Attention on matrix units (mma): the ring of K and V tiles in shared memory, and a warp's queries with their online
// softmax. S = Q K^T, P = 2^(S - m), O = O 2^(m_old - m) + P V. Q and P are rounded to the tiles' type; sums are fp32.
#pragma once

#include "gpu/attention/kv_slots.h"
#include "gpu/attention/queries.h"

namespace lb::gpu {

// The operand type for a cache of type Stored. Chips without bf16 fragments (sm_70, sm_75) use f16 for bf16: exact
// within f16's range, but keys and values below 2^-24 or above 65504 lose precision.
template <bool kHasMatrix, class Stored>
struct OperandOf {
  using Type = Stored;
};
template <>
struct OperandOf<false, bf16> {
  using Type = f16;
};
template <class Stored>
using Operand = typename OperandOf<kHasBf16Matrix, Stored>::Type;

// Copies kSlots consecutive slots of a page to a tile [kSlots][operand_stride(kDim)]. Slots from n_valid on become
// zero, because a NaN times a softmax weight of zero is still NaN.
template <class T, int kDim, int kSlots, int kThreads>
LB_DEVICE void copy_slots(T* to, const T* from, int n_valid, int thread) {
  LB_UNROLL
  for (int i = 0; i < kSlots * kDim / 8 / kThreads; ++i) {
    const int piece = thread + i * kThreads, slot = piece / (kDim / 8), column = piece % (kDim / 8) * 8;
    T* at = to + slot * operand_stride(kDim) + column;
    if (slot < n_valid)
      copy_async<16>(at, from + slot * kDim + column);
    else
      store(at, u32x4{});
  }
}
template <class T, int kDim, int kSlots, int kThreads>
LB_DEVICE void copy_slots(f16* to, const bf16* from, int n_valid, int thread) {
  LB_UNROLL_BY(2)
  for (int i = 0; i < kSlots * kDim / 8 / kThreads; ++i) {
    const int piece = thread + i * kThreads, slot = piece / (kDim / 8), column = piece % (kDim / 8) * 8;
    Vec<bf16, 8> v = {};
    if (slot < n_valid) v = load_cached<Vec<bf16, 8>>(from + slot * kDim + column);
    Vec<f16, 8> out;
    LB_UNROLL
    for (int j = 0; j < 8; ++j) out[j] = to_f16(to_f32(v[j]));
    store(to + slot * operand_stride(kDim) + column, out);
  }
}

// Copies kSlots positions whose slots are not consecutive: position i from row_at(i).
template <class T, int kDim, int kSlots, int kThreads, class RowAt>
LB_DEVICE void copy_moved_slots(T* to, RowAt&& row_at, int n_valid, int thread) {
  LB_UNROLL_BY(2)
  for (int i = 0; i < kSlots * kDim / 8 / kThreads; ++i) {
    const int piece = thread + i * kThreads, slot = piece / (kDim / 8), column = piece % (kDim / 8) * 8;
    T* at = to + slot * operand_stride(kDim) + column;
    if (slot < n_valid)
      copy_async<16>(at, row_at(slot) + column);
    else
      store(at, u32x4{});
  }
}

// Slots of consecutive tiles: returns the first slot of tile i. SelectedSlots follows a list instead. TreeRow has tiles
// of positions, whose slots need not be consecutive.
struct AllSlots {
  static constexpr bool kSelects = false, kMoves = false;
  LB_DEVICE explicit AllSlots(const Attention&) {}
  LB_DEVICE int operator()(int first, int step, int i) const { return first + i * step; }
};

// Ring of tiles in the order K 0, V 0, K 1, V 1, ..., or K 0, K 1, ... if kParts is 1. While one buffer is in use,
// copies into all others are in flight. kThreads threads share a ring and synchronise by `barrier`.
template <class Stored, int kDim, int kSlots, int kThreads, class Barrier, class Slots = AllSlots, int kParts = 2>
struct Ring {
  using T = Operand<Stored>;
  static constexpr int kTile = kSlots * operand_stride(kDim);

  const AttentionSplits& p;
  int kv_head, thread;
  T* buffers;                          // [p.ring][kTile]
  int first_slot, step, end, n_tiles;  // tile i: slots from first_slot + i * step on, below `end`
  Barrier barrier = {};
  const Slots* slots = nullptr;  // null for AllSlots
  int n_issued = 0, next = 0, now = 0;

  LB_DEVICE static int values(const AttentionSplits& p) { return p.ring * kTile; }  // 16-bit values in the ring
  LB_DEVICE void issue() {
    if (n_issued < kParts * n_tiles) {
      const KvLayer& cache = p.op.cache;
      int slot = first_slot + n_issued / kParts * step;
      if constexpr (Slots::kSelects) slot = (*slots)(first_slot, step, n_issued / kParts);
      if constexpr (Slots::kMoves)
        if (slots->moves(slot + kSlots)) return issue_moved(slot);
      const long page = load_cached<int32_t>(cache.page_table + slot / kPageTokens);
      const long at = ((page * cache.n_kv_heads + kv_head) * kPageTokens + slot % kPageTokens) * kDim;
      const Stored* from = static_cast<const Stored*>(n_issued % kParts ? cache.v : cache.k) + at;
      copy_slots<T, kDim, kSlots, kThreads>(buffers + next * kTile, from, end - slot, thread);
      next = next + 1 == p.ring ? 0 : next + 1;
      ++n_issued;
    }
    copy_commit();  // even without copies, because copy_wait counts groups
  }
  LB_DEVICE void issue_moved(int position) {
    const KvLayer& cache = p.op.cache;
    const Stored* pages = static_cast<const Stored*>(n_issued % kParts ? cache.v : cache.k);
    copy_moved_slots<T, kDim, kSlots, kThreads>(
        buffers + next * kTile,
        [&](int i) { return pages + slot_row(cache, slots->slot(position + i), kv_head) * kDim; }, end - position,
        thread);
    next = next + 1 == p.ring ? 0 : next + 1;
    ++n_issued;
    copy_commit();
  }
  LB_DEVICE void start() {
    for (int i = 0; i < p.ring - 1; ++i) issue();
  }
  // Waits for the next tile and frees the previous tile's buffer.
  LB_DEVICE const T* take() {
    if (p.ring == 3) copy_wait<1>();
    if (p.ring == 2) copy_wait<0>();
    barrier();
    issue();
    if (p.ring == 1) {  // no copy runs ahead
      copy_wait<0>();
      barrier();
    }
    const T* tile = buffers + now * kTile;
    now = now + 1 == p.ring ? 0 : now + 1;
    return tile;
  }
};

// A warp's 16 kTiles queries, or kDim columns of theirs in rows of kRowDim. More tiles reuse each K or V fragment more
// often. Long appends are bound by reading fragments from shared memory.
template <class T, int kDim, int kSlots, int kTiles, int kRowDim = kDim>
struct QueryTiles {
  static constexpr int kStride = operand_stride(kRowDim);
  using Scores = FragmentC[kTiles][kSlots / 16];
  float m[kTiles][kLaneRows], l[kTiles][kLaneRows];  // per row of the lane; until close(), l sums only the lane's
                                                     // columns
  FragmentC o[kTiles][kDim / 16];

  LB_DEVICE QueryTiles() {
    LB_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      LB_UNROLL
      for (int i = 0; i < kLaneRows; ++i) m[t][i] = kNothingSeen, l[t][i] = 0;
      LB_UNROLL
      for (int i = 0; i < kDim / 16; ++i) fill(o[t][i], 0);
    }
  }

  // Computes scores with a tile of K, updates the softmax, then adds P V with the tile of V that take_v() returns.
  template <class TakeV, class IsVisible>
  LB_DEVICE void attend(const T* q, const T* k, TakeV&& take_v, T* scratch, bool is_masked, IsVisible&& is_visible) {
    Scores s;
    multiply_keys(s, q, k);
    weigh(s, is_masked, is_visible);
    add_values(s, take_v(), scratch);
  }

  // s = Q K^T
  LB_DEVICE void multiply_keys(Scores& s, const T* q, const T* k) const {
    LB_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      LB_UNROLL
      for (int j = 0; j < kSlots / 16; ++j) fill(s[t][j], 0);
    }
    add_keys<kDim>(s, q, k);
  }
  // s += Q K^T of kColumns columns
  template <int kColumns>
  LB_DEVICE void add_keys(Scores& s, const T* q, const T* k) const {
    LB_UNROLL
    for (int d = 0; d < kColumns; d += 16) {
      FragmentA<T> a[kTiles];
      LB_UNROLL
      for (int t = 0; t < kTiles; ++t) load_shared(a[t], q + 16 * t * kStride + d, kStride);
      LB_UNROLL
      for (int j = 0; j < kSlots / 16; ++j) {
        FragmentB<T> b;
        load_shared(b, k + 16 * j * kStride + d, kStride);
        LB_UNROLL
        for (int t = 0; t < kTiles; ++t) multiply(s[t][j], a[t], b);
      }
    }
  }
  // Turns scores into weights. If is_masked, is_visible(query, slot) says whether the warp's query attends to a slot of
  // this tile.
  template <class IsVisible>
  LB_DEVICE void weigh(Scores& s, bool is_masked, IsVisible&& is_visible) {
    LB_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      if (is_masked) {
        const int first_row = opaque(16 * t + lane_row(0));  // recomputed: no row occupies a register in the loop
        LB_UNROLL
        for (int j = 0; j < kSlots / 16; ++j)
          for_each_row(s[t][j], [&](int i, int column, float& score) {
            if (!is_visible(first_row + lane_row(i) - lane_row(0), 16 * j + column)) score = kNothingSeen;
          });
      }
      update_softmax(s[t], m[t], l[t], o[t]);
    }
  }
  // o += P V
  LB_DEVICE void add_values(Scores& s, const T* v, T* scratch) {
    LB_UNROLL
    for (int j = 0; j < kSlots / 16; ++j) {
      FragmentA<T> a[kTiles];
      LB_UNROLL
      for (int t = 0; t < kTiles; ++t) to_operand(a[t], s[t][j], scratch);
      LB_UNROLL
      for (int d = 0; d < kDim; d += 16) {
        if (kSlots == 16 && d % 64 == 0) warp_barrier();  // keeps sm_75's compiler from hoisting all loads and spilling
        FragmentB<T> b;
        load_shared_transposed(b, v + 16 * j * kStride + d, kStride);
        LB_UNROLL
        for (int t = 0; t < kTiles; ++t) multiply(o[t][d / 16], a[t], b);
      }
    }
  }

  // Sums l over the lanes that share a row.
  LB_DEVICE void close() {
    LB_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      LB_UNROLL
      for (int i = 0; i < kLaneRows; ++i) l[t][i] = row_sum(l[t][i]);
    }
  }

  // Stores half of the columns of o to shared memory, each row times its factor, [16][kDim / 2 + 4].
  LB_DEVICE void put(float* to, int t, int half, const float (&factors)[kLaneRows]) {
    LB_UNROLL
    for (int d = 0; d < kDim / 32; ++d)
      for_each_row(o[t][half * kDim / 32 + d], [&](int i, int column, float& sum) {
        store(to + lane_row(i) * (kDim / 2 + 4) + 16 * d + column, sum * factors[i]);
      });
  }

  // Writes o of the queries from `first` on, whose columns start at first_column of the head. Before a merge, the warp
  // with column 0 also writes the state of the softmax, and o is skipped if no slot was seen. o passes through shared
  // memory, columns [16][kDim / 2 + 4], half of the columns at a time, so that writes are coalesced.
  LB_DEVICE void write(const AttentionSplits& p, const Queries& queries, int first, int first_column, float* columns,
                       int split, bool has_slots) {
    constexpr int kHalf = kDim / 2;
    LB_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      const int first_of_tile = first + 16 * t;
      if (p.has_merge) {
        for_each_row(o[t][0], [&](int i, int column, float&) {
          const int query = first_of_tile + lane_row(i);
          if (first_column + column == 0 && query < queries.n)
            write_softmax(p, queries, query, m[t][i], l[t][i], split);
        });
        if (!has_slots) continue;
      }
      LB_UNROLL
      for (int i = 0; i < kLaneRows; ++i) l[t][i] = p.has_merge ? 1.0f : 1.0f / l[t][i];
      LB_UNROLL
      for (int half = 0; half < 2; ++half) {
        warp_barrier();
        put(columns, t, half, l[t]);
        warp_barrier();
        for (int i = 4 * lane(); i < 16 * kHalf; i += 4 * 32) {
          const int query = first_of_tile + i / kHalf, column = i % kHalf;
          if (query < queries.n)
            write_columns(p, queries, query, first_column + half * kHalf + column,
                          load<f32x4>(columns + i / kHalf * (kHalf + 4) + column), split);
        }
      }
    }
  }

 private:
  // Online softmax: turns scores into weights under the new maximum. Rescales l and o if any maximum of the warp grew.
  LB_DEVICE static void update_softmax(FragmentC (&s)[kSlots / 16], float (&m)[kLaneRows], float (&l)[kLaneRows],
                                       FragmentC (&o)[kDim / 16]) {
    float top[kLaneRows];
    LB_UNROLL
    for (int i = 0; i < kLaneRows; ++i) top[i] = m[i];
    LB_UNROLL
    for (int j = 0; j < kSlots / 16; ++j)
      for_each_row(s[j], [&](int i, int, float& score) { top[i] = max(top[i], score); });
    bool max_grew = false;
    LB_UNROLL
    for (int i = 0; i < kLaneRows; ++i) {
      top[i] = row_max(top[i]);
      max_grew |= top[i] > m[i];
    }
    if (any(max_grew)) {
      LB_UNROLL
      for (int i = 0; i < kLaneRows; ++i) {
        const float shrink = top[i] == m[i] ? 1.0f : exp2_fast(m[i] - top[i]);
        l[i] *= shrink;
        m[i] = top[i];
        top[i] = shrink;
      }
      LB_UNROLL
      for (int d = 0; d < kDim / 16; ++d) for_each_row(o[d], [&](int i, int, float& sum) { sum *= top[i]; });
    }
    LB_UNROLL
    for (int i = 0; i < kLaneRows; ++i) top[i] = m[i] == kNothingSeen ? 0.0f : m[i];
    LB_UNROLL
    for (int j = 0; j < kSlots / 16; ++j)
      for_each_row(s[j], [&](int i, int, float& score) {
        score = exp2_fast(score - top[i]);
        l[i] += score;
      });
  }
};

}  // namespace lb::gpu
