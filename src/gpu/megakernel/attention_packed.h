// kAttentionSplits over pages of any two types, with f16 operands (attention.h handles F32, F16 and BF16 pages of one
// type).
//
// Slots arrive in shared memory in their stored form, up to four tiles ahead, and are converted to f16 there. The row's
// own K and V are encoded in shared memory and copied from there to the cache; in their tile they replace the row's
// slot. If V is rotated, every split rotates its o back, which is valid because the rotation is linear.
#pragma once

#include "gpu/attention/kv_store.h"
#include "gpu/attention/packed_slots.h"
#include "gpu/megakernel/attention_sums.h"
#include "gpu/megakernel/row_head.h"

namespace lb::gpu {

// Ring of packed tiles in shared memory: K's slots, then V's.
struct PackedRing {
  const SplitTask& p;
  int kv_head, begin, n_tiles;
  unsigned char* stages;  // [packed.stages]

  LB_DEVICE PackedSlots<kSplitTile> slots(bool is_v) const { return {is_v ? p.packed.v : p.packed.k}; }
  LB_DEVICE unsigned char* stage(int tile) const {
    return stages + (tile & (p.packed.stages - 1)) * (slots(false).size() + slots(true).size());
  }

  LB_DEVICE void issue(int tile) const {
    if (tile < n_tiles) {
      const KvLayer& cache = p.op.cache;
      const int slot = begin + tile * kSplitTile;
      const int32_t page = page_of(cache, slot);
      unsigned char* to = stage(tile);
      LB_UNROLL_BY(1)
      for (int is_v = 0; is_v < 2; ++is_v) {
        const PackedSlots<kSplitTile> own = slots(is_v != 0);
        const uint8_t* head = head_of(is_v ? cache.v : cache.k, own.bytes, cache, page, kv_head);
        own.copy(to, head, slot % kPageTokens, thread_id(), n_threads());
        to += own.size();
      }
    }
    copy_commit();  // even without copies, because wait() counts groups
  }

