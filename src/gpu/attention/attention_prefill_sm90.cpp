// Attention of more than 64 queries per KV head on wgmma (sm_90a), warp-specialised.
//
// Grid: tiles of 128 queries, KV heads, splits of the context; the longest query tiles of a prefill start first. One
// producer warpgroup copies tiles of K and V into two rings. Two consumer warpgroups handle 64 queries each and never
// synchronise with each other. Consumers wait on full barriers. The producer waits on empty barriers, where both
// consumers arrive. A consumer issues S of tile i and P V of tile i - 1 together. Both overlap with its softmax of S
// and with the other consumer's softmax. If K and V have one 16-bit type, they are copied straight to the rings. Other
// pages pass through a third ring in their stored form, and the producer converts them to f16.
// Bound: arithmetic, 4 head_dim flops per query and slot.
// Needs: wgmma, tma
#include "dialect.h"

#include "gpu/attention/instances.h"
#include "gpu/attention/packed_slots.h"
#include "gpu/attention/selected.h"
#include "transfer.h"

namespace lb::gpu {

// Cursor into the ring of K or V tiles, with a full and an empty barrier per stage.
struct TileRing {
  CountedBarrier* full;   // [kStages]
  CountedBarrier* empty;  // [kStages]
  int n_stages, stage = 0, parity = 0;

  LB_DEVICE void wait_full() const { barrier_wait(full + stage, parity); }
  LB_DEVICE void wait_empty() const { barrier_wait(empty + stage, parity ^ 1); }
  // Called by every warp after all of its lanes are done.
  LB_DEVICE void arrive(CountedBarrier* which) const {
    if (lane() == 0) barrier_arrive(which + stage);
  }
  LB_DEVICE void step() {
    if (++stage < n_stages) return;
    stage = 0;
    parity ^= 1;
  }
};

// The queries, split and slots of this block.
struct BlockWork {
  Queries queries;
  int split, n_past, first, first_row, last_row, end, first_slot, n_slots;

  LB_DEVICE BlockWork(const AttentionSplits& p) : queries(p.op, block_id_y()) {
    split = block_id_z();
    n_past = *p.op.n_past;
    first = (n_blocks() - 1 - block_id()) * kSm90Queries;
    first_row = queries.row(first);
    last_row = queries.row(min(first + kSm90Queries, queries.n) - 1);
    end = slots_seen(p.op, n_past, last_row);
    const PageRange pages = pages_of(p, split, n_past, end, first_row);
    first_slot = pages.begin * kPageTokens;
    n_slots = min(pages.end * kPageTokens, end) - first_slot;
  }
  template <int kSlots>
  LB_DEVICE int n_tiles() const {
    return (n_slots + kSlots - 1) / kSlots;
  }
  // The first slot of tile i, its page, and the number of slots from there on.
  template <int kSlots>
  LB_DEVICE int slot(int i) const {
    return first_slot + i * kSlots;
  }
  template <int kSlots>
  LB_DEVICE int first_page(int i) const {
    return first_slot / kPageTokens + i * (kSlots / kPageTokens);
  }
  template <int kSlots>
  LB_DEVICE int n_valid(int i) const {
    return n_slots - i * kSlots;
  }
};

// The work of a query block with selected key blocks. The constructor waits for the previous kernel.
struct SelectedWork : BlockWork {
  SelectedSlots slots;

