// The body of attention_decode_8: up to 8 queries per KV head, over pages of any two types except F32.
//
// Grid, splits and the block's merge: as in attention_decode. Each of the four warps handles all queries and every
// fourth tile of 16 slots, and has its own ring of packed tiles, laid out as in the pages. The lane that loads codes
// converts them to operand registers, without a second pass through shared memory:
//   S^T = K Q^T    eight values of two slots are operand A of two products; Q's inner dimension has the same order
//   O^T = V^T P^T  words of one column group of two slots are merged into words of slot pairs, and converted to operand
//                  A; transposing S^T gives operand B
// With queries as columns no product has idle rows, and O^T of 8 queries takes head_dim / 4 registers per lane.
// Bound: read bandwidth, the bytes of K and V up to the last slot.
#pragma once

#include "gpu/attention/packed_slots.h"
#include "gpu/attention/tile.h"
#include "gpu/attention/tree_row.h"
#include "gpu/attention/warp_merge.h"
#include "pairs.h"

namespace lb::gpu {

using StoredSlots = PackedSlots<kDecodeSlots, kDecode8Pad>;

template <int kDim>
LB_DEVICE StoredSlots stored_slots(KvType type) {
  const KvRowBytes bytes = row_bytes(type, kDim);
  int shift = 4;
  while (bytes.codes >> shift != 1) ++shift;
  return {bytes, shift};
}

// A warp's ring of packed tiles in the order K 0, V 0, K 1, V 1, ... While one is in use, the others are being copied.
template <class Slots>
struct StoredRing {
  const AttentionSplits& p;
  int kv_head;
  unsigned char* tiles;          // [p.ring][p.tile_bytes]
  int first_slot, end, n_tiles;  // tile i: slots from first_slot + i * kPageTokens on, below `end`
  StoredSlots k, v;
  const Slots* slots;  // null for AllSlots
  int n_issued = 0, n_taken = 0, next = 0, now = 0;
  int32_t page = 0, next_page = 0;

