// GEMV (gemv.h) with all rows of a block in shared memory together, at most eight per team, for one row of 8-bit x.
//
// Bulk copies fetch the rows from the launch's start on. A slot has one row of each team, and max_in_flight slots are
// in flight. Scales are decoded while the previous kernels still run, so only the dot products remain once x is ready.
// Registers and shared memory leave room for two blocks per SM: the next launch loads its rows concurrently. The order
// of additions depends only on shape and launch. Bound: bandwidth. Notebook: docs/kernels/gemv.md.
// Needs: wgmma
#include "dialect.h"

#include "gpu/gemv/formats_32.h"
#include "gpu/gemv/instances.h"
#include "gpu/gemv/slots_sm90.h"

namespace lb::gpu {

template <class Format>
LB_DEVICE void gemv_whole(const Gemv& p) {
  constexpr int kRows = kGemvWholeRows;  // rows per team, one per slot
  dependents_may_launch();
  const GemvBlock block(p);
  uint8_t* shared = dynamic_shared<uint8_t>();
  // [kRows]: completes when the slot's rows have arrived.
  CountedBarrier* full = reinterpret_cast<CountedBarrier*>(shared + p.ring.barriers_offset);
  const auto slot = [&](int i) { return shared + p.ring.slots_offset + i * p.ring.slot_bytes; };
  const auto copy_slot = [&](int i) {
    if (i * p.n_teams < block.n_rows) {
      copy_rows(p, block, i * p.n_teams, p.n_teams, slot(i), full + i);
    } else {
      barrier_arrive(full + i);  // nothing to copy, but consumers wait for every slot
    }
  };
  if (thread_id() == 0) {
    LB_UNROLL
    for (int i = 0; i < kRows; ++i) barrier_init(full + i, 1);
    fence_async_proxy();
    LB_UNROLL_BY(1)
    for (int i = 0; i < p.ring.max_in_flight; ++i) copy_slot(i);
  }
  block_barrier();
  // The first warps copy one more slot each once slot warp() has arrived.
  const int own = p.ring.max_in_flight + warp();
  if (own < kRows && lane() == 0) {
    barrier_wait(full + warp(), 0);
    copy_slot(own);
  }
  warp_barrier();

  // A team without a row in a slot sums stale bytes there; the sum is not used.
  const bool has_piece = block.column < p.row_pieces;
  const typename Format::Rows::InSlot rows(p, 1, block.team, has_piece ? block.column : 0);
  typename Format::Scale scales[kRows];
  LB_UNROLL
  for (int i = 0; i < kRows; ++i) {
    barrier_wait(full + i, 0);
    scales[i] = Format::scale_of(rows.read(p, slot(i), 0), block.column);
  }
  wait_for_previous();
  typename Format::X x;
  if (has_piece) x.read(p, 0, block.column);
  PassSums sums(p, block, block_id_y(), 0, block.n_rows, false);
  float total[kRows];
  LB_UNROLL
  for (int i = 0; i < kRows; ++i) total[i] = Format::dot(rows.read(p, slot(i), 0), scales[i], x);
  sums.store_sums(p, block, block.team, total);
  sums.finish();
}

#define X(kernel, Type, Format) \
  LB_KERNEL(kernel, Gemv, kGemvWholeThreads, 2) { gemv_whole<Format>(p); }
LB_GEMV_WHOLE_KERNELS(X)
#undef X

}  // namespace lb::gpu