  LB_DEVICE SelectedWork(const AttentionSplits& p) : BlockWork(p), slots(p.op) {
    first = first_of_query_block(queries, n_blocks() - 1 - block_id(), kSm90Queries);
    first_row = queries.row(first);
    last_row = queries.row(queries.n - 1);
    n_slots = end = slots_seen(p.op, n_past, last_row);
    first_slot = 0;
    begin_attention();
    slots.select(queries, first);
  }
  template <int kSlots>
  LB_DEVICE int n_tiles() const {
    return slots.n_tiles(end, kSlots);
  }
  template <int kSlots>
  LB_DEVICE int slot(int i) const {
    return slots(0, kSlots, i);
  }
  template <int kSlots>
  LB_DEVICE int first_page(int i) const {  // also valid for a tile beyond the last one
    return slot<kSlots>(min(i, n_tiles<kSlots>() - 1)) / kPageTokens;
  }
  template <int kSlots>
  LB_DEVICE int n_valid(int i) const {
    return end - slot<kSlots>(i);
  }
};

// Copies the slots of a tile to shared memory. Slots from n_valid on become zero, because a NaN times a weight of zero
// is still NaN.
template <class T, int kDim>
LB_DEVICE void copy_tile(T* to, const void* values, const KvLayer& cache, int kv_head,
                         const int (&pages)[sm90_slots(kDim) / kPageTokens], int n_valid) {
  constexpr int kSlots = sm90_slots(kDim), kRowStep = kSm90GroupThreads / 8;  // 8 lanes per row, 16 bytes each
  const int piece = thread_id() % 8 * 8, row = thread_id() / 8;
  to += tile_index(kSlots, row, piece);
  LB_UNROLL
  for (int page = 0; page < kSlots / kPageTokens; ++page) {
    const long first = (long(pages[page]) * cache.n_kv_heads + kv_head) * kPageTokens + row;
    const T* from = static_cast<const T*>(values) + first * kDim + piece;
    LB_UNROLL
    for (int i = 0; i < kPageTokens; i += kRowStep) {
      const int slot = page * kPageTokens + i;  // kRowStep is a multiple of 8, so the swizzle does not change
      LB_UNROLL
      for (int block = 0; block < kDim / 64; ++block) {
        T* at = to + (block * kSlots + slot) * 64;
        if (slot + row < n_valid)
          copy_async<16>(at, from + i * kDim + block * 64);
        else
          store(at, u32x4{});
      }
    }
  }
}

template <class T, int kDim, class Work>
LB_DEVICE void copy_tiles(const AttentionSplits& p, const Work& work, T* k_tiles, T* v_tiles, TileRing k_ring,
                          TileRing v_ring) {
  constexpr int kSlots = sm90_slots(kDim), kTile = kSlots * kDim, kPages = kSlots / kPageTokens;
  const KvLayer& cache = p.op.cache;
  const int n_tiles = work.template n_tiles<kSlots>(), last_page = (work.end - 1) / kPageTokens;
  TileRing k_done = k_ring, v_done = v_ring;  // the oldest tiles that are still being copied
  int k_pages[kPages], v_pages[kPages], next_pages[kPages];
  const auto find_pages = [&](int i) {  // page indices of tile i, loaded one tile ahead
    const int first_page = work.template first_page<kSlots>(i);
    LB_UNROLL
    for (int page = 0; page < kPages; ++page)
      next_pages[page] = load_cached<int32_t>(cache.page_table + min(first_page + page, last_page));
  };
  const auto publish = [&](TileRing& ring) {
    fence_async_proxy();
    warp_barrier();
    ring.arrive(ring.full);
    ring.step();
  };

  find_pages(0);
  begin_attention();
  // Copies K i, then V i - 1: the order in which consumers use them. A tile is published once the next tile's copies
  // are issued.
  for (int i = 0; i <= n_tiles; ++i) {
    LB_UNROLL
    for (int page = 0; page < kPages; ++page) v_pages[page] = k_pages[page], k_pages[page] = next_pages[page];
    if (i < n_tiles) {
      find_pages(i + 1);
      k_ring.wait_empty();
      copy_tile<T, kDim>(k_tiles + k_ring.stage * kTile, cache.k, cache, work.queries.kv_head, k_pages,
                         work.template n_valid<kSlots>(i));
      k_ring.step();
    }
    copy_commit();
    if (i > 1) {
      copy_wait<1>();
      publish(v_done);
    }
    if (i > 0) {
      v_ring.wait_empty();
      copy_tile<T, kDim>(v_tiles + v_ring.stage * kTile, cache.v, cache, work.queries.kv_head, v_pages,
                         work.template n_valid<kSlots>(i - 1));
      v_ring.step();
    }
    copy_commit();
    if (i < n_tiles) {
      copy_wait<1>();
      publish(k_done);
    }
  }
  copy_wait<0>();
  publish(v_done);
}

// Converts a warp's unit of stored slots to f16, in rows [first, first + kSm90Unit) of a tile. first is a multiple of
// kSm90Unit.
template <KvType kType, int kDim>
LB_DEVICE void convert_unit(f16* tile, unsigned char* unit, int first, int own_lane) {
  constexpr PackedSlots<kSm90Unit> kSlots = {kv_row_bytes(kType, kDim)};
  constexpr int kRowLanes = kDim / 8, kStep = 32 / kRowLanes, kRounds = kSm90Unit / kStep;
  constexpr int kInFlight = kDim > 128 ? 4 : 2;  // loads precede stores, because the compiler cannot reorder them
  const int column = own_lane % kRowLanes * 8, own_slot = own_lane / kRowLanes;
  f16* to = tile + tile_index(sm90_slots(kDim), first, column / 64 * 64);
  LB_UNROLL_BY(2)
  for (int done = 0; done < kRounds; done += kInFlight) {
    u32x4 eight[kInFlight];
    LB_UNROLL
    for (int i = 0; i < kInFlight; ++i)
      eight[i] = unpack_eight<kType>(kSlots.row(unit, own_slot + (done + i) * kStep), column, scale_shift(kType, kDim));
    LB_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      const int slot = own_slot + (done + i) * kStep;
      store(to + tile_index(kSm90Unit, slot, column % 64), eight[i]);
    }
  }
}

