// Attention of one row of queries, with what AttentionPrepare does, in two tasks.
//
// The first: a block has a split of the context for up to 6 queries of a KV head. It makes the queries itself, and the
// row's own K and V where its split ends with it. Tiles of 16 slots of K and V come to shared memory, the first before
// the projections are there: a warp has the scores of a slot, then 64 columns of o for some queries. Queries are
// rounded to the cache's type, as for the kernels on matrix units; sums are fp32. The second: the splits become one
// softmax; a block has some columns of a head, a thread four of them of one split.
//
// Bound: latency for a short context, K and V once for a long one. As in mega_delta.h there is little code: dimensions
// are multiples of 64, divisions are the host's.
#pragma once

#include "attention_prepare.h"
#include "attention_queries.h"
#include "launch/megakernel_shape.h"
#include "mega_wait.h"
#include "warp_sums.h"

namespace lb::gpu {

// Slots of a split: as many of each, the last may have fewer or none.
LB_DEVICE int split_slots(const RunsTask& p, int n_slots) {
  return max(kLeastRunSlots, (n_slots + (1 << p.splits_shift) - 1) >> p.splits_shift);
}

// Shared memory of a block.
template <class T>
struct RunMemory {
  T *k, *v;       // [2, kRunTile, head_dim] each
  float* heads;   // [kRunQueries + 2, head_dim]: where warps make them, before there is a second tile of K
  T* queries;     // [kRunRows, head_dim]
  float* scores;  // [kRunRows, kRunTile]

  LB_DEVICE RunMemory(void* pool, int dim)
      : k(static_cast<T*>(pool)),
        v(k + 2 * kRunTile * dim),
        heads(reinterpret_cast<float*>(k + kRunTile * dim)),
        queries(v + 2 * kRunTile * dim),
        scores(reinterpret_cast<float*>(queries + kRunRows * dim)) {}
};
static_assert((kRunQueries + 2) * sizeof(float) <= kRunTile * sizeof(f16));

// Brings slots [begin, end) of a head to half `half` of the tiles: warp w those that it will make the scores of.
template <class T>
LB_DEVICE void bring_tile(const KvLayer& cache, int kv_head, int begin, int end, int half, const RunMemory<T>& memory) {
  const int dim = cache.head_dim;
  LB_UNROLL_BY(1)
  for (int s = warp(); s < end - begin; s += n_warps()) {
    const long from = slot_row(cache, begin + s, kv_head) * dim;
    const int to = (half * kRunTile + s) * dim;
    LB_UNROLL_BY(1)
    for (int i = lane() * int(16 / sizeof(T)); i < dim; i += 512 / sizeof(T)) {
      copy_async<16>(memory.k + to + i, static_cast<const T*>(cache.k) + from + i);
      copy_async<16>(memory.v + to + i, static_cast<const T*>(cache.v) + from + i);
    }
  }
  copy_commit();
}

// A head of q, k or v of the row, by a warp: normalised and rotated to fp32 in shared memory. What does not depend on
// the projections (norm weights, the table) is asked for first.
struct RunHead {
  static constexpr int kHeld = kMaxRunDim / 32, kPairs = kMaxRunDim / 64;
  const Word* from;
  const float* norm;
  uint32_t number;     // of these words
  int first, n_pairs;  // first: of the vector, a multiple of 32
  float w[kHeld], cos[kPairs], sin[kPairs];

  // of_kind below 0: query head `head`; 0: K, 1: V of kv_head.
  LB_DEVICE RunHead(const RunsTask& task, int of_kind, int head, int kv_head, const PhaseWait& wait) {
    const AttentionPrepare& p = task.prepare;
    const int dim = p.cache.head_dim;
    const WordsFrom& words = of_kind < 0 ? task.u_words : of_kind > 0 ? task.v_words : task.k_words;
    from = PhaseWait::place_of(words);
    first = of_kind < 0 ? head * int(p.u_head_stride) : kv_head * dim;
    number = wait.number_of(words);
    norm = of_kind < 0 ? p.q_norm : of_kind > 0 ? nullptr : p.k_norm;
    n_pairs = of_kind > 0 ? 0 : p.n_pairs;
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j) w[j] = norm != nullptr && 32 * j < dim ? norm[lane() + 32 * j] : 1.0f;
    LB_UNROLL
    for (int j = 0; j < kPairs; ++j) {
      const int pair = min(lane() + 32 * j, p.n_pairs - 1);
      cos[j] = p.cos[pair];
      sin[j] = p.sin[pair];
    }
  }

