// The weights of a block's products, brought into shared memory by a warp of its own in the order they are met. Weights
// depend on nothing, so the copies run ahead of the phases, as far as the ring of slots has room: device memory is read
// while the block waits for others or works on something else.
//
// A unit is a row of a product's weights for each team of threads, plane behind plane; a slot has kSlotUnits of them.
// Few units are on their way at once: more would not come sooner, and what the block reads itself would wait behind
// them.
#pragma once

#include "launch/megakernel_shape.h"
#include "transfer.h"

namespace lb::gpu {

inline constexpr int kUnitsUnderWay = 6;  // of about 4 KB: a third more than bandwidth times latency

// Where plane `plane` of a unit begins. What is copied begins and ends at multiples of 16.
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
  CountedBarrier full[kMegaMostSlots * kSlotUnits], empty[kMegaMostSlots];
  const StreamStep* steps;  // [n_steps], in shared memory
  int n_steps, n_slots, slot_bytes;
  int slots_at;      // in dynamic shared memory
  int step;          // of the next product
  RingPlace place;   // of its first rows
  uint32_t is_over;  // the block gives up

  // By one thread, before a barrier of the whole block.
  LB_DEVICE void init(const Mega& p) {
    unsigned char* shared = dynamic_shared<unsigned char>();
    steps = reinterpret_cast<const StreamStep*>(shared + p.streams_at);
    n_steps = p.stream_counts[block_id()];
    n_slots = p.n_slots;
    slot_bytes = p.slot_bytes;
    slots_at = p.slots_at;
    for (int i = 0; i < n_slots * kSlotUnits; ++i) barrier_init(full + i, 1);
    for (int i = 0; i < n_slots; ++i) barrier_init(empty + i, kMegaThreads / 32);
    show_to_products();
    step = 0;
    place = {0, 0};
    is_over = 0;
  }

  // By the helping warp, from the first weights of the launch to the last.
  LB_DEVICE void bring(int n_tokens) {
    RingPlace at = {0, 0};
    int under_way[kUnitsUnderWay];  // barriers and parities, the oldest first; -1: none
    LB_UNROLL
    for (int i = 0; i < kUnitsUnderWay; ++i) under_way[i] = -1;
    for (int token = 0; token < n_tokens; ++token) {
      for (int i = 0; i < n_steps; ++i) {
        const StreamStep& step = steps[i];
        const int plane = min(lane(), quant::kMaxPlanes - 1), begin = skew(step, plane), n_units = int(step.n_units);
        const int unit_bytes = lane() < quant::kMaxPlanes ? int(step.unit_bytes[plane]) : 0;
        const int last_bytes = int(step.last_bytes[plane]), to = slots_at + plane_at(step, plane);
        const uint8_t* from = step.planes[plane] - begin;
        for (int unit = 0; unit < n_units; at.advance(n_slots)) {
          wait(empty + at.slot, at.parity ^ 1);
          if (is_over != 0) return;
          for (int k = 0; k < kSlotUnits; ++k, ++unit) {
            CountedBarrier* barrier = full + at.slot * kSlotUnits + k;
            if (unit >= n_units) {  // no rows: the parity goes on
              if (lane() == 0) barrier_arrive(barrier);
              continue;
            }
            if (under_way[0] >= 0) wait(full + under_way[0] / 2, under_way[0] % 2);
            LB_UNROLL
            for (int j = 1; j < kUnitsUnderWay; ++j) under_way[j - 1] = under_way[j];
            under_way[kUnitsUnderWay - 1] = (at.slot * kSlotUnits + k) * 2 + at.parity;
            const int bytes =
                unit_bytes == 0 ? 0 : (begin + (unit + 1 == n_units ? last_bytes : unit_bytes) + 15) / 16 * 16;
            int all = bytes + shuffle_xor(bytes, 1);
            all += shuffle_xor(all, 2);
            if (lane() == 0) barrier_expect(barrier, all);
            warp_barrier();
            if (bytes > 0)
              copy_bulk_once(dynamic_shared<unsigned char>() + to + at.slot * slot_bytes + k * int(step.unit_stride),
                             from + size_t(unit) * unit_bytes, bytes, barrier);
          }
        }
      }
    }
  }

  // By all other warps: the helping one shall end too, wherever it waits.
  LB_DEVICE void stop() {
    is_over = 1;
    for (int i = 0; i < n_slots; ++i)
      if (lane() == 0) barrier_arrive(empty + i);
  }

 private:
  LB_DEVICE static void wait(CountedBarrier* barrier, int parity) {
    if (lane() == 0) barrier_wait(barrier, parity);
    warp_barrier();
  }
};

}  // namespace lb::gpu