// Called by one thread. Starts the bulk copies of a unit of stored slots, which complete on a barrier.
LB_DEVICE void copy_unit(unsigned char* to, const KvRowBytes& bytes, const uint8_t* head, int first,
                         CountedBarrier* barrier) {
  const quant::KvRow from = row_of(const_cast<uint8_t*>(head), bytes, first);
  const int codes = kSm90Unit * bytes.codes, high = kSm90Unit * bytes.high, scales = kSm90Unit * bytes.scales;
  barrier_expect(barrier, codes + high + scales);
  copy_bulk(to, from.codes, codes, barrier);
  if (high > 0) copy_bulk(to + codes, from.high, high, barrier);
  if (scales > 0) copy_bulk(to + codes + high, from.scales, scales, barrier);
}

// copy_tiles for pages of any two types. Each warp handles a quarter of each tile, in units of kSm90Unit slots. Units
// arrive in the warp's own p.ring stages in their stored form, and the warp converts them from there. arrived: one
// barrier per stage of the warp.
template <int kDim>
LB_DEVICE void convert_tiles(const AttentionSplits& p, const BlockWork& work, f16* k_tiles, f16* v_tiles,
                             unsigned char* stages, CountedBarrier* arrived, const TileRing& k_ring,
                             const TileRing& v_ring) {
  constexpr int kSlots = sm90_slots(kDim), kTile = kSlots * kDim, kOwnSlots = kSlots / kSm90ProducerWarps;
  constexpr int kUnits = kOwnSlots / kSm90Unit, kStages = sm90_stages(kDim);
  const KvLayer& cache = p.op.cache;
  const int n_tiles = (work.n_slots + kSlots - 1) / kSlots, own_first = warp() * kOwnSlots;
  stages += warp() * p.ring * p.tile_bytes;
  arrived += warp() * kSm90MaxUnits;

  // Unit n, in the order in which consumers use tiles: K i, then V i - 1. No V precedes K 0, and no K precedes the last
  // V.
  struct Unit {
    bool is_v;
    int tile, in_tile;
  };
  const auto unit_of = [&](int n) -> Unit {
    const int step = int(unsigned(n) / kUnits), in_tile = own_first + n % kUnits * kSm90Unit;
    const bool is_v = (step > 0 && step % 2 == 0) || step == 2 * n_tiles - 1;
    return {is_v, is_v ? (step - 1) / 2 : (step + 1) / 2, in_tile};
  };
  const auto page_at = [&](int n) {
    const Unit unit = unit_of(n);
    return page_of(cache, min(work.first_slot + unit.tile * kSlots + unit.in_tile, work.end - 1));
  };
  // Slots beyond `end` are copied too: they are in the page, with arbitrary content.
  const int n_units = 2 * n_tiles * kUnits;
  int32_t page = page_at(0);  // page index of the next unit to be copied
  const auto issue = [&](int n, int stage) {
    if (n >= n_units) return;
    const Unit unit = unit_of(n);
    const KvRowBytes bytes = row_bytes(unit.is_v ? cache.v_type : cache.k_type, kDim);
    const uint8_t* head = head_of(unit.is_v ? cache.v : cache.k, bytes, cache, page, work.queries.kv_head);
    copy_unit(stages + stage * p.tile_bytes, bytes, head, unit.in_tile % kPageTokens, arrived + stage);
    if (n + 1 < n_units) page = page_at(n + 1);
  };

  begin_attention();
  if (lane() == 0) {
    for (int n = 0; n < p.ring; ++n) issue(n, n);
  }
  for (int n = 0, stage = 0, parity = 0; n < n_units; ++n) {
    const Unit unit = unit_of(n);
    TileRing ring = unit.is_v ? v_ring : k_ring;
    ring.stage = int(unsigned(unit.tile) % kStages);
    ring.parity = int(unsigned(unit.tile) / kStages & 1);
    if (n % kUnits == 0) ring.wait_empty();
    barrier_wait(arrived + stage, parity);

    unsigned char* const slots = stages + stage * p.tile_bytes;
    const KvType type = unit.is_v ? cache.v_type : cache.k_type;
    const int n_valid = work.n_slots - unit.tile * kSlots - unit.in_tile;
    if (n_valid < kSm90Unit) {  // clears V too, because a NaN times a weight of zero is still NaN
      PackedSlots<kSm90Unit>{row_bytes(type, kDim)}.clear(slots, n_valid);
      fence_async_proxy();  // orders the zeros before a later bulk copy to the same address
      warp_barrier();
    }
    f16* const to = (unit.is_v ? v_tiles : k_tiles) + ring.stage * kTile;
    const int own_lane = opaque(lane());  // recomputed, so that no type's offsets occupy registers throughout the loop
    with_kv_type(type, [&](auto tag) {
      if constexpr (tag.kType != KvType::kF32)  // choose_config.cpp picks another kernel
        convert_unit<tag.kType, kDim>(to, slots, unit.in_tile, own_lane);
    });
    if (n % kUnits == kUnits - 1) fence_async_proxy();
    warp_barrier();
    if (n % kUnits == kUnits - 1) ring.arrive(ring.full);
    if (lane() == 0) issue(n + p.ring, stage);
    if (++stage == p.ring) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// Stages the block's queries in shared memory for head_dim 256, scaled so that scores are exponents of 2, zero beyond
// the last query. Called by the consumer warps: one warp per query, eight queries in flight.
template <class T, int kDim>
LB_DEVICE void stage_queries_sm90(T* to, const Attention& op, const BlockWork& work, int own_warp) {
  constexpr int kWarps = 2 * kSm90GroupThreads / 32, kInFlight = 8;
  static_assert(kDim == 256 && kSm90Queries % (kWarps * kInFlight) == 0 && kSm90Queries <= kWarps * 32);
  const float scale = op.scale * kLog2E;
  const int column = 8 * lane();
  const int lane_offset = int(work.queries.at(op, min(work.first + own_warp + kWarps * lane(), work.queries.n - 1)));
  LB_UNROLL_BY(1)
  for (int done = own_warp; done < kSm90Queries; done += kWarps * kInFlight) {
    f32x4 low[kInFlight], high[kInFlight];
    LB_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      const float* from = op.q + long(shuffle(lane_offset, done / kWarps + i)) * kDim + column;
      low[i] = high[i] = {};
      if (work.first + done + i * kWarps < work.queries.n) low[i] = load<f32x4>(from), high[i] = load<f32x4>(from + 4);
    }
    LB_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      const int query = done + i * kWarps;
      Vec<T, 8> rounded;
      LB_UNROLL
      for (int j = 0; j < 8; ++j) rounded[j] = as_operand((j < 4 ? low[i][j] : high[i][j - 4]) * scale, T{});
      store(to + query / 64 * 64 * kDim + tile_index(64, query % 64, column), rounded);
    }
  }
}

