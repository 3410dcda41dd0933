// The weights of a block's products, brought into shared memory by bulk copies in the order they are met. Weights depend
// on nothing, so the copies run ahead of the phases, as far as the ring of slots has room: device memory is read while
// a block waits for others or works on something else.
//
// A slot has a unit, some whole rows of a product's weights, plane behind plane. All warps read a unit and give it
// back; the last warp then brings the unit that comes next in the order into its slot, at the latest while it waits.
#pragma once

#include "launch/megakernel_shape.h"
#include "transfer.h"

namespace lb::gpu {

// Where plane `plane` of a unit begins in its slot. What is copied begins and ends at multiples of 16.
LB_DEVICE int plane_at(const StreamStep& step, int plane) {
  int at = 0;
  LB_UNROLL
  for (int i = 0; i < quant::kMaxPlanes - 1; ++i)
    if (i < plane) at += int(step.unit_bytes[i]) + 16;
  return at;
}
LB_DEVICE int skew(const StreamStep& step, int plane) {
  return int(reinterpret_cast<uintptr_t>(step.planes[plane]) % 16);
}

struct RingPlace {
  int slot, parity;
  LB_DEVICE void advance(int n_slots) {
    if (++slot < n_slots) return;
    slot = 0;
    parity ^= 1;
  }
};

// In shared memory.
struct WeightStream {
  CountedBarrier full[kMegaMostSlots], empty[kMegaMostSlots];
  const StreamStep* steps;  // [n_steps], in shared memory
  int n_steps, n_slots, slot_bytes;
  int slots_at;     // in dynamic shared memory
  int step;         // of the next product
  RingPlace place;  // of its first unit
  RingPlace behind;
  int n_behind;                           // units read and not yet replaced, from `behind` on
  int next_step, next_unit, tokens_left;  // to bring

  // By one thread, before a barrier of the block.
  LB_DEVICE void init(const Mega& p) {
    unsigned char* shared = dynamic_shared<unsigned char>();
    steps = reinterpret_cast<const StreamStep*>(shared + p.streams_at);
    n_steps = p.stream_counts[block_id()];
    n_slots = p.n_slots;
    slot_bytes = p.slot_bytes;
    slots_at = p.slots_at;
    for (int i = 0; i < n_slots; ++i) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, n_warps());
    }
    show_to_products();
    step = n_behind = next_step = next_unit = 0;
    place = behind = {0, 0};
    tokens_left = n_steps > 0 ? p.n_tokens : 0;
  }

  // By the last warp: the first units, and later, when it has given back n units, those that replace all but `keep` of
  // what has been read.
  LB_DEVICE void fill() {
    for (int i = 0; i < n_slots; ++i) bring(i);
  }
  LB_DEVICE void replace(int n, int keep) {
    RingPlace at = behind;
    n += n_behind;
    for (; n > keep; --n) {
      barrier_wait(empty + at.slot, at.parity);
      bring(at.slot);
      at.advance(n_slots);
    }
    warp_barrier();
    if (lane() == 0) {
      behind = at;
      n_behind = n;
    }
    warp_barrier();
  }

  LB_DEVICE static bool is_bringer() { return warp() == n_warps() - 1; }

 private:
  // The next unit, each plane by a lane.
  LB_DEVICE void bring(int slot) {
    if (tokens_left == 0) return;
    const int i = next_step, unit = next_unit, plane = min(lane(), quant::kMaxPlanes - 1);
    const StreamStep& from = steps[i];
    const bool is_last = unit + 1 == int(from.n_units);
    const int bytes = int(is_last ? from.last_bytes[plane] : from.unit_bytes[plane]), begin = skew(from, plane);
    const int padded = bytes > 0 && lane() < quant::kMaxPlanes ? (begin + bytes + 15) / 16 * 16 : 0;
    int all = padded + shuffle_xor(padded, 1);
    all += shuffle_xor(all, 2);
    warp_barrier();  // every lane knows what is next
    if (lane() == 0) {
      barrier_expect(full + slot, all);
      next_unit = is_last ? 0 : unit + 1;
      if (is_last) next_step = i + 1 == n_steps ? 0 : i + 1;
      if (is_last && i + 1 == n_steps) --tokens_left;
    }
    warp_barrier();
    if (padded > 0)
      copy_bulk(dynamic_shared<unsigned char>() + slots_at + slot * slot_bytes + plane_at(from, plane),
                from.planes[plane] - begin + size_t(unit) * from.unit_bytes[plane], padded, full + slot);
  }
};

}  // namespace lb::gpu
