// Split-K attention of one row, including AttentionPrepare, in two tasks.
//
// kAttentionSplits: a block computes one split of the context for up to 6 queries of a KV head. It computes the queries
// itself, and the row's own K and V if its split contains the row's slot. Tiles of 16 slots of K and V are
// double-buffered in shared memory; the first tile is loaded before the projections arrive. Queries are rounded to the
// cache's type, and so are the softmax weights on matrix units; sums are fp32.
//
// kAttentionMerge: merges the splits into one softmax. A block handles some columns of a head, a thread four columns of
// one split.
//
// Bound: latency for a short context, one read of K and V for a long one. The code is short for the reasons given in
// delta.h: dimensions are multiples of 64, and the host does the divisions.
#pragma once

#include "gpu/megakernel/attention_packed.h"

namespace lb::gpu {

// Copies slots [begin, begin + n_there) of a head to a tile. The tile's slots [n_there, n) are the row's own and are
// not copied. V is zero from slot n on, because a NaN times a weight of zero is still NaN. Warps take the slots in
// turn.
template <class T>
LB_DEVICE void load_tile(const KvLayer& cache, int kv_head, int begin, int n_there, int n, int tile,
                         const SplitMemory<T>& memory) {
  const int dim = cache.head_dim;
  LB_UNROLL_BY(1)
  for (int s = warp(); s < kSplitTile; s += n_warps()) {
    const bool is_there = s < n_there;
    if (!is_there && s < n) continue;  // the row's own slot
    const long from = is_there ? slot_row(cache, begin + s, kv_head) * dim : 0;
    const int to = memory.row(tile, s);
    LB_UNROLL_BY(1)
    for (int i = lane() * int(16 / sizeof(T)); i < dim; i += 512 / sizeof(T)) {
      if (is_there) {
        copy_async<16>(memory.k + to + i, static_cast<const T*>(cache.k) + from + i);
        copy_async<16>(memory.v + to + i, static_cast<const T*>(cache.v) + from + i);
      } else {
        store(memory.v + to + i, u32x4{});
      }
    }
  }
  copy_commit();
}

// Computes unit i. is_first: it is the block's first unit.
template <class T>
LB_NOINLINE void attention_split(const SplitTask& p, int i, bool is_first, void* pool, PhaseWait wait) {
  assume_shared(&p);
  const Attention& op = p.op;
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim, n_past = mega_state().numbers.n_past;
  const SplitUnit unit(p, i, n_past);
  const int kv_head = unit.kv_head, begin = unit.begin, end = unit.end, n_tiles = unit.n_tiles();
  if (n_tiles == 0) {
    if (is_first) wait.without_mailboxes();
    return;
  }
  const SplitMemory<T> memory(pool, dim, 2);
  const int own = n_past - begin, of_kind = warp() - unit.n_queries;  // own: the row's slot, relative to the split
  const bool is_query = of_kind < 0, is_maker = of_kind < (end > n_past ? 2 : 0);
  RowHead head(p, of_kind, unit.first_head + warp(), kv_head);
  const int32_t own_page = page_of(cache, n_past);
  load_tile(cache, kv_head, begin, min(end, n_past) - begin, end - begin, 0, memory);
  if (is_first) wait();
  head.load_table();
  SplitSums<T> sums(p, unit);

  if (is_maker) {
    f32x4 x[RowHead::kFours];
    head.make(p.prepare, memory.heads + warp() * dim, wait, x);
    // Queries go to shared memory. K and V go to the cache, and also to the first tile if their slot falls in it.
    const float scale = is_query ? op.scale * kLog2E : 1.0f;
    T* to =
        is_query ? memory.queries + warp() * memory.stride : (of_kind > 0 ? memory.v : memory.k) + own * memory.stride;
    T* slot = static_cast<T*>(of_kind > 0 ? cache.v : cache.k) + row_in(cache, own_page, n_past, kv_head) * dim;
    LB_UNROLL
    for (int j = 0; j < RowHead::kFours; ++j) {
      if (head.at[j] < 0) continue;
      Vec<T, 4> rounded;
      LB_UNROLL
      for (int c = 0; c < 4; ++c) rounded[c] = stored_as(x[j][c] * scale, T{});
      if (is_query || own < kSplitTile) store(to + RowHead::column(j), rounded);
      if (!is_query) store(slot + RowHead::column(j), rounded);
    }
  }

  LB_UNROLL_BY(1)
  for (int tile = 0; tile < n_tiles; ++tile) {
    const int slot = begin + tile * kSplitTile, left = end - slot;
    copy_wait<0>();
    block_barrier();  // the tile has arrived, and no thread reads the previous tile any more
    if (is_first && tile == 0 && !wait.is_barrier) wait.mark_ready();
    if (tile + 1 < n_tiles)
      load_tile(cache, kv_head, slot + kSplitTile, left - kSplitTile, left - kSplitTile, (tile + 1) % 2, memory);
    sums.add_tile(p, memory, unit, tile % 2, min(left, kSplitTile));
  }
  sums.write(p, unit, wait.tag);
}

LB_DEVICE void attention_splits(const SplitTask& p, int part, int n_parts, void* pool, PhaseWait wait) {
  LB_UNROLL_BY(1)
  for (int i = part; i < p.n_units; i += n_parts) {
    const bool is_first = i == part;
    if (!is_first) block_barrier();  // the next unit overwrites tiles and queries
    if (p.packed.stages > 0) {
      attention_split_packed(p, i, is_first, pool, wait);
      continue;
    }
    switch (p.op.cache.k_type) {
      case KvType::kF16: attention_split<f16>(p, i, is_first, pool, wait); break;
      case KvType::kBF16: attention_split<bf16>(p, i, is_first, pool, wait); break;
      default: attention_split<float>(p, i, is_first, pool, wait);
    }
  }
}

// The splits' results for one head. A lane holds m and l of some of the non-empty splits, and four columns of o of one
// split.
struct SplitResults {
  static constexpr int kSplitsOfLane = kSplitMaxCount / 32;
  float m[kSplitsOfLane], l[kSplitsOfLane], own_m, gate;
  f32x4 o;