// The 64 queries of a consumer warpgroup, 16 per warp, and their online softmax.
template <class T, int kDim>
struct WarpgroupQueries {
  static constexpr int kSlots = sm90_slots(kDim), kTile = kSlots * kDim;
  static constexpr int kColumns = kDim < 128 ? kDim : 128;  // columns per wgmma of P V
  static constexpr bool kHasRegisters = sm90_query_bytes(kDim) == 0;
  FragmentA<T> q[kHasRegisters ? kDim / 16 : 1];
  FragmentA<T> weights[kSlots / 16];
  FragmentC s[kSlots / 16], o[kDim / 16];
  float m[kLaneRows], l[kLaneRows];

  // Clears the state. If queries stay in registers, loads Q, scaled so that scores are exponents of 2, zero beyond the
  // last query.
  LB_DEVICE void load_queries(const Attention& op, const Queries& queries, int first) {
    const float scale = op.scale * kLog2E;
    LB_UNROLL
    for (int d = 0; d < kDim / 16; ++d) fill(o[d], 0);
    LB_UNROLL
    for (int i = 0; i < kLaneRows; ++i) m[i] = kNothingSeen, l[i] = 0;
    if constexpr (kHasRegisters) {
      const float* from[kLaneRows];
      float scales[kLaneRows];
      LB_UNROLL
      for (int i = 0; i < kLaneRows; ++i) {
        const int query = first + lane_row(i);
        from[i] = op.q + queries.at(op, min(query, queries.n - 1)) * kDim;
        scales[i] = query < queries.n ? scale : 0.0f;
      }
      LB_UNROLL
      for (int d = 0; d < kDim / 16; ++d) {
        FragmentC values;
        for_each_row(values, [&](int i, int column, float& value) { value = from[i][16 * d + column] * scales[i]; });
        sum_as_operand(q[d], values);
      }
    }
  }

