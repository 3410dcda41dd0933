// The ring of packed tiles, for any two K and V types except F32. Asynchronous copies bring tiles to shared memory as
// the pages store them; take() converts them to f16 operands. Packed tiles are small, so a large part of the context is
// in flight. Without asynchronous copies (ring 0), take() reads the tile from its page.
#pragma once

#include "gpu/attention/packed_slots.h"
#include "gpu/attention/tile.h"

namespace lb::gpu {

struct Packed {};  // stored values of any type; K and V may differ
template <>
struct OperandOf<kHasBf16Matrix, Packed> {
  using Type = f16;
};

// Converts slots of one type to operands [kSlots][operand_stride(kDim)]. Slots from n_valid on become zero, as in
// copy_slots.
template <KvType kType, class From, int kDim, int kSlots, int kThreads>
LB_DEVICE void convert_slots(f16* to, const quant::KvRow& first, int n_valid, int thread) {
  constexpr KvRowBytes kBytes = kv_row_bytes(kType, kDim);
  constexpr int kRounds = kSlots * kDim / 8 / kThreads, kInFlight = 2;
  static_assert(kRounds % kInFlight == 0);
  LB_UNROLL_BY(1)
  for (int done = 0; done < kRounds; done += kInFlight) {
    u32x4 operands[kInFlight];  // loads precede stores, because the compiler cannot reorder them
    LB_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      const int piece = thread + (done + i) * kThreads, slot = piece / (kDim / 8), column = piece % (kDim / 8) * 8;
      operands[i] = {};
      if (slot < n_valid)
        operands[i] = load_operands<kType, From>({first.codes + slot * kBytes.codes, first.high + slot * kBytes.high,
                                                  first.scales + slot * (kBytes.scales / 2)},
                                                 column, scale_shift(kType, kDim));
    }
    LB_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      const int piece = thread + (done + i) * kThreads, slot = piece / (kDim / 8), column = piece % (kDim / 8) * 8;
      store(to + slot * operand_stride(kDim) + column, operands[i]);
    }
  }
}

template <int kDim, int kSlots, int kThreads, class Barrier, class Slots, int kParts>
struct Ring<Packed, kDim, kSlots, kThreads, Barrier, Slots, kParts> {
  static constexpr int kTile = kSlots * operand_stride(kDim);

  const AttentionSplits& p;
  int kv_head, thread;
  f16* buffers;                        // operands [kTile], then packed tiles [p.ring][p.tile_bytes]
  int first_slot, step, end, n_tiles;  // tile i: slots from first_slot + i * step on, below `end`
  Barrier barrier = {};
  const Slots* slots = nullptr;  // null for AllSlots
  int n_issued = 0, n_taken = 0, next = 0, now = 0;

  LB_DEVICE static int values(const AttentionSplits& p) { return kTile + p.ring * p.tile_bytes / 2; }

  LB_DEVICE uint8_t* packed(int i) const { return reinterpret_cast<uint8_t*>(buffers + kTile) + i * p.tile_bytes; }
  // Source of tile i: its type, its first slot, and whether it belongs to V.
  struct Source {
    KvType type;
    int slot;
    bool is_v;
  };
  LB_DEVICE Source source(int i) const {
    const bool is_v = i % kParts != 0;
    return {is_v ? p.op.cache.v_type : p.op.cache.k_type, first_slot + i / kParts * step, is_v};
  }
  // The row of the tile's first slot.
  LB_DEVICE quant::KvRow row(const Source& tile, const KvRowBytes& bytes) const {
    const KvLayer& cache = p.op.cache;
    return row_of(head_of(tile.is_v ? cache.v : cache.k, bytes, cache, page_of(cache, tile.slot), kv_head), bytes,
                  tile.slot % kPageTokens);
  }

  // Each plane's rows are contiguous, so slots beyond `end` are copied too: they are in the page, with arbitrary
  // content.
  LB_DEVICE void issue() {
    if (kHasAsyncCopy && n_issued < kParts * n_tiles) {
      const Source tile = source(n_issued);
      const KvRowBytes bytes = row_bytes(tile.type, kDim);
      const KvLayer& cache = p.op.cache;
      const uint8_t* head = head_of(tile.is_v ? cache.v : cache.k, bytes, cache, page_of(cache, tile.slot), kv_head);
      if constexpr (Slots::kMoves) {
        if (slots->moves(tile.slot + kSlots))
          PackedSlots<kSlots>{bytes}.copy_each(
              packed(next),
              [&](int i) {
                const int slot = slots->slot(tile.slot + i);
                return row_of(head_of(tile.is_v ? cache.v : cache.k, bytes, cache, page_of(cache, slot), kv_head),
                              bytes, slot % kPageTokens);
              },
              min(end - tile.slot, kSlots), thread, kThreads);
        else
          PackedSlots<kSlots>{bytes}.copy(packed(next), head, tile.slot % kPageTokens, thread, kThreads);
      } else {
        PackedSlots<kSlots>{bytes}.copy(packed(next), head, tile.slot % kPageTokens, thread, kThreads);
      }
      next = next + 1 == p.ring ? 0 : next + 1;
      ++n_issued;
    }
    copy_commit();  // even without copies, because copy_wait counts groups
  }
  LB_DEVICE void start() {
    for (int i = 0; i < p.ring - 1; ++i) issue();
  }
  // Waits for the next tile, frees the previous tile's buffer, and converts.
  LB_DEVICE const f16* take() {
    const Source tile = source(n_taken++);
    if (p.ring == 4) copy_wait<2>();
    if (p.ring == 3) copy_wait<1>();
    if (p.ring == 2) copy_wait<0>();
    barrier();  // other threads' copies have arrived, and no thread reads the operands any more
    if (kHasAsyncCopy && p.ring != 0) {
      issue();
      convert<FromShared>(tile, packed(now));
      now = now + 1 == p.ring ? 0 : now + 1;
    } else {
      convert<FromGlobal>(tile, nullptr);
    }
    barrier();
    return buffers;
  }

  template <class From>
  LB_DEVICE void convert(const Source& tile, uint8_t* in_shared) {
    const int own = opaque(thread);  // recomputed, so that no type's offsets occupy registers throughout the loop
    with_kv_type(tile.type, [&](auto tag) {
      if constexpr (tag.kType != KvType::kF32) {
        constexpr KvRowBytes kBytes = kv_row_bytes(tag.kType, kDim);
        quant::KvRow first = {in_shared, in_shared + kSlots * kBytes.codes,
                              reinterpret_cast<uint16_t*>(in_shared + kSlots * (kBytes.codes + kBytes.high))};
        if (in_shared == nullptr) first = row(tile, kBytes);
        convert_slots<tag.kType, From, kDim, kSlots, kThreads>(buffers, first, end - tile.slot, own);
      }
    });
  }
};

}  // namespace lb::gpu
