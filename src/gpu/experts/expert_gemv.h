// The body of ExpertLinear for few rows: a warp has one output of one choice, and walks the row of the chosen expert's
// weights. The order of a sum depends on the shape alone, so a row's bits do not depend on other rows.
// Grid: x, outputs; y, choices. Bound: bandwidth, the bytes of the chosen experts.
#pragma once

#include "gpu/experts/shape.h"

namespace lb::gpu {

template <class Format>
LB_DEVICE void expert_gemv(const ExpertGemv& p) {
  dependents_may_launch();
  wait_for_previous();
  for (int choice = block_id_y(); choice < p.n_choices; choice += n_blocks_y()) {
    const int first_row = p.experts[choice] * p.expert_rows + p.first_row, x_row = choice / p.sharers;
    for (int out = block_id() * n_warps() + warp(); out < p.n_out; out += n_blocks() * n_warps()) {
      float total = 0;
      for (int piece = lane(); piece < p.gemv.row_pieces; piece += 32) {
        const typename Format::Rows rows(p.gemv, 0, first_row + out, piece);
        typename Format::X x;
        x.read(p.gemv, x_row, piece);
        total += Format::dot(rows.read(0), x, piece);
      }
      total = warp_sum(total);
      if (lane() == 0) p.y[long(choice) * p.n_out + out] = total;
    }
  }
}

}  // namespace lb::gpu