  LB_DEVICE void make(const AttentionPrepare& p, float* head, const PhaseWait& wait) const {
    const int dim = p.cache.head_dim;
    const Word* at[kHeld];
    uint32_t numbers[kHeld];
    float x[kHeld], sum = 0;
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j) {
      at[j] = from + word_place(lane()) + word_place(first + (32 * j < dim ? 32 * j : 0));
      numbers[j] = number;
    }
    read_words(wait, at, numbers, x);
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j) sum += 32 * j < dim ? x[j] * x[j] : 0.0f;
    const float scale = norm != nullptr ? rsqrt_fast(warp_sum(sum) / float(dim) + p.eps) : 1.0f;
    LB_UNROLL
    for (int j = 0; j < kHeld; ++j)
      if (32 * j < dim) store(head + lane() + 32 * j, x[j] * scale * w[j]);
    warp_barrier();
    const bool is_halves = p.pairs == RopePairs::kHalves;
    LB_UNROLL
    for (int j = 0; j < kPairs; ++j) {
      const int pair = lane() + 32 * j, one = is_halves ? pair : 2 * pair, other = is_halves ? pair + n_pairs : one + 1;
      if (pair >= n_pairs) continue;
      const float a = load<float>(head + one), b = load<float>(head + other);
      store(head + one, a * cos[j] - b * sin[j]);
      store(head + other, b * cos[j] + a * sin[j]);
    }
    warp_barrier();
  }
};

// scores[query][slot of the tile], by a warp each slot: a lane has pairs of columns, 64 apart, of four queries at a
// time.
template <class T>
LB_DEVICE void score_tile(const T* k, int dim, int n, int n_queries, const RunMemory<T>& memory) {
  LB_UNROLL_BY(1)
  for (int s = warp(); s < n; s += n_warps()) {
    LB_UNROLL_BY(1)
    for (int first = 0; first < n_queries; first += 4) {
      float sums[4] = {};
      const T *key_at = k + s * dim + 2 * lane(), *query_at = memory.queries + first * dim + 2 * lane();
      LB_UNROLL_BY(2)
      for (int i = 0; i < dim; i += 64) {
        const Vec<T, 2> key = load<Vec<T, 2>>(key_at + i);
        LB_UNROLL
        for (int g = 0; g < 4; ++g) {
          const Vec<T, 2> query = load<Vec<T, 2>>(query_at + g * dim + i);
          sums[g] = fma(to_f32(query[0]), to_f32(key[0]), fma(to_f32(query[1]), to_f32(key[1]), sums[g]));
        }
      }
      const float sum = sum_each(sums);
      if (lane() % 8 == 0) store(memory.scores + (first + lane() / 8) * kRunTile + s, sum);
    }
  }
}

// The softmax so far of a query, and two columns of its o a lane.
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

