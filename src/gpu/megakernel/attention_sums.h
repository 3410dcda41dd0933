// Online softmax of a block's queries over tiles of 16 slots, for attention.h. It uses matrix units if the chip has
// them for the cache's type; otherwise a warp scores one slot at a time, then computes 64 columns of some queries.
// Scores are exponents of 2.
#pragma once

#include "gpu/attention/queries.h"
#include "gpu/megakernel/mailbox.h"
#include "gpu/warp_sums.h"

namespace lb::gpu {

// Shared memory of a block. Rows are split_row_stride() apart. K and V have n_tiles tiles each: two if slots are
// copied, one if they are converted.
template <class T>
struct SplitMemory {
  int stride;
  T *k, *v;               // [n_tiles, kSplitTile, dim] each
  float* heads;           // [kSplitQueries + 2, dim], dense: scratch for making heads; later the last tile of K
  T* queries;             // [kSplitRows, dim]
  float* scores;          // [kSplitRows, kSplitTile], for PlainSums
  unsigned char* stored;  // if slots are converted: kOwnSlotBytes each for the row's K and V, then packed tiles

  LB_DEVICE SplitMemory(void* pool, int dim, int n_tiles)
      : stride(split_row_stride(dim, sizeof(T))),
        k(static_cast<T*>(pool)),
        v(k + n_tiles * kSplitTile * stride),
        heads(reinterpret_cast<float*>(v - kSplitTile * stride)),
        queries(v + n_tiles * kSplitTile * stride),
        scores(reinterpret_cast<float*>(queries + kSplitRows * stride)),
        stored(reinterpret_cast<unsigned char*>(scores + kSplitRows * kSplitTile)) {}
  LB_DEVICE unsigned char* own(bool is_v) const { return stored + (is_v ? kOwnSlotBytes : 0); }
  // Offset of row `slot` of tile 0 or 1.
  LB_DEVICE int row(int tile, int slot) const { return (tile * kSplitTile + slot) * stride; }
};
static_assert((kSplitQueries + 2) * sizeof(float) <= kSplitTile * sizeof(f16));

// Slots per split; the last splits may have fewer or none.
LB_DEVICE int split_slots(const SplitTask& p, int n_slots) {
  const int each = max(kSplitMinSlots, (n_slots + (1 << p.splits_shift) - 1) >> p.splits_shift);
  return (each + p.slot_mask) & ~p.slot_mask;
}

// A block's unit of work: a split of the context, for some queries of a KV head.
struct SplitUnit {
  int split, begin, end, kv_head, first_head, n_queries;

  LB_DEVICE SplitUnit(const SplitTask& p, int i, int n_past) {
    const int each = split_slots(p, n_past + 1), which = i >> p.splits_shift;
    split = i - (which << p.splits_shift);
    begin = split * each;
    end = min(begin + each, n_past + 1);
    kv_head = quotient(which, p.query_tiles_step);
    const int first_query = (which - kv_head * p.query_tiles) * p.tile_queries;
    first_head = kv_head * p.group + first_query;
    n_queries = min(p.group - first_query, p.tile_queries);
  }
  LB_DEVICE int n_tiles() const { return max(end - begin + kSplitTile - 1, 0) / kSplitTile; }
};

template <class T>
inline constexpr bool kIsOperand = false;
template <>
inline constexpr bool kIsOperand<f16> = kSumIsOperand;
template <>
inline constexpr bool kIsOperand<bf16> = kSumIsOperand && kHasBf16Matrix;

// Each warp computes all scores, which is faster than exchanging them, and 16 of each 128 columns of o. Fragment rows
// are queries; eight of the 16 rows are used. A lane holds query lane / 4 and four columns: 2 (lane % 4) + 0, 1, 8, 9.
template <class T>
struct MatrixSums {
  static constexpr int kWarps = kMegaThreads / 32, kPieces = kSplitMaxDim / 16 / kWarps;
  static_assert(kSplitTile == 16 && kSplitRows == 8);
  float m = kNothingSeen, l = 0;  // l sums only the lane's slots
  FragmentC o[kPieces];
  int o_at, softmax_at;  // offset from the splits' first mailbox; negative: the lane writes none

  LB_DEVICE MatrixSums(const SplitTask& p, const SplitUnit& unit) {
    LB_UNROLL
    for (FragmentC& piece : o) fill(piece, 0);
    const int query = lane() / 4, column = 16 * warp() + 2 * (lane() % 4), head = unit.first_head + query;
    const bool is_there = query < unit.n_queries && column < p.op.cache.head_dim;
    o_at = opaque(is_there ? mailbox_index(split_at(p, head, unit.split, column)) : -1);
    softmax_at = opaque(is_there && column == 0 ? split_sums_at(p, head, unit.split) : -1);
  }

