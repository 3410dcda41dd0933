// The first half of MixExperts: act() of every choice, rounded for the products that read it.
//   Grid: x, tiles of 32 outputs; y, choices. A warp has four outputs of gate and of up and reads x once for all eight;
//   the block collects the tile and one warp rounds it. The order of a sum depends on the shape alone, so a row's bits
//   do not depend on other rows. In a launch of one row, the shared expert is an additional choice. Bound: bandwidth,
//   the bytes of the chosen experts.
#pragma once

#include "gpu/experts/act.h"
#include "gpu/experts/copied.h"
#include "gpu/experts/copy_unit.h"
#include "gpu/experts/shape.h"
#include "gpu/round_block.h"
#include "gpu/warp_sums.h"

namespace lb::gpu {

// Sums of a warp's outputs over a row of x: matrices `matrix` and `matrix + 1`, whose rows of these outputs start at
// gate_rows and up_rows. Lane l gets output l / 4 % 4: of gate in the lower half of the warp, of up in the upper.
// kIsShared: in the order of a GEMV (sums_by_warp()).
template <class Format, bool kIsShared>
LB_DEVICE float gate_up_sums(const ExpertGateUp& p, int x_row, int matrix, const int (&gate_rows)[kExpertOutputs],
                             const int (&up_rows)[kExpertOutputs]) {
  static_assert(kExpertOutputs == 4);
  const int second = p.has_both ? matrix + 1 : matrix;  // without a second matrix, the first one's loads twice
  float sums[2 * kExpertOutputs] = {}, of_groups = 0;
  for (int first = 0; first < p.gemv.row_pieces; first += 32) {
    const int piece = first + lane();
    if constexpr (kIsShared) {
      LB_UNROLL
      for (int i = 0; i < 2 * kExpertOutputs; ++i) sums[i] = 0;
    }
    if (piece < p.gemv.row_pieces) {
      typename Format::Piece pieces[2 * kExpertOutputs];  // all loads are in flight before the first product
      LB_UNROLL
      for (int i = 0; i < kExpertOutputs; ++i) {
        pieces[i] = typename Format::Rows(p.gemv, matrix, gate_rows[i], piece).read(0);
        pieces[kExpertOutputs + i] = typename Format::Rows(p.gemv, second, up_rows[i], piece).read(0);
      }
      typename Format::X x;
      x.read(p.gemv, x_row, piece);
      LB_UNROLL
      for (int i = 0; i < 2 * kExpertOutputs; ++i) sums[i] += Format::dot(pieces[i], x, piece);
    }
    if constexpr (kIsShared) of_groups += warp_sums(sums);
  }
  return kIsShared ? of_groups : warp_sums(sums);
}

// The block's tile of row act_row of act(). expert: where it is in the matrices, and whose biases it has; -1: the
// shared expert. tile: [kExpertTile] in shared memory.
template <class Format, bool kIsShared>
LB_DEVICE void gate_up_tile(const ExpertGateUp& p, int act_row, int x_row, int expert, int slot, float* tile) {
  const int first = block_id() * kExpertTile, own = warp() * kExpertOutputs;
  int gate_rows[kExpertOutputs], up_rows[kExpertOutputs];
  LB_UNROLL
  for (int i = 0; i < kExpertOutputs; ++i) {
    const int out = min(first + own + i, p.ffn - 1);
    gate_rows[i] = kIsShared ? out : slot * p.rows[0].per_expert + p.rows[0].first + out;
    up_rows[i] = kIsShared ? out : slot * p.rows[1].per_expert + p.rows[1].first + out;
  }
  float a = gate_up_sums<Format, kIsShared>(p, x_row, kIsShared ? 2 : 0, gate_rows, up_rows);
  const int lane_out = own + lane() / 4 % kExpertOutputs, out = min(first + lane_out, p.ffn - 1);
  const float* const bias = lane() < 16 ? p.rows[0].bias : p.rows[1].bias;
  if (!kIsShared && bias != nullptr) a += bias[long(expert) * p.ffn + out];
  if (p.activates) {
    const float gate = p.has_both ? a : p.gate_sums[long(act_row) * p.ffn + out];
    const float up = p.has_both ? shuffle_xor(a, 16) : a;
    a = expert_act(gate, up, p.limit, p.is_gelu);
  }
  if (lane() < 16 && lane() % 4 == 0) store(tile + lane_out, a);
  block_barrier();
  if (warp() == 0) {
    const long at = long(act_row) * p.ffn + first;
    if (p.rounded.high != nullptr) {  // ffn is a multiple of a tile
      const auto values = load<f32x4>(tile + lane() % 8 * 4);
      round_four(p.rounded, at + lane() % 8 * 4, values, lane() < 8);
    } else if (first + lane() < p.ffn) {
      p.y[at + lane()] = load<float>(tile + lane());
    }
  }
  block_barrier();
}

template <class Format>
LB_DEVICE void expert_gate_up(const ExpertGateUp& p, float* tile) {
  dependents_may_launch();
  wait_for_previous();
  const CopiedExperts& copied = p.copied;
  if (kReadsHostMemory && copied.planes[kDownPlanes].n > 0 && block_id() == 0 && block_id_y() == 0 && thread_id() == 0)
    count_copies(*copied.cache, copied.expert_bytes, copied.counts);
  const int n_acts = p.n_choices + p.has_shared;
  for (int choice = block_id_y(); choice < n_acts; choice += n_blocks_y()) {
    if (choice == p.n_choices) {
      gate_up_tile<Format, true>(p, choice, 0, -1, 0, tile);
      break;
    }
    const int expert = p.experts[choice];
    int slot = p.slots == nullptr ? expert : p.slots[expert], end = choice + 1;
    if (slot == -1) continue;
    const bool is_missing = kReadsHostMemory && slot < 0;
    if (is_missing) {  // the expert's first choice multiplies for all
      if (!is_absent(p.experts, choice, expert)) continue;
      slot = slot_to_fill(slot);
      end = p.n_choices;
    }
    for (int part = kOwnPlanes; part <= (is_missing ? kDownPlanes : kOwnPlanes); ++part) {  // the copy's code once
      if (is_missing) copy_planes(copied.planes[part], expert, slot);
      if (part == kDownPlanes) break;
      if (is_missing) copies_are_done();
      for (int other = choice; other < end; ++other)
        if (p.experts[other] == expert) gate_up_tile<Format, false>(p, other, other / p.k, expert, slot, tile);
    }
  }
}

}  // namespace lb::gpu