  // Issues S = Q K^T.
  LB_DEVICE void start_scores(const T* shared_q, const T* k) {
    group_begin();
    LB_UNROLL
    for (int d = 0; d < kDim; d += 16) {
      const auto b = rows_of(k, kSlots, 0, d);
      if constexpr (kHasRegisters) {
        if (d == 0)
          group_multiply<kSlots, true>(s, q[0], b);
        else
          group_multiply<kSlots, false>(s, q[d / 16], b);
      } else {
        const auto a = rows_of(shared_q, 64, 0, d);
        if (d == 0)
          group_multiply<kSlots, true>(s, a, b);
        else
          group_multiply<kSlots, false>(s, a, b);
      }
    }
    group_commit();
  }

  // Issues O += P V.
  LB_DEVICE void start_values(const T* v) {
    group_begin();
    LB_UNROLL
    for (int j = 0; j < kSlots; j += 16) {
      LB_UNROLL
      for (int d = 0; d < kDim; d += kColumns)
        group_multiply<kColumns, false>(o + d / 16, weights[j / 16], columns_of(v, kSlots, j, d));
    }
    group_commit();
  }

  // Online softmax: turns scores into weights under the new maximum and rescales l. Returns whether any maximum of the
  // warp grew; then the caller must multiply o by `shrink`.
  LB_DEVICE bool update_softmax(float (&shrink)[kLaneRows]) {
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
      shrink[i] = top[i] == m[i] ? 1.0f : exp2_fast(m[i] - top[i]);
      m[i] = top[i];
      l[i] *= shrink[i];
      top[i] = m[i] == kNothingSeen ? 0.0f : m[i];
    }
    LB_UNROLL
    for (int j = 0; j < kSlots / 16; ++j)
      for_each_row(s[j], [&](int i, int, float& score) {
        score = exp2_fast(score - top[i]);
        l[i] += score;
      });
    return any(max_grew);
  }

  LB_DEVICE void round_weights() {
    LB_UNROLL
    for (int j = 0; j < kSlots / 16; ++j) sum_as_operand(weights[j], s[j]);
  }
};