  // A negative column reads no o; a negative gate_at reads no gate.
  LB_DEVICE void read(const SplitTask& p, int head, int split, int column, int gate_at, int n_there,
                      const PhaseWait& wait) {
    const uint32_t tag = wait.tag_of(p.split_mailbox), gate_tag = wait.tag_of(p.gate_mailbox);
    const Mailbox *mailboxes = mega_state().mailboxes, *of_splits = mailboxes + p.split_mailbox.at;
    const Mailbox* own = of_splits + mailbox_index(column >= 0 ? split_at(p, head, split, column) : 0);
    const Mailbox* of_m = of_splits + split_sums_at(p, head, 0);
    Mailbox of_o[4], of_own_m, of_gate, pairs[kSplitsOfLane][2];
    poll_until_valid(wait, [&] {
      of_gate = Mailbox(gate_tag) << 32;
      of_own_m = of_o[0] = of_o[1] = of_o[2] = of_o[3] = Mailbox(tag) << 32 | quant::bits_of(kNothingSeen);
      if (gate_at >= 0) of_gate = load_relaxed(mailboxes + gate_at);
      if (column >= 0) {
        load_relaxed(own, of_o[0], of_o[1]);
        load_relaxed(own + kHalfGroup, of_o[2], of_o[3]);
        of_own_m = load_relaxed(of_m + 2 * split);
      }
      LB_UNROLL
      for (int j = 0; j < kSplitsOfLane; ++j) {
        pairs[j][0] = pairs[j][1] = Mailbox(tag) << 32;
        if (lane() + 32 * j < n_there) load_relaxed(of_m + 2 * (lane() + 32 * j), pairs[j][0], pairs[j][1]);
      }
      uint32_t differs = uint32_t(of_gate >> 32) ^ gate_tag;
      LB_UNROLL
      for (int j = 0; j < 4; ++j) differs |= uint32_t(of_o[j] >> 32) ^ tag;
      differs |= uint32_t(of_own_m >> 32) ^ tag;
      LB_UNROLL
      for (int j = 0; j < kSplitsOfLane; ++j)
        differs |= (uint32_t(pairs[j][0] >> 32) ^ tag) | (uint32_t(pairs[j][1] >> 32) ^ tag);
      return differs;
    });
    LB_UNROLL
    for (int j = 0; j < 4; ++j) o[j] = column >= 0 ? value_in(of_o[j]) : 0.0f;
    own_m = value_in(of_own_m);
    gate = gate_at >= 0 ? sigmoid(value_in(of_gate)) : 1.0f;
    LB_UNROLL
    for (int j = 0; j < kSplitsOfLane; ++j) {
      m[j] = lane() + 32 * j < n_there ? value_in(pairs[j][0]) : kNothingSeen;
      l[j] = value_in(pairs[j][1]);
    }
  }
};

LB_NOINLINE void attention_merge(const SplitTask& p, int part, int n_parts, float* pool, PhaseWait wait) {
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

    SplitResults results;
    results.read(
        p, head, split, split < n_there && column < dim ? column : -1,
        has_gate ? p.gate_mailbox.at + mailbox_index(p.gate_at + head * int(op.gate_head_stride) + written) : -1,
        n_there, wait);
    if (i == part && !wait.is_barrier) wait.mark_ready();
    float largest = kNothingSeen, total = 0;
    LB_UNROLL
    for (const float m : results.m) largest = max(largest, m);
    largest = warp_max(largest);
    LB_UNROLL
    for (int j = 0; j < SplitResults::kSplitsOfLane; ++j)
      total = fma(exp2_fast(results.m[j] - largest), results.l[j], total);
    total = warp_sum(total);
    const float weight = exp2_fast(results.own_m - largest);
    f32x4 o = results.o;
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
      wait.write(p.y_mailbox + mailbox_index(head * dim + written), sum / total * results.gate);
    }
    if (i + n_parts < p.n_merge_units) block_barrier();  // the next unit overwrites the sums
  }
}

}  // namespace lb::gpu