  // Each plane's rows are contiguous, so slots beyond `end` are copied too: they are in the page, with arbitrary
  // content.
  LB_DEVICE void issue() {
    if (n_issued < 2 * n_tiles) {
      const bool is_v = n_issued % 2 != 0;
      const StoredSlots stored = {is_v ? v.bytes : k.bytes, is_v ? v.code_shift : k.code_shift};
      const KvLayer& cache = p.op.cache;
      if (!is_v) {  // prefetches the page index of the next K and V pair
        page = next_page;
        next_page =
            load_cached<int32_t>(cache.page_table + min((first_slot + n_issued / 2 * kPageTokens) / kPageTokens + 1,
                                                        (end - 1) / kPageTokens));
      }
      unsigned char* const to = tiles + next * p.tile_bytes;
      if (!issue_moved(stored, to)) {
        const uint8_t* head = head_of(is_v ? cache.v : cache.k, stored.bytes, cache, page, kv_head);
        stored.copy(to, head, first_slot % kPageTokens, lane(), 32);
      }
      next = next + 1 == p.ring ? 0 : next + 1;
      ++n_issued;
    }
    copy_commit();
  }
  // Copies the next tile if its positions are not in consecutive slots.
  LB_DEVICE bool issue_moved(const StoredSlots& stored, unsigned char* to) const {
    if constexpr (Slots::kMoves) {
      const int position = first_slot + n_issued / 2 * kPageTokens;
      if (!slots->moves(position + kDecodeSlots)) return false;
      const KvLayer& cache = p.op.cache;
      void* const pages = n_issued % 2 != 0 ? cache.v : cache.k;
      stored.copy_each(
          to,
          [&](int i) {
            const int slot = slots->slot(position + i);
            return row_of(head_of(pages, stored.bytes, cache, page_of(cache, slot), kv_head), stored.bytes,
                          slot % kPageTokens);
          },
          min(end - position, kDecodeSlots), lane(), 32);
      return true;
    }
    return false;
  }
  // Starts the first copies and waits for the previous kernel. If the first two tiles hold only older slots, the copies
  // start before the wait.
  LB_DEVICE void start(int n_past) {
    const bool is_old = first_slot + kPageTokens + kDecodeSlots <= n_past;
    LB_UNROLL_BY(1)
    for (int n = 0; n < 2; ++n) {
      if (n == 1) begin_attention();
      if (is_old != (n == 0)) continue;
      next_page = page_of(p.op.cache, first_slot);
      for (int i = 0; i < p.ring - 1; ++i) issue();
    }
  }
  // Waits for the next tile and frees the previous one. Clears V slots from `end` on, because a NaN times a weight of
  // zero is still NaN.
  LB_DEVICE unsigned char* take() {
    if (p.ring == 4) copy_wait<2>();
    if (p.ring == 3) copy_wait<1>();
    if (p.ring == 2) copy_wait<0>();
    warp_barrier();
    issue();
    unsigned char* tile = tiles + now * p.tile_bytes;
    now = now + 1 == p.ring ? 0 : now + 1;
    const int n_valid = end - (first_slot + n_taken / 2 * kPageTokens);
    if (n_taken++ % 2 != 0 && n_valid < kDecodeSlots) {
      v.clear(tile, n_valid);
      warp_barrier();
    }
    return tile;
  }
};

// Transposes words of one column group of two slots into words of slot pairs: [0] even columns, [1] odd columns.
template <KvType kType>
LB_DEVICE void pair_slots(const KvWords<kType>& a, const KvWords<kType>& b, KvWords<kType> (&pairs)[2]) {
  constexpr uint32_t kHalves[2] = {0x5410, 0x7632};  // select the low halves of two words, and the high ones
  LB_UNROLL
  for (int i = 0; i < 2; ++i) {
    LB_UNROLL
    for (int n = 0; n < KvWords<kType>::kCount; ++n)
      pairs[i].codes[n] = permute_bytes(a.codes[n], b.codes[n], kHalves[i]);
    pairs[i].high = permute_bytes(a.high, b.high, kHalves[i]);
  }
}

// A warp's queries and their online softmax. With g = lane / 4 and t = lane % 4, a lane holds sums o of queries 2t + j
// and their scores with slots g + 8h.
template <int kDim>
struct SmallQueries {
  static constexpr int kEights = kDim / 64;  // groups of eight columns of o per lane, starting at 64 e + 8 g
  float m[2] = {kNothingSeen, kNothingSeen}, l[2] = {};  // until close(), l sums only the lane's slots
  float o[kEights][4][4] = {};                           // [e][i][2 c + j]: column 2 i + c of group e, query 2t + j

  template <KvType kType>
  LB_DEVICE static void add_scores(float (&s)[4], const f16* q, unsigned char* tile, int own_lane) {
    constexpr StoredSlots kSlots = {kv_row_bytes(kType, kDim)};
    const int g = own_lane / 4, first = own_lane % 4 * 8;
    float sums[2][4] = {};  // even and odd products accumulate separately, halving the dependency chains
    LB_UNROLL_BY(4)         // partly unrolled, because each step fetches this code from memory
    for (int k = 0; k < kDim; k += 32) {
      const auto eight_q = load<u32x4>(q + g * decode_8_query_stride(kDim) + k + first);
      u32x4 keys[2];
      LB_UNROLL
      for (int h = 0; h < 2; ++h)
        keys[h] = load_operands<kType, FromShared>(kSlots.row(tile, g + 8 * h), k + first, scale_shift(kType, kDim));
      LB_UNROLL
      for (int i = 0; i < 2; ++i)
        multiply_pairs(sums[i], PairsA{{keys[0][2 * i], keys[1][2 * i], keys[0][2 * i + 1], keys[1][2 * i + 1]}},
                       eight_q[2 * i], eight_q[2 * i + 1]);
    }
    LB_UNROLL
    for (int n = 0; n < 4; ++n) s[n] = sums[0][n] + sums[1][n];
  }