// Bit i < 16: whether a row with these ancestors sees slot n_past + offset + i. Every row sees the committed slots.
LB_DEVICE uint32_t seen_of_16(uint64_t ancestors, int offset) {
  const int n_committed = min(max(-offset, 0), 16);
  return uint32_t(ancestors >> (max(offset, 0) & 63)) << n_committed | ((1u << n_committed) - 1);
}

template <class T, int kDim, class Work>
LB_DEVICE void consume_tiles(const AttentionSplits& p, const Work& work, T* shared_q, CountedBarrier* has_queries,
                             const T* k_tiles, const T* v_tiles, TileRing k_ring, TileRing v_ring) {
  constexpr int kSlots = sm90_slots(kDim), kTile = kSlots * kDim;
  const int own_warp = warp() - kSm90GroupThreads / 32;
  const Attention& op = p.op;
  const int own_first = work.first + own_warp * 16;
  const int n_tiles = work.template n_tiles<kSlots>();
  begin_attention();
  WarpgroupQueries<T, kDim> tile;
  if constexpr (!tile.kHasRegisters) {
    stage_queries_sm90<T, kDim>(shared_q, op, work, own_warp);
    fence_async_proxy();
    warp_barrier();
    if (lane() == 0) barrier_arrive(has_queries);
    barrier_wait(has_queries, 0);
  }
  tile.load_queries(op, work.queries, own_first);
  // The shuffle makes the address uniform for the compiler. Else each product keeps a descriptor in registers.
  if constexpr (!tile.kHasRegisters) shared_q += (shuffle(warp(), 0) / 4 - 1) * 64 * kDim;
  int rows[kLaneRows];
  LB_UNROLL
  for (int i = 0; i < kLaneRows; ++i) rows[i] = min(work.queries.row(own_first + lane_row(i)), work.last_row);
  const bool is_chain = op.tree.ancestors == nullptr;
  const auto mask = [&](int i) {
    const int offset = work.template slot<kSlots>(i) - work.n_past;  // relative to this append's row 0
    const int n_valid = work.template n_valid<kSlots>(i);            // slots from n_valid on belong to the next split
    const bool hides_first = offset < first_seen(op, work.n_past, work.last_row);
    if (offset + kSlots <= (is_chain ? work.first_row + 1 : 0) && n_valid >= kSlots && !hides_first) return;
    if (hides_first) {
      int first[kLaneRows];
      LB_UNROLL
      for (int r = 0; r < kLaneRows; ++r) first[r] = first_seen(op, work.n_past, rows[r]) - offset;
      LB_UNROLL
      for (int j = 0; j < kSlots / 16; ++j)
        for_each_row(tile.s[j], [&](int r, int column, float& score) {
          if (16 * j + column < first[r]) score = kNothingSeen;
        });
    }
    int last[kLaneRows];
    LB_UNROLL
    for (int r = 0; r < kLaneRows; ++r) last[r] = is_chain ? min(rows[r] - offset, n_valid - 1) : n_valid - 1;
    LB_UNROLL
    for (int j = 0; j < kSlots / 16; ++j)
      for_each_row(tile.s[j], [&](int r, int column, float& score) {
        if (16 * j + column > last[r]) score = kNothingSeen;
      });
    if (is_chain) return;
    uint64_t ancestors[kLaneRows];  // bit masks, loaded per tile: at most two tiles have rows of the append
    LB_UNROLL
    for (int r = 0; r < kLaneRows; ++r) ancestors[r] = op.tree.ancestors[rows[r]];
    LB_UNROLL
    for (int j = 0; j < kSlots / 16; ++j) {
      uint32_t seen[kLaneRows];
      LB_UNROLL
      for (int r = 0; r < kLaneRows; ++r) seen[r] = seen_of_16(ancestors[r], offset + 16 * j);
      for_each_row(tile.s[j], [&](int r, int column, float& score) {
        if ((seen[r] >> column & 1) == 0) score = kNothingSeen;
      });
    }
  };

  float shrink[kLaneRows];
  for (int i = 0; i < n_tiles; ++i) {
    k_ring.wait_full();
    tile.start_scores(shared_q, k_tiles + k_ring.stage * kTile);
    if (i == 0) {
      group_wait<0>(tile.s);
      k_ring.arrive(k_ring.empty);
      mask(i);
      tile.update_softmax(shrink);
    } else {
      v_ring.wait_full();
      tile.start_values(v_tiles + v_ring.stage * kTile);
      group_wait<1>(tile.s);
      k_ring.arrive(k_ring.empty);
      mask(i);
      const bool max_grew = tile.update_softmax(shrink);
      group_wait<0>(tile.o);
      v_ring.arrive(v_ring.empty);
      v_ring.step();
      if (max_grew) {
        LB_UNROLL
        for (int d = 0; d < kDim / 16; ++d) for_each_row(tile.o[d], [&](int r, int, float& sum) { sum *= shrink[r]; });
      }
    }
    k_ring.step();
    tile.round_weights();
  }
  if (n_tiles > 0) {
    v_ring.wait_full();
    tile.start_values(v_tiles + v_ring.stage * kTile);
    group_wait<0>(tile.o);
  }

  const int first = opaque(own_first);  // recomputed, so that the loop keeps no registers for the code after it
  float scale[kLaneRows];
  LB_UNROLL
  for (int i = 0; i < kLaneRows; ++i) {
    const int query = first + lane_row(i);
    const float l = row_sum(tile.l[i]);
    scale[i] = 1.0f / l;
    if (p.has_merge && lane() % 4 == 0 && query < work.queries.n)
      write_softmax(p, work.queries, query, tile.m[i], l, work.split);
  }
  if (n_tiles == 0) return;
  if (p.has_merge) {  // partials, as 8-byte writes: the code is short because it runs once
    LB_UNROLL
    for (int i = 0; i < kLaneRows; ++i) {
      const int query = first + lane_row(i);
      if (query >= work.queries.n) continue;
      const long at = long(work.split) * op.rows * op.n_heads + work.queries.at(op, query);
      float* to = p.o + at * kDim + lane() % 4 * 2;
      LB_UNROLL
      for (int d = 0; d < kDim; d += 8) {
        const float* sums = tile.o[d / 16].v + d % 16 / 2 + 2 * i;
        store(to + d, f32x2{sums[0], sums[1]});
      }
    }
    return;
  }
  // Two neighbouring lanes hold two columns each of the same two rows. After an exchange, each lane holds four columns
  // of one row.
  const int own = lane() % 2, query = first + lane_row(own), is_inside = query < work.queries.n;
  const int row = work.queries.row(query), head = work.queries.head(query), first_column = lane() % 4 / 2 * 4;
  float* to = op.o + work.queries.at(op, query) * kDim + first_column;
  const float* gate = nullptr;
  if (op.gate != nullptr && is_inside)
    gate = op.gate + row * op.gate_row_stride + head * op.gate_head_stride + first_column;
  LB_UNROLL
  for (int d = 0; d < kDim; d += 16) {
    LB_UNROLL
    for (int half = 0; half < 2; ++half) {
      float v[4];
      LB_UNROLL
      for (int j = 0; j < 4; ++j) v[j] = tile.o[d / 16].v[4 * half + j] * scale[j / 2];
      f32x4 four;
      LB_UNROLL
      for (int j = 0; j < 2; ++j) {
        const float first_row = v[j], second_row = v[2 + j];
        const float got = shuffle_xor(own ? first_row : second_row, 1);
        four[j] = own ? got : first_row;
        four[2 + j] = own ? second_row : got;
      }
      if (gate != nullptr) {
        LB_UNROLL
        for (int j = 0; j < 4; ++j) four[j] *= sigmoid(gate[d + 8 * half + j]);
      }
      if (is_inside) store(to + d + 8 * half, four);
    }
  }
}