  // n: number of valid slots in the tile.
  LB_DEVICE void add_tile(const SplitTask& p, const SplitMemory<T>& memory, const SplitUnit&, int tile, int n) {
    const int dim = p.op.cache.head_dim;
    const T *k = memory.k + memory.row(tile, 0), *v = memory.v + memory.row(tile, 0);
    FragmentC s[2];  // two dependency chains, because each product waits for the previous one in its chain
    fill(s[0], 0);
    fill(s[1], 0);
    LB_UNROLL_BY(2)
    for (int d = 0; d < dim; d += 32) {
      LB_UNROLL
      for (int half = 0; half < 2; ++half) {
        FragmentA<T> a;
        FragmentB<T> b;
        load_shared_8_rows(a, memory.queries + d + 16 * half, memory.stride);
        load_shared(b, k + d + 16 * half, memory.stride);
        multiply(s[half], a, b);
      }
    }
    float top = m;
    for_each_own([&](int i, int column) {
      s[0].v[i] = column < n ? s[0].v[i] + s[1].v[i] : kNothingSeen;
      top = max(top, s[0].v[i]);
    });
    top = row_max(top);
    const float shrink = exp2_fast(m - top);
    m = top;
    l *= shrink;
    for_each_own([&](int i, int) { l += s[0].v[i] = exp2_fast(s[0].v[i] - top); });
    FragmentA<T> weights;
    sum_as_operand(weights, s[0]);
    LB_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      const int column = 16 * warp() + 128 * piece;
      if (column >= dim) continue;
      for_each_own([&](int i, int) { o[piece].v[i] *= shrink; });
      FragmentB<T> b;
      load_shared_transposed(b, v + column, memory.stride);
      multiply(o[piece], weights, b);
    }
  }

  LB_DEVICE void write(const SplitTask& p, const SplitUnit& unit, uint32_t tag) {
    Mailbox* mailboxes = mega_state().mailboxes + p.split_mailbox.at;
    if (o_at >= 0) {
      const int eight = split_columns(p) > 8 ? 4 : 8 << p.splits_shift;  // mailboxes from a column to column + 8
      LB_UNROLL
      for (int piece = 0; piece < kPieces; ++piece) {
        if (16 * warp() + 128 * piece >= p.op.cache.head_dim) continue;
        Mailbox* to = mailboxes + o_at + (128 * piece << p.splits_shift);
        const FragmentC& sum = o[piece];
        store_relaxed(to, mailbox_of(sum.v[0], tag), mailbox_of(sum.v[1], tag));
        store_relaxed(to + eight, mailbox_of(sum.v[4], tag), mailbox_of(sum.v[5], tag));
      }
    }
    write_softmax(p, unit, tag);
  }

  LB_DEVICE void write_softmax(const SplitTask& p, const SplitUnit&, uint32_t tag) {
    l = row_sum(l);
    Mailbox* mailboxes = mega_state().mailboxes + p.split_mailbox.at;
    if (softmax_at >= 0) store_relaxed(mailboxes + softmax_at, mailbox_of(m, tag), mailbox_of(l, tag));
  }

  // Stores o to [n_queries, dim] in shared memory.
  LB_DEVICE void put(const SplitUnit& unit, float* to, int dim) const {
    if (lane() / 4 >= unit.n_queries) return;
    LB_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      const int column = 16 * warp() + 128 * piece;
      if (column >= dim) continue;
      for_each_own([&](int i, int own) { store(to + lane() / 4 * dim + column + own, o[piece].v[i]); });
    }
  }

 private:
  // Calls visit(register, column) for each of the lane's values.
  template <class Visit>
  LB_DEVICE static void for_each_own(Visit&& visit) {
    LB_UNROLL
    for (int i = 0; i < 8; ++i)
      if (i % 4 < 2) visit(i, 2 * (lane() % 4) + i / 4 * 8 + i % 4);
  }
};

// A warp computes the scores of one slot, then 64 columns of o of every n_sets-th query.
template <class T>
struct PlainSums {
  static constexpr int kOwnQueries = kSplitQueries * (kSplitMaxDim / 64) / (kMegaThreads / 32);
  int set, n_sets, column;  // the warp's first query, the query stride; the first of the lane's two columns
  float m[kOwnQueries], l[kOwnQueries], o[kOwnQueries][2];