template <class T>
LB_APART void attention_runs_of(const RunsTask& p, int part, int n_parts, void* pool, PhaseWait wait) {
  assume_shared(&p);
  constexpr int kHeld = kRunQueries * (kMaxRunDim / 64) / (kMegaThreads / 32);
  const Attention& op = p.op;
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim, n_past = mega_state().numbers.n_past, each = split_slots(p, n_past + 1);
  const int set = quotient(warp(), p.chunks_step), n_sets = quotient(kMegaThreads / 32, p.chunks_step);
  const int column = (warp() - set * (dim / 64)) * 64 + 2 * lane();
  const RunMemory<T> memory(pool, dim);

  LB_UNROLL_BY(1)
  for (int i = part; i < p.n_units; i += n_parts) {
    const int which = i >> p.splits_shift, begin = (i - (which << p.splits_shift)) * each;
    const int end = min(begin + each, n_past + 1), n_tiles = max(end - begin + kRunTile - 1, 0) / kRunTile;
    const int kv_head = quotient(which, p.query_tiles_step),
              first_query = (which - kv_head * p.query_tiles) * p.tile_queries;
    const int n_queries = min(p.group - first_query, p.tile_queries), first_head = kv_head * p.group + first_query;
    const bool has_own = n_tiles > 0 && end > n_past;  // of the slots, the row's own
    const int of_kind = warp() - n_queries;
    const RunHead head(p, of_kind, first_head + warp(), kv_head, wait);
    const int32_t own_page = page_of(cache, n_past);
    bring_tile(cache, kv_head, begin, min(min(end, n_past), begin + kRunTile), 0, memory);
    if (i == part && n_tiles == 0) wait.without_words();
    if (i == part && n_tiles > 0) wait();

    if (n_tiles > 0 && of_kind < (has_own ? 2 : 0)) {
      float* made = memory.heads + warp() * dim;
      head.make(p.prepare, made, wait);
      // Queries to shared memory; K and V to the cache, and where they are in the first tile, there.
      const bool is_query = of_kind < 0;
      const float scale = is_query ? op.scale * kLog2E : 1.0f;
      T* to = is_query ? memory.queries + warp() * dim : (of_kind > 0 ? memory.v : memory.k) + (n_past - begin) * dim;
      T* slot = static_cast<T*>(of_kind > 0 ? cache.v : cache.k) + row_in(cache, own_page, n_past, kv_head) * dim;
      LB_UNROLL_BY(1)
      for (int c = lane(); c < dim; c += 32) {
        const T rounded = stored_as(load<float>(made + c) * scale, T{});
        if (is_query || n_past - begin < kRunTile) store(to + c, rounded);
        if (!is_query) store(slot + c, rounded);
      }
    }

    RunSums sums[kHeld];
    LB_UNROLL_BY(1)
    for (int tile = 0; tile < n_tiles; ++tile) {
      const int slot = begin + tile * kRunTile, n = min(end - slot, kRunTile), half = tile % 2;
      copy_wait<0>();
      block_barrier();  // the tile is there, and the one before has been read
      if (i == part && tile == 0 && !wait.is_barrier) wait.has_passed();
      if (tile + 1 < n_tiles)
        bring_tile(cache, kv_head, slot + kRunTile, min(end, slot + 2 * kRunTile), 1 - half, memory);
      score_tile(memory.k + half * kRunTile * dim, dim, n, n_queries, memory);
      block_barrier();
      LB_UNROLL
      for (int h = 0; h < kHeld; ++h)
        if (set + h * n_sets < n_queries && set < n_sets)
          sums[h].add_tile(memory.scores + (set + h * n_sets) * kRunTile, memory.v + half * kRunTile * dim + column,
                           dim, n);
    }
    LB_UNROLL
    for (int h = 0; h < kHeld; ++h) {
      if (n_tiles == 0 || set >= n_sets || set + h * n_sets >= n_queries) continue;
      const int of_head = first_head + set + h * n_sets, split = i & ((1 << p.splits_shift) - 1);
      Word* to = mega_state().words + p.split_words.at;
      store_relaxed(to + word_place(split_at(p, of_head, split, column)), word_of(sums[h].o[0], wait.made_by),
                    word_of(sums[h].o[1], wait.made_by));
      const float l = warp_sum(sums[h].l);
      if (column == 0)
        store_relaxed(to + split_sums_at(p, of_head, split), word_of(sums[h].m, wait.made_by),
                      word_of(l, wait.made_by));
    }
    if (i + n_parts < p.n_units) block_barrier();  // the tiles and queries are used again
  }
}

LB_DEVICE void attention_runs(const RunsTask& p, int part, int n_parts, void* pool, PhaseWait wait) {
  switch (p.op.cache.k_type) {
    case DType::kF16: return attention_runs_of<f16>(p, part, n_parts, pool, wait);
    case DType::kBF16: return attention_runs_of<bf16>(p, part, n_parts, pool, wait);
    default: return attention_runs_of<float>(p, part, n_parts, pool, wait);
  }
}

// What splits left of one head: m and l of all that have slots, some of them a lane's; of one four columns of o.
struct SplitWords {
  static constexpr int kSplitsOfLane = kMaxRunSplits / 32;
  float m[kSplitsOfLane], l[kSplitsOfLane], own_m, gate;
  f32x4 o;