  // Online softmax: scores become weights under the new maximum; l and o are rescaled if a maximum of the warp grew.
  LB_DEVICE void update_softmax(float (&s)[4]) {
    float top[2];
    LB_UNROLL
    for (int j = 0; j < 2; ++j) {
      top[j] = max(max(s[j], s[2 + j]), m[j]);
      LB_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) top[j] = max(top[j], shuffle_xor(top[j], mask));
    }
    if (any(top[0] > m[0] || top[1] > m[1])) {
      LB_UNROLL
      for (int j = 0; j < 2; ++j) {
        const float shrink = top[j] == m[j] ? 1.0f : exp2_fast(m[j] - top[j]);
        l[j] *= shrink;
        m[j] = top[j];
        LB_UNROLL
        for (int e = 0; e < kEights; ++e) {
          LB_UNROLL
          for (int i = 0; i < 8; ++i) o[e][i / 2][i % 2 * 2 + j] *= shrink;
        }
      }
    }
    LB_UNROLL
    for (int n = 0; n < 4; ++n) {
      s[n] = exp2_fast(s[n] - (m[n % 2] == kNothingSeen ? 0.0f : m[n % 2]));
      l[n % 2] += s[n];
    }
  }

  // Adds V weighted by the lane's scores.
  template <KvType kType>
  LB_DEVICE void add_values(const float (&s)[4], unsigned char* tile, int own_lane) {
    constexpr StoredSlots kSlots = {kv_row_bytes(kType, kDim)};
    constexpr int kShift = scale_shift(kType, kDim);
    const int first_column = own_lane / 4 * 8, first_slot = own_lane % 4 * 2;
    uint32_t weights[2];  // softmax weights of query g, slots 2t + n + 8h
    LB_UNROLL
    for (int h = 0; h < 2; ++h)
      weights[h] = transpose_pairs(__builtin_bit_cast(uint32_t, to_f16x2(s[2 * h], s[2 * h + 1])));
    LB_UNROLL
    for (int e = 0; e < kEights; ++e) {
      const int column = 64 * e + first_column;
      u32x4 values[2][2];  // [h][c]: pairs of slots, even and odd columns
      LB_UNROLL
      for (int h = 0; h < 2; ++h) {
        const quant::KvRow a = kSlots.row(tile, first_slot + 8 * h), b = kSlots.row(tile, first_slot + 8 * h + 1);
        KvWords<kType> pairs[2];
        pair_slots(load_words<kType, FromShared>(a, column), load_words<kType, FromShared>(b, column), pairs);
        const KvScale of_a = load_scale<kType, FromShared>(a, column, kShift),
                      of_b = load_scale<kType, FromShared>(b, column, kShift);
        const KvScale scale = {(of_a.scale & 0xffff) | of_b.scale << 16, (of_a.minimum & 0xffff) | of_b.minimum << 16};
        LB_UNROLL
        for (int c = 0; c < 2; ++c) values[h][c] = to_operands(pairs[c], scale);
      }
      LB_UNROLL
      for (int i = 0; i < 4; ++i)
        multiply_pairs(o[e][i], PairsA{{values[0][0][i], values[0][1][i], values[1][0][i], values[1][1][i]}},
                       weights[0], weights[1]);
    }
  }

  LB_DEVICE void close() {
    LB_UNROLL
    for (int j = 0; j < 2; ++j) {
      LB_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) l[j] += shuffle_xor(l[j], mask);
    }
  }
};