  // Waits for the oldest tile.
  LB_DEVICE void wait() const {
    if (p.packed.stages == 4)
      copy_wait<3>();
    else if (p.packed.stages == 2)
      copy_wait<1>();
    else
      copy_wait<0>();
  }
};

// The row's own K or V in stored form, in shared memory: codes, high bits, scales.
LB_DEVICE quant::KvRow own_slot(const SplitTask& p, const SplitMemory<f16>& memory, bool is_v) {
  return PackedSlots<1>{is_v ? p.packed.v : p.packed.k}.row(memory.own(is_v), 0);
}

// Encodes the row's K or V in shared memory, and copies it to the cache. Called by a warp.
LB_DEVICE void store_own(const SplitTask& p, const SplitMemory<f16>& memory, bool is_v, int32_t page, int kv_head,
                         f32x4 (&x)[RowHead::kFours]) {
  const KvLayer& cache = p.op.cache;
  const KvRowBytes& bytes = is_v ? p.packed.v : p.packed.k;
  store_head(is_v ? cache.v_type : cache.k_type, own_slot(p, memory, is_v), x, cache.head_dim);
  warp_barrier();
  const quant::KvRow to = row_of(head_of(is_v ? cache.v : cache.k, bytes, cache, page, kv_head), bytes,
                                 mega_state().numbers.n_past % kPageTokens);
  const unsigned char* from = memory.own(is_v);
  LB_UNROLL_BY(1)
  for (int i = 2 * lane(); i < bytes.codes + bytes.high + bytes.scales; i += 64) {
    const int in_high = i - bytes.codes, in_scales = in_high - bytes.high;
    uint8_t* at = in_high < 0     ? to.codes + i
                  : in_scales < 0 ? to.high + in_high
                                  : reinterpret_cast<uint8_t*>(to.scales) + in_scales;
    store(at, load<uint16_t>(from + i));
  }
}

// Converts a tile to operands. Slot `own` is the row's own; slots from n on become zero.
LB_DEVICE void unpack_tile(const PackedRing& ring, const SplitMemory<f16>& memory, int tile, int own, int n) {
  const SplitTask& p = ring.p;
  const int dim = p.op.cache.head_dim, n_chunks = dim / 64;
  unsigned char* from = ring.stage(tile);
  LB_UNROLL_BY(1)
  for (int is_v = 0; is_v < 2; ++is_v) {
    const PackedSlots<kSplitTile> slots = ring.slots(is_v != 0);
    const quant::KvRow own_row = own_slot(p, memory, is_v != 0);
    f16* to = is_v ? memory.v : memory.k;
    with_kv_type(is_v ? p.op.cache.v_type : p.op.cache.k_type, [&](auto tag) {
      const int shift = scale_shift(tag.kType, dim);
      LB_UNROLL_BY(1)
      for (int i = thread_id() / 8; i < kSplitTile * n_chunks; i += kMegaThreads / 8) {  // eight threads per chunk
        const int slot = quotient(i, p.chunks_step), column = (i - slot * n_chunks) * 64 + thread_id() % 8 * 8;
        u32x4 eight = {};
        if (slot < n) eight = unpack_eight<tag.kType>(slot == own ? own_row : slots.row(from, slot), column, shift);
        store(to + slot * memory.stride + column, eight);
      }
    });
    from += slots.size();
  }
}

// Rotates the block's o back and writes it, one warp per query.
LB_DEVICE void write_unrotated(const SplitTask& p, const SplitMemory<f16>& memory, const SplitUnit& unit,
                               uint32_t tag) {
  if (warp() >= unit.n_queries) return;
  const int dim = p.op.cache.head_dim;
  f32x4 x[RowHead::kFours];
  LB_UNROLL
  for (int j = 0; j < RowHead::kFours; ++j) {
    x[j] = {};
    if (head_column(j) < dim) x[j] = load<f32x4>(memory.heads + warp() * dim + head_column(j));
  }
  unrotate_head(x, p.packed.v_rotated);
  Mailbox* mailboxes = mega_state().mailboxes + p.split_mailbox.at;
  LB_UNROLL
  for (int j = 0; j < RowHead::kFours; ++j) {
    if (head_column(j) >= dim) continue;
    Mailbox* to = mailboxes + mailbox_index(split_at(p, unit.first_head + warp(), unit.split, head_column(j)));
    store_relaxed(to, mailbox_of(x[j][0], tag), mailbox_of(x[j][1], tag));
    store_relaxed(to + kHalfGroup, mailbox_of(x[j][2], tag), mailbox_of(x[j][3], tag));
  }
}

LB_NOINLINE void attention_split_packed(const SplitTask& p, int i, bool is_first, void* pool, PhaseWait wait) {
  assume_shared(&p);
  const Attention& op = p.op;
  const KvLayer& cache = op.cache;
  const int dim = cache.head_dim, n_past = mega_state().numbers.n_past;
  const SplitUnit unit(p, i, n_past);
  const int n_tiles = unit.n_tiles();
  if (n_tiles == 0) {
    if (is_first) wait.without_mailboxes();
    return;
  }
  const SplitMemory<f16> memory(pool, dim, 1);
  const int own = n_past - unit.begin, of_kind = warp() - unit.n_queries;  // own: the row's slot, relative to the split
  const bool is_query = of_kind < 0, is_maker = of_kind < (unit.end > n_past ? 2 : 0);
  RowHead head(p, of_kind, unit.first_head + warp(), unit.kv_head);
  const int32_t own_page = page_of(cache, n_past);
  const PackedRing ring = {p, unit.kv_head, unit.begin, n_tiles, memory.stored + 2 * kOwnSlotBytes};
  LB_UNROLL_BY(1)
  for (int tile = 0; tile < p.packed.stages; ++tile) ring.issue(tile);
  if (is_first) wait();
  head.load_table();
  SplitSums<f16> sums(p, unit);

  if (is_maker) {
    f32x4 x[RowHead::kFours];
    head.make(p.prepare, memory.heads + warp() * dim, wait, x);
    if (is_query) {
      if (p.packed.k_rotated != 0) rotate_head(x, p.packed.k_rotated);
      const float scale = op.scale * kLog2E;
      LB_UNROLL
      for (int j = 0; j < RowHead::kFours; ++j) {
        if (head.at[j] < 0) continue;
        Vec<f16, 4> rounded;
        LB_UNROLL
        for (int c = 0; c < 4; ++c) rounded[c] = to_f16(x[j][c] * scale);
        store(memory.queries + warp() * memory.stride + RowHead::column(j), rounded);
      }
    } else {
      store_own(p, memory, of_kind > 0, own_page, unit.kv_head, x);
    }
  }

  LB_UNROLL_BY(1)
  for (int tile = 0; tile < n_tiles; ++tile) {
    const int slot = tile * kSplitTile, n = min(unit.end - unit.begin - slot, kSplitTile);
    ring.wait();
    block_barrier();  // the slots and the row have arrived, and no thread reads the previous tile any more
    if (is_first && tile == 0 && !wait.is_barrier) wait.mark_ready();
    unpack_tile(ring, memory, tile, own - slot, n);
    block_barrier();
    ring.issue(tile + p.packed.stages);
    sums.add_tile(p, memory, unit, 0, n);
  }
  if (p.packed.v_rotated == 0) return sums.write(p, unit, wait.tag);
  block_barrier();  // no thread reads the tile any more
  sums.write_softmax(p, unit, wait.tag);
  sums.put(unit, memory.heads, dim);
  block_barrier();
  write_unrotated(p, memory, unit, wait.tag);
}

}  // namespace lb::gpu
