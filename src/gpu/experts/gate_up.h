// The first half of MixExperts: act() of every choice, rounded for the products that read it.
//   Grid: x, tiles of 32 outputs; y, choices. A warp has four outputs of gate and of up and reads x once for all eight;
//   the block collects the tile and one warp rounds it. The order of a sum depends on the shape alone, so a row's bits
//   do not depend on other rows. Bound: bandwidth, the bytes of the chosen experts.
#pragma once

#include "gpu/experts/act.h"
#include "gpu/experts/shape.h"
#include "gpu/round_block.h"

namespace lb::gpu {

// tile: [kExpertTile] in shared memory.
template <class Format>
LB_DEVICE void expert_gate_up(const ExpertGateUp& p, float* tile) {
  dependents_may_launch();
  wait_for_previous();
  const int first = block_id() * kExpertTile, own = warp() * kExpertOutputs;
  for (int choice = block_id_y(); choice < p.n_choices; choice += n_blocks_y()) {
    const int expert = p.experts[choice], x_row = choice / p.k;
    const int slot = p.slots == nullptr ? expert : p.slots[expert];
    if (slot < 0) continue;
    float sums[kExpertOutputs][2] = {};
    for (int piece = lane(); piece < p.gemv.row_pieces; piece += 32) {
      typename Format::X x;
      x.read(p.gemv, x_row, piece);
      LB_UNROLL
      for (int i = 0; i < kExpertOutputs; ++i) {
        const int out = min(first + own + i, p.ffn - 1);
        const typename Format::Rows gate(p.gemv, 0, slot * p.rows[0].per_expert + p.rows[0].first + out, piece);
        sums[i][0] += Format::dot(gate.read(0), x, piece);
        if (!p.has_both) continue;
        const typename Format::Rows up(p.gemv, 1, slot * p.rows[1].per_expert + p.rows[1].first + out, piece);
        sums[i][1] += Format::dot(up.read(0), x, piece);
      }
    }
    LB_UNROLL
    for (int i = 0; i < kExpertOutputs; ++i) {
      const int out = min(first + own + i, p.ffn - 1);
      const long bias = long(expert) * p.ffn + out;
      float a = warp_sum(sums[i][0]);
      if (p.rows[0].bias != nullptr) a += p.rows[0].bias[bias];
      if (p.activates && p.has_both) {
        float up = warp_sum(sums[i][1]);
        if (p.rows[1].bias != nullptr) up += p.rows[1].bias[bias];
        a = expert_act(a, up, p.limit, p.is_gelu);
      } else if (p.activates) {
        a = expert_act(p.gate_sums[long(choice) * p.ffn + out], a, p.limit, p.is_gelu);
      }
      if (lane() == 0) store(tile + own + i, a);
    }
    block_barrier();
    if (warp() == 0) {
      const long at = long(choice) * p.ffn + first;
      if (p.rounded.high != nullptr) {  // ffn is a multiple of a tile
        const auto values = load<f32x4>(tile + lane() % 8 * 4);
        round_four(p.rounded, at + lane() % 8 * 4, values, lane() < 8);
      } else if (first + lane() < p.ffn) {
        p.y[at + lane()] = load<float>(tile + lane());
      }
    }
    block_barrier();
  }
}

}  // namespace lb::gpu
