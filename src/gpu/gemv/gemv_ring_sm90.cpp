// GEMV (gemv.h) with weights through a ring in shared memory, for one row of 8-bit x: large launches of long rows.
//
// One block per SM. A producer warp fills the ring by bulk copies from the launch's start on, so that memory stays busy
// while the previous kernels end. At most max_in_flight slots are in flight: more would not arrive sooner, and would
// delay the previous kernels' reads and writes. A slot has kGemvSlotRows rows of each team. Consumers keep the rows of
// two slots in registers, with scales decoded. The order of additions depends only on shape and launch.
// Bound: bandwidth. Notebook: docs/kernels/gemv.md.
// Needs: wgmma
#include "dialect.h"

#include "gpu/gemv/formats_16.h"
#include "gpu/gemv/formats_32.h"
#include "gpu/gemv/instances.h"
#include "gpu/gemv/slots_sm90.h"

namespace lb::gpu {

// A position in the ring, with the phase parity of its barriers.
struct RingCursor {
  CountedBarrier *full, *empty;  // [n_slots]: full, rows have arrived; empty, all consumer warps have read them
  uint8_t* slots;
  int slot = 0, parity = 0;

  LB_DEVICE explicit RingCursor(const Gemv& p) {
    uint8_t* begin = dynamic_shared<uint8_t>();
    full = reinterpret_cast<CountedBarrier*>(begin + p.ring.barriers_offset);
    empty = full + p.ring.n_slots;
    slots = begin + p.ring.slots_offset;
  }
  LB_DEVICE void next(const Gemv& p) {
    if (++slot < p.ring.n_slots) return;
    slot = 0;
    parity ^= 1;
  }
};

// Copies the rows [from, end) of the block, slot by slot. Called by one thread. `in_flight` is the oldest slot in
// flight.
LB_DEVICE void fill_ring(const Gemv& p, const GemvBlock& block, int from, int end, RingCursor& ring,
                         RingCursor& in_flight) {
  const int slot_rows = kGemvSlotRows * p.n_teams;
  LB_UNROLL_BY(1)
  for (int row = from; row < end; row += slot_rows) {
    barrier_wait(ring.empty + ring.slot, ring.parity ^ 1);
    if (row >= p.ring.max_in_flight * slot_rows) {
      barrier_wait(in_flight.full + in_flight.slot, in_flight.parity);
      in_flight.next(p);
    }
    copy_rows(p, block, row, slot_rows, ring.slots + ring.slot * p.ring.slot_bytes, ring.full + ring.slot);
    ring.next(p);
  }
}

template <class Format>
LB_DEVICE void gemv_ring(const Gemv& p) {
  constexpr int kAhead = 2 * kGemvSlotRows;  // rows of a team in registers
  dependents_may_launch();
  GemvBlock block(p);
  block.begin *= p.ring.unit_rows;
  block.n_rows *= p.ring.unit_rows;
  RingCursor ring(p), in_flight(p);
  const bool is_producer = shuffle(block.team, 0) == p.n_teams;  // the last warp
  int n_copied = 0;
  if (is_producer && lane() == 0) {
    for (int i = 0; i < p.ring.n_slots; ++i) {
      barrier_init(ring.full + i, 1);
      barrier_init(ring.empty + i, p.n_teams * p.row_threads / 32);
    }
    fence_async_proxy();
    n_copied = min(p.ring.max_in_flight * kGemvSlotRows * p.n_teams, block.n_rows);
    fill_ring(p, block, 0, n_copied, ring, in_flight);  // does not wait, because all these slots are empty
  }
  block_barrier();

  const bool has_piece = block.column < p.row_pieces;
  const typename Format::Rows::InSlot rows(p, kGemvSlotRows, block.team, block.column);
  typename Format::Piece pieces[kAhead] = {};
  typename Format::Scale scales[kAhead] = {};
  // First row of the next slot. In the last slot, teams without a row sum stale bytes; those sums are not used.
  int next = 0;
  const auto read = [&](int first) {
    if (next >= block.n_rows) return;
    next += kGemvSlotRows * p.n_teams;
    barrier_wait(ring.full + ring.slot, ring.parity);
    const uint8_t* slot = ring.slots + ring.slot * p.ring.slot_bytes;
    LB_UNROLL
    for (int row = 0; row < kGemvSlotRows; ++row) {
      if (!has_piece) break;
      pieces[first + row] = rows.read(p, slot, row);
      scales[first + row] = Format::scale_of(pieces[first + row], block.column);
    }
    warp_barrier();
    if (lane() == 0) barrier_arrive(ring.empty + ring.slot);
    ring.next(p);
  };
  typename Format::X x;
  if (!is_producer) {
    LB_UNROLL
    for (int row = 0; row < kAhead; row += kGemvSlotRows) read(row);
    wait_for_previous();
    if (has_piece) x.read(p, 0, block.column);
  }

  for (int pass = 0; pass < block.n_rows; pass += p.pass_rows) {
    const int pass_end = min(pass + p.pass_rows, block.n_rows);
    PassSums sums(p, block, block_id_y(), pass, pass_end, false);
    if (is_producer) {
      // As far as the ring has room, counting the slots that consumers free in this pass by reading ahead.
      const int end = min(pass_end + (kAhead + kGemvSlotRows * p.ring.n_slots) * p.n_teams, block.n_rows);
      if (lane() == 0) fill_ring(p, block, n_copied, end, ring, in_flight);
      n_copied = max(end, n_copied);
    } else {
      for (int step = pass; step < pass_end; step += 8 * p.n_teams) {
        float total[8];
        LB_UNROLL
        for (int i = 0; i < 8; i += kGemvSlotRows) {
          LB_UNROLL
          for (int row = i; row < i + kGemvSlotRows; ++row)
            total[row] = Format::dot(pieces[row % kAhead], scales[row % kAhead], x);
          read(i % kAhead);
        }
        sums.store_sums(p, block, step - pass + block.team, total);
      }
    }
    sums.finish();
    block_barrier();  // the next pass overwrites the sums
  }
}

#define X(kernel, Type, Format) \
  LB_KERNEL(kernel, Gemv, kGemvRingThreads, 1) { gemv_ring<Format>(p); }
LB_GEMV_RING_KERNELS(X)
#undef X

}  // namespace lb::gpu