// kCopies: K and V have one type, T, and are copied without conversion.
template <class T, int kDim, bool kCopies, class Work = BlockWork>
LB_DEVICE void attention_prefill_sm90(const AttentionSplits& p) {
  constexpr int kStages = sm90_stages(kDim), kTile = sm90_slots(kDim) * kDim;
  constexpr int kUnitBarriers = kCopies ? 0 : kSm90ProducerWarps * kSm90MaxUnits, kBarriers = 4 * kStages + 1;
  LB_SHARED(CountedBarrier, barriers, kSm90StaticBytes / sizeof(CountedBarrier));  // full size, or tiles start later
  static_assert(sizeof(CountedBarrier) * (kBarriers + kUnitBarriers) <= kSm90StaticBytes);
  unsigned char* shared = dynamic_shared<unsigned char>();
  shared += (kTileAlignment - reinterpret_cast<size_t>(shared) % kTileAlignment) % kTileAlignment;
  T* q = reinterpret_cast<T*>(shared);
  T* k_tiles = q + sm90_query_bytes(kDim) / sizeof(T);
  T* v_tiles = k_tiles + kStages * kTile;
  const Work work(p);
  if (work.split >= live_splits(p, work.n_past)) return;
  if (thread_id() < kBarriers) {
    const bool is_full = thread_id() < 4 * kStages && thread_id() / kStages % 2 == 0;
    barrier_init(&barriers[thread_id()], (is_full ? 1 : 2) * kSm90GroupThreads / 32);
  } else if (thread_id() < kBarriers + kUnitBarriers) {
    barrier_init(&barriers[thread_id()], 1);
  }
  block_barrier();

  CountedBarrier* at = barriers;
  const TileRing k_ring = {.full = at, .empty = at + kStages, .n_stages = kStages};
  const TileRing v_ring = {.full = at + 2 * kStages, .empty = at + 3 * kStages, .n_stages = kStages};
  unsigned char* units = reinterpret_cast<unsigned char*>(v_tiles + kStages * kTile);
  // Three warpgroups share 3 x 168 registers. Conversion needs more registers than copying does, most for short heads.
  constexpr int kProducerRegisters = kCopies ? 40 : kDim == 128 ? 56 : 72;
  constexpr int kConsumerRegisters = (3 * 168 - kProducerRegisters) / 2;
  if (warp() < kSm90GroupThreads / 32) {
    dealloc_registers<kProducerRegisters>();
    if (work.n_slots == 0) return;
    if constexpr (kCopies)
      copy_tiles<T, kDim>(p, work, k_tiles, v_tiles, k_ring, v_ring);
    else
      convert_tiles<kDim>(p, work, k_tiles, v_tiles, units, at + kBarriers, k_ring, v_ring);
  } else {
    alloc_registers<kConsumerRegisters>();
    consume_tiles<T, kDim>(p, work, q, at + 4 * kStages, k_tiles, v_tiles, k_ring, v_ring);
  }
}

#define X(kernel, Type, Stored, kDim) \
  LB_KERNEL(kernel, AttentionSplits, kSm90BlockThreads, 1) { attention_prefill_sm90<Stored, kDim, true>(p); }
LB_ATTENTION_PREFILL_SM90(X)
#undef X
#define X(kernel, Type, Stored, kDim)                            \
  LB_KERNEL(kernel, AttentionSplits, kSm90BlockThreads, 1) {     \
    attention_prefill_sm90<Stored, kDim, true, SelectedWork>(p); \
  }
LB_ATTENTION_SPARSE_SM90(X)
#undef X
#define X(kernel, kDim) \
  LB_KERNEL(kernel, AttentionSplits, kSm90BlockThreads, 1) { attention_prefill_sm90<f16, kDim, false>(p); }
LB_ATTENTION_PREFILL_SM90_PACKED(X)
#undef X

}  // namespace lb::gpu