  LB_DEVICE PlainSums(const SplitTask& p, const SplitUnit&) {
    set = quotient(warp(), p.chunks_step);
    n_sets = quotient(kMegaThreads / 32, p.chunks_step);
    column = (warp() - set * (p.op.cache.head_dim / 64)) * 64 + 2 * lane();
    LB_UNROLL
    for (int h = 0; h < kOwnQueries; ++h) {
      m[h] = kNothingSeen;
      l[h] = o[h][0] = o[h][1] = 0;
    }
  }

  LB_DEVICE void add_tile(const SplitTask& p, const SplitMemory<T>& memory, const SplitUnit& unit, int tile, int n) {
    score(memory, tile, n, unit.n_queries, p.op.cache.head_dim);
    block_barrier();
    LB_UNROLL
    for (int h = 0; h < kOwnQueries; ++h)
      if (has(h, unit.n_queries)) add(h, memory, tile, n);
  }

  LB_DEVICE void write(const SplitTask& p, const SplitUnit& unit, uint32_t tag) {
    Mailbox* to = mega_state().mailboxes + p.split_mailbox.at;
    LB_UNROLL
    for (int h = 0; h < kOwnQueries; ++h) {
      if (!has(h, unit.n_queries)) continue;
      const int head = unit.first_head + query(h);
      store_relaxed(to + mailbox_index(split_at(p, head, unit.split, column)), mailbox_of(o[h][0], tag),
                    mailbox_of(o[h][1], tag));
    }
    write_softmax(p, unit, tag);
  }

  LB_DEVICE void write_softmax(const SplitTask& p, const SplitUnit& unit, uint32_t tag) {
    Mailbox* to = mega_state().mailboxes + p.split_mailbox.at;
    LB_UNROLL
    for (int h = 0; h < kOwnQueries; ++h) {
      if (!has(h, unit.n_queries)) continue;
      const float sum = warp_sum(l[h]);
      if (column == 0)
        store_relaxed(to + split_sums_at(p, unit.first_head + query(h), unit.split), mailbox_of(m[h], tag),
                      mailbox_of(sum, tag));
    }
  }

  // Stores o to [n_queries, dim] in shared memory.
  LB_DEVICE void put(const SplitUnit& unit, float* to, int dim) const {
    LB_UNROLL
    for (int h = 0; h < kOwnQueries; ++h)
      if (has(h, unit.n_queries)) store(to + query(h) * dim + column, f32x2{o[h][0], o[h][1]});
  }

 private:
  LB_DEVICE int query(int h) const { return set + h * n_sets; }
  LB_DEVICE bool has(int h, int n_queries) const { return set < n_sets && query(h) < n_queries; }

  // A lane holds pairs of columns, 64 apart, of four queries together.
  LB_DEVICE void score(const SplitMemory<T>& memory, int tile, int n, int n_queries, int dim) const {
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
        const float sum = warp_sums(sums);
        if (lane() % 8 == 0) store(memory.scores + (first + lane() / 8) * kSplitTile + s, sum);
      }
    }
  }

  LB_DEVICE void add(int h, const SplitMemory<T>& memory, int tile, int n) {
    const float score = lane() < n ? load<float>(memory.scores + query(h) * kSplitTile + lane()) : kNothingSeen;
    const float top = max(m[h], warp_max(score)), shrink = exp2_fast(m[h] - top), weight = exp2_fast(score - top);
    m[h] = top;
    l[h] = l[h] * shrink + weight;
    o[h][0] *= shrink;
    o[h][1] *= shrink;
    const T* v = memory.v + memory.row(tile, 0) + column;
    LB_UNROLL_BY(4)
    for (int s = 0; s < n; ++s) {
      const float slot_weight = shuffle(weight, s);
      const Vec<T, 2> value = load<Vec<T, 2>>(v + s * memory.stride);
      o[h][0] = fma(slot_weight, to_f32(value[0]), o[h][0]);
      o[h][1] = fma(slot_weight, to_f32(value[1]), o[h][1]);
    }
  }
};

template <class T, bool kOnMatrix = kIsOperand<T>>
struct SplitSumsOf {
  using Type = PlainSums<T>;
};
template <class T>
struct SplitSumsOf<T, true> {
  using Type = MatrixSums<T>;
};
template <class T>
using SplitSums = typename SplitSumsOf<T>::Type;

}  // namespace lb::gpu
