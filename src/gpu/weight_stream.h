// The weights of a block's products, brought into shared memory by bulk copies in the order they are met. Weights depend
// on nothing, so the copies run ahead of the phases, as far as the ring of slots has room: device memory is read while
// a block waits for others or works on something else.
//
// A slot has a unit, some whole rows of a product's weights, plane behind plane. All warps read a unit and give it
// back; then one of them, each in turn, brings the unit that is n_slots further on in the order into its slot, at the
// latest while the block waits.
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

// A unit's place: its slot, the parity of the slot's barriers, which of a token's units it is, and of the launch's.
struct RingPlace {
  int slot, parity, unit;
  uint32_t ordinal;
};

// In shared memory.
struct WeightStream {
  CountedBarrier full[kMegaMostSlots], empty[kMegaMostSlots];
  const StreamStep* steps;  // [n_steps], in shared memory
  int n_steps, n_units;     // of a token
  int n_slots, slot_bytes;
  int slots_at;      // in dynamic shared memory
  int ahead;         // n_slots, modulo n_units
  uint32_t n_all;    // units of the launch
  int step;          // of the next product
  RingPlace place;   // of its first unit
  RingPlace behind;  // of the first unit that has been read and not yet replaced

  // By one thread, before a barrier of the block.
  LB_DEVICE void init(const Mega& p) {
    unsigned char* shared = dynamic_shared<unsigned char>();
    steps = reinterpret_cast<const StreamStep*>(shared + p.streams_at);
    n_steps = p.stream_counts[block_id()];
    n_units = n_steps > 0 ? int(steps[n_steps - 1].first_unit + steps[n_steps - 1].n_units) : 1;
    n_slots = p.n_slots;
    slot_bytes = p.slot_bytes;
    slots_at = p.slots_at;
    ahead = n_slots % n_units;
    n_all = n_steps > 0 ? uint32_t(p.n_tokens) * uint32_t(n_units) : 0;
    for (int i = 0; i < n_slots; ++i) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, n_warps());
    }
    show_to_products();
    step = 0;
    place = behind = {0, 0, 0, 0};
  }

  LB_DEVICE void advance(RingPlace& at) const {
    ++at.ordinal;
    if (++at.unit == n_units) at.unit = 0;
    if (++at.slot < n_slots) return;
    at.slot = 0;
    at.parity ^= 1;
  }

  // By all warps, whose lanes have read them: n units.
  LB_DEVICE void give_back(int slot, uint32_t n) {
    for (; n > 0; --n) {
      if (lane() == 0) barrier_arrive(empty + slot);
      slot = slot + 1 == n_slots ? 0 : slot + 1;
    }
  }
  // By all warps: the first units.
  LB_DEVICE void fill() {
    for (int i = warp(); i < n_slots && uint32_t(i) < n_all; i += n_warps()) bring(i, i % n_units, 0);
  }
  // By all warps: what replaces the units from `at` up to `end`.
  LB_DEVICE void replace(RingPlace& at, uint32_t end) {
    for (; at.ordinal != end; advance(at)) {
      if (int(at.ordinal % uint32_t(kMegaThreads / 32)) != warp() || n_all - at.ordinal <= uint32_t(n_slots)) continue;
      barrier_wait(empty + at.slot, at.parity);
      const bool is_wrapped = at.unit + ahead >= n_units;
      bring(at.slot, at.unit + ahead - (is_wrapped ? n_units : 0), is_wrapped ? 0 : max(step - 1, 0));
    }
  }

 private:
  // Unit `unit` of a token, each plane by a lane; it is no earlier than step `i`.
  LB_DEVICE void bring(int slot, int unit, int i) {
    while (unit >= int(steps[i].first_unit + steps[i].n_units)) ++i;
    const StreamStep& from = steps[i];
    unit -= int(from.first_unit);
    const int plane = min(lane(), quant::kMaxPlanes - 1), begin = skew(from, plane);
    const int bytes = int(unit + 1 == int(from.n_units) ? from.last_bytes[plane] : from.unit_bytes[plane]);
    const int padded = bytes > 0 && lane() < quant::kMaxPlanes ? (begin + bytes + 15) / 16 * 16 : 0;
    int all = padded + shuffle_xor(padded, 1);
    all += shuffle_xor(all, 2);
    if (lane() == 0) barrier_expect(full + slot, all);
    warp_barrier();
    if (padded > 0)
      copy_bulk(dynamic_shared<unsigned char>() + slots_at + slot * slot_bytes + plane_at(from, plane),
                from.planes[plane] - begin + size_t(unit) * from.unit_bytes[plane], padded, full + slot);
  }
};

}  // namespace lb::gpu