  // Of column < 0: no o. gate_at below 0: no gate.
  LB_DEVICE void read(const RunsTask& p, int head, int split, int column, int gate_at, int n_there,
                      const PhaseWait& wait) {
    const uint32_t number = wait.number_of(p.split_words), gate_number = wait.number_of(p.gate_words);
    const Word *words = mega_state().words, *of_splits = words + p.split_words.at;
    const Word* own = of_splits + word_place(column >= 0 ? split_at(p, head, split, column) : 0);
    const Word* of_m = of_splits + split_sums_at(p, head, 0);
    Word of_o[4], of_own_m, of_gate, pairs[kSplitsOfLane][2];
    uint32_t polls = mega_state().most_polls, differs;
    LB_UNROLL_BY(1)
    do {
      of_gate = Word(gate_number) << 32;
      of_own_m = of_o[0] = of_o[1] = of_o[2] = of_o[3] = Word(number) << 32 | quant::bits_of(kNothingSeen);
      if (gate_at >= 0) of_gate = load_relaxed(words + gate_at);
      if (column >= 0) {
        load_relaxed(own, of_o[0], of_o[1]);
        load_relaxed(own + kHalfGroup, of_o[2], of_o[3]);
        of_own_m = load_relaxed(of_m + 2 * split);
      }
      LB_UNROLL
      for (int j = 0; j < kSplitsOfLane; ++j) {
        pairs[j][0] = pairs[j][1] = Word(number) << 32;
        if (lane() + 32 * j < n_there) load_relaxed(of_m + 2 * (lane() + 32 * j), pairs[j][0], pairs[j][1]);
      }
      differs = uint32_t(of_gate >> 32) ^ gate_number;
      LB_UNROLL
      for (int j = 0; j < 4; ++j) differs |= uint32_t(of_o[j] >> 32) ^ number;
      differs |= uint32_t(of_own_m >> 32) ^ number;
      LB_UNROLL
      for (int j = 0; j < kSplitsOfLane; ++j)
        differs |= (uint32_t(pairs[j][0] >> 32) ^ number) | (uint32_t(pairs[j][1] >> 32) ^ number);
    } while (differs != 0 && --polls != 0);
    if (differs != 0) wait.give_up();
    LB_UNROLL
    for (int j = 0; j < 4; ++j) o[j] = column >= 0 ? value_of_word(of_o[j]) : 0.0f;
    own_m = value_of_word(of_own_m);
    gate = gate_at >= 0 ? sigmoid(value_of_word(of_gate)) : 1.0f;
    LB_UNROLL
    for (int j = 0; j < kSplitsOfLane; ++j) {
      m[j] = lane() + 32 * j < n_there ? value_of_word(pairs[j][0]) : kNothingSeen;
      l[j] = value_of_word(pairs[j][1]);
    }
  }
};

LB_APART void attention_merge(const RunsTask& p, int part, int n_parts, float* pool, PhaseWait wait) {
  assume_shared(&p);
  const Attention& op = p.op;
  const int dim = op.cache.head_dim, quads = 1 << p.quads_shift;
  const int n_past = mega_state().numbers.n_past, n_there = n_past / split_slots(p, n_past + 1) + 1;
  const int split = thread_id() >> p.quads_shift;
  LB_UNROLL_BY(1)
  for (int i = part; i < p.n_merge_units; i += n_parts) {
    const int head = quotient(i, p.head_units_step), first_column = (i - head * p.head_units) * 4 * quads;
    const int column = first_column + 4 * (thread_id() & (quads - 1)), written = first_column + thread_id();
    const bool is_writer = thread_id() < 4 * quads && written < dim;
    const bool has_gate = is_writer && op.gate != nullptr;
    if (i == part) wait();

    SplitWords of;
    of.read(p, head, split, split < n_there && column < dim ? column : -1,
            has_gate ? p.gate_words.at + word_place(p.gate_at + head * int(op.gate_head_stride) + written) : -1,
            n_there, wait);
    if (i == part && !wait.is_barrier) wait.has_passed();
    float largest = kNothingSeen, total = 0;
    LB_UNROLL
    for (const float m : of.m) largest = max(largest, m);
    largest = warp_max(largest);
    LB_UNROLL
    for (int j = 0; j < SplitWords::kSplitsOfLane; ++j) total = fma(exp2_fast(of.m[j] - largest), of.l[j], total);
    total = warp_sum(total);
    const float weight = exp2_fast(of.own_m - largest);
    f32x4 o = of.o;
    LB_UNROLL
    for (int j = 0; j < 4; ++j) o[j] *= weight;
    LB_UNROLL_BY(1)
    for (int mask = quads; mask < 32; mask *= 2) {
      LB_UNROLL
      for (int j = 0; j < 4; ++j) o[j] += shuffle_xor(o[j], mask);
    }
    if (lane() < quads) store(pool + warp() * 4 * quads + 4 * lane(), o);
    block_barrier();
    if (is_writer) {
      float sum = 0;
      LB_UNROLL_BY(4)
      for (int w = 0; w < kMegaThreads / 32; ++w) sum += load<float>(pool + w * 4 * quads + thread_id());
      wait.write(p.y_words + word_place(head * dim + written), sum / total * of.gate);
    }
    if (i + n_parts < p.n_merge_units) block_barrier();  // the sums are used again
  }
}

}  // namespace lb::gpu
