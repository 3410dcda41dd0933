// The second half of MixExperts: a warp has one output of a row and walks the row's experts, so the weighted sum stays
// in a register and nothing is gathered. The order of a sum depends on the shape alone, so a row's bits do not depend
// on other rows.
//   Grid: x, outputs; y, rows. Bound: bandwidth, the bytes of the chosen experts.
#pragma once

#include "gpu/activation.h"
#include "gpu/experts/shape.h"

namespace lb::gpu {

template <class Format>
LB_DEVICE void expert_down(const ExpertDown& p) {
  dependents_may_launch();
  wait_for_previous();
  for (int row = block_id_y(); row < p.n_rows; row += n_blocks_y()) {
    for (int out = block_id() * n_warps() + warp(); out < p.dim; out += n_blocks() * n_warps()) {
      float sum = 0;
      for (int j = 0; j < p.k; ++j) {
        const int choice = row * p.k + j, expert = p.experts[choice];
        const int slot = p.slots == nullptr ? expert : p.slots[expert];
        if (slot < 0) continue;
        float part = 0;
        for (int piece = lane(); piece < p.gemv.row_pieces; piece += 32) {
          const typename Format::Rows rows(p.gemv, 0, slot * p.rows.per_expert + p.rows.first + out, piece);
          typename Format::X x;
          x.read(p.gemv, choice, piece);
          part += Format::dot(rows.read(0), x, piece);
        }
        part = warp_sum(part);
        if (p.sums != nullptr) {
          if (lane() == 0) p.sums[long(choice) * p.dim + out] = part;
          continue;
        }
        if (p.rows.bias != nullptr) part += p.rows.bias[long(expert) * p.dim + out];
        sum = j == 0 ? p.weights[choice] * part : fma(p.weights[choice], part, sum);
      }
      if (lane() != 0 || p.sums != nullptr) continue;
      const long at = long(row) * p.dim + out;
      if (p.shared != nullptr)
        sum = fma(p.shared_gate == nullptr ? 1.0f : sigmoid(p.shared_gate[row]), p.shared[at], sum);
      p.y[at] = p.add == nullptr ? sum : sum + p.add[at];
    }
  }
}

}  // namespace lb::gpu