// slots: as for attention_decode.
template <int kDim, class Slots = AllSlots>
LB_DEVICE void attention_decode_8(const AttentionSplits& p, const Slots* slots = nullptr) {
  unsigned char* shared = dynamic_shared<unsigned char>();
  f16* q = reinterpret_cast<f16*>(shared);
  float* stats = reinterpret_cast<float*>(q + kDecode8Queries * decode_8_query_stride(kDim));
  const WarpMerge<kDecode8Queries> merge(stats);
  unsigned char* rings = reinterpret_cast<unsigned char*>(stats + merge.kFloats);
  const size_t ring_bytes = decode_8_ring_bytes(kDim, p.ring, p.tile_bytes);
  unsigned char* own_ring = rings + warp() * ring_bytes;

  const Attention& op = p.op;
  const KvLayer& cache = op.cache;
  const Queries queries(op, block_id_y());
  const int split = block_id(), n_past = past_of(op, slots), end = n_past + op.rows;
  const PageRange pages = pages_of(p, split, n_past, end, 0);
  if (pages.begin == pages.end) return;

  const int first_slot = pages.begin * kPageTokens + warp() * kDecodeSlots;
  const int last_slot = (pages.end - 1) * kPageTokens + warp() * kDecodeSlots;
  StoredRing<Slots> ring = {
      .p = p,
      .kv_head = queries.kv_head,
      .tiles = own_ring,
      .first_slot = first_slot,
      .end = end,
      .n_tiles = pages.end - pages.begin - (last_slot < end ? 0 : 1),
      .k = stored_slots<kDim>(cache.k_type),
      .v = stored_slots<kDim>(cache.v_type),
      .slots = slots,
  };
  if constexpr (Slots::kMoves)
    ring.start(slots->n_committed);
  else
    ring.start(n_past);
  // Stages the queries as f16, scaled so that scores are exponents of 2, zero beyond the last query.
  LB_UNROLL_BY(2)
  for (int i = 4 * thread_id(); i < kDecode8Queries * kDim; i += 4 * kAttentionThreads) {
    const int query = i / kDim, column = i % kDim;
    f32x4 x = {};
    if (query < queries.n) x = load<f32x4>(op.q + queries.at(op, query) * kDim + column);
    Vec<f16, 4> rounded;
    LB_UNROLL
    for (int j = 0; j < 4; ++j) rounded[j] = to_f16(x[j] * (op.scale * kLog2E));
    store(q + query * decode_8_query_stride(kDim) + column, rounded);
  }
  block_barrier();

  SmallQueries<kDim> small;
  const int own_rows[2] = {min(queries.row(lane() % 4 * 2), op.rows - 1),
                           min(queries.row(lane() % 4 * 2 + 1), op.rows - 1)};
  for (int i = 0; i < ring.n_tiles; ++i) {
    const int offset = first_slot + i * kPageTokens - n_past;  // the tile's first slot relative to this append's row 0
    float s[4];                                                // [2h + j]: slot g + 8h, query 2t + j
    const int own_lane = opaque(lane());  // recomputed, so that no type's offsets occupy registers throughout the loop
    unsigned char* tile = ring.take();
    with_kv_type(cache.k_type, [&](auto tag) {
      if constexpr (tag.kType != KvType::kF32) small.template add_scores<tag.kType>(s, q, tile, own_lane);
    });
    if (offset + kDecodeSlots > 0 || offset < first_seen(op, n_past, op.rows - 1)) {
      LB_UNROLL
      for (int n = 0; n < 4; ++n)
        if (!sees(op, n_past, own_rows[n % 2], offset + lane() / 4 + n / 2 * 8)) s[n] = kNothingSeen;
    }
    small.update_softmax(s);
    tile = ring.take();
    with_kv_type(cache.v_type, [&](auto tag) {
      if constexpr (tag.kType != KvType::kF32) small.template add_values<tag.kType>(s, tile, own_lane);
    });
  }

  small.close();
  if (lane() < 4) {
    LB_UNROLL
    for (int j = 0; j < 2; ++j) merge.put(lane() * 2 + j, small.m[j], small.l[j]);
  }
  block_barrier();
  merge.merge(p, queries, split);
  block_barrier();

  float* sums = reinterpret_cast<float*>(own_ring);
  LB_UNROLL
  for (int j = 0; j < 2; ++j) {
    const int query = lane() % 4 * 2 + j;
    const float factor = merge.factor(query, small.m[j]);
    LB_UNROLL
    for (int e = 0; e < SmallQueries<kDim>::kEights; ++e) {
      LB_UNROLL
      for (int half = 0; half < 2; ++half) {
        f32x4 four;
        LB_UNROLL
        for (int n = 0; n < 4; ++n) four[n] = small.o[e][2 * half + n / 2][n % 2 * 2 + j] * factor;
        store(sums + query * decode_8_sum_stride(kDim) + 64 * e + lane() / 4 * 8 + 4 * half, four);
      }
    }
  }
  block_barrier();
  write_warp_sums(p, queries, split, rings, ring_bytes, decode_8_sum_stride(kDim), 0, kDim);
}

}  // namespace lb::gpu
